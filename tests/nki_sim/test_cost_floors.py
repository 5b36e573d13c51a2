"""No instruction costs less than the documents say, nor less than one that does strictly less work.

Every operator runs on every engine, over all pairs of types that its rules allow, all memories, and three
strides of each operand. `FLOORS` states the documented cycles anew: it
shares no code with the table of costs. An operator without a figure in the documents is in `NO_FIGURE`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from nki_sim import targets
from nki_sim.dtypes import DTYPES
from nki_sim.forms import Form, Operand
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target

P = 128
SIZES = (48, 480)
"""Elements per partition: both are multiples of 3, 16 and 2, as some instructions require."""
STRIDES = (1, 2, 24)
"""In elements; 24 elements of any type are more than 16 bytes."""
FEW_TYPES = ("float32", "bfloat16", "uint8", "uint32")

Shape = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """The operands of one instruction for N elements per partition, and the parameters it needs."""

    shapes: Callable[[int], Mapping[str, Shape]]
    params: Callable[[int], Mapping[str, Any]] = lambda _: {}


def alike(*roles: str, **params: Any) -> Layout:
    """All operands have N elements per partition."""
    return Layout(lambda n: dict.fromkeys(roles, (P, n)), lambda _: params)


def shaped(shapes: Callable[[int], Mapping[str, Shape]], **params: Any) -> Layout:
    return Layout(shapes, lambda _: params)


def square(n: int) -> Mapping[str, Shape]:
    side = 32 if n < 128 else 128
    return {"dst": (side, side), "data": (side, side)}


LAYOUTS: dict[str, list[Layout]] = {
    "dma_copy": [alike("dst", "src")],
    "dma_transpose": [shaped(lambda n: {"dst": (P, n), "src": (n, P)})],
    "dma_compute": [alike("dst", "srcs0", "srcs1", reduce_op="add")],
    "sendrecv": [alike("dst", "src")],
    "tensor_copy": [alike("dst", "src")],
    "memset": [alike("dst", value=0.0), alike("dst", value=1.0)],
    "nc_matmul": [
        shaped(lambda n: {"dst": (P, n), "stationary": (P, P), "moving": (P, n)}, **flags)
        for flags in ({}, {"is_moving_onezero": True}, {"is_transpose": True})
    ],
    "nc_transpose": [shaped(square)],
    "tensor_tensor": [alike("dst", "data1", "data2", op=op) for op in ("add", "maximum", "bitwise_and")],
    "tensor_scalar": [
        alike("dst", "data", op0="add", operand0=1.0),
        alike("dst", "data", op0="multiply", operand0=2.0, op1="add", operand1=1.0),
        alike("dst", "data", op0="rsqrt"),
        alike("dst", "data", op0="bitwise_and", operand0=3.0),
    ],
    "scalar_tensor_tensor": [
        alike("dst", "data", "operand1", op0=first, operand0=1.0, op1=second)
        for first, second in (("add", "add"), ("subtract", "multiply"))
    ],
    "tensor_scalar_reduce": [
        shaped(lambda n: {"dst": (P, n), "data": (P, n), "reduce_res": (P, 1)}, op0="add", operand0=1.0,
               reduce_op="add", reduce_cmd="reset_reduce"),
    ],
    "tensor_scalar_cumulative": [alike("dst", "src", op0="add", imm0=1.0, op1="add")],
    "tensor_reduce": [
        shaped(lambda n: {"dst": (P, 1), "data": (P, n)}, op=op, axis=(1,)) for op in ("add", "multiply")
    ],
    "tensor_partition_reduce": [shaped(lambda n: {"dst": (1, n), "data": (P, n)}, op="add")],
    "tensor_tensor_scan": [alike("dst", "data0", "data1", initial=0.0, op0="multiply", op1="add")],
    "activation": [
        alike("dst", "data", op="exp", reduce_cmd="idle"),
        shaped(lambda n: {"dst": (P, n), "data": (P, n), "reduce_res": (P, 1)}, op="exp", reduce_op="add",
               reduce_cmd="reset_reduce"),
    ],
    "activation_reduce": [
        shaped(lambda n: {"dst": (P, n), "data": (P, n), "reduce_res": (P, 1)}, op="exp", reduce_op="add"),
    ],
    "activate2": [
        alike("dst", "data", op="exp", imm0=1.0, imm1=0.0, op0="multiply", op1="add", reduce_cmd="idle"),
        shaped(lambda n: {"dst": (P, n), "data": (P, n), "reduce_res": (P, 1)}, op="exp", imm0=1.0, imm1=0.0,
               op0="multiply", op1="bypass", reduce_op="maximum", reduce_cmd="reset_reduce"),
    ],
    "exponential": [
        alike("dst", "src", reduce_cmd="idle"),
        shaped(lambda n: {"dst": (P, n), "src": (P, n), "reduce_res": (P, 1)}, reduce_cmd="reset_reduce"),
    ],
    "reciprocal": [alike("dst", "data")],
    "bn_stats": [shaped(lambda n: {"dst": (P, 6), "data": (P, n)})],
    "bn_aggr": [shaped(lambda n: {"dst": (P, 2), "data": (P, n)})],
    "rng": [alike("dst")],
    "dropout": [alike("dst", "data", prob=0.5)],
    "set_rng_seed": [shaped(lambda n: {"src_seeds": (1, 1)})],
    "rand2": [alike("dst", min=0.0, max=1.0)],
    "rand_set_state": [shaped(lambda n: {"src_seeds": (P, 6)})],
    "rand_get_state": [shaped(lambda n: {"dst": (P, 6)})],
    "iota": [Layout(lambda n: {"dst": (P, n)}, lambda n: {"pattern": (1, n)})],
    "affine_select": [
        Layout(
            lambda n: {"dst": (P, n), "on_true_tile": (P, n)},
            lambda n: {"pattern": (1, n), "channel_multiplier": 1, "on_false_value": 0.0, "cmp_op": "equal"},
        ),
    ],
    "range_select": [
        shaped(
            lambda n: {"dst": (P, n), "on_true_tile": (P, n), "bound0": (P, 1), "bound1": (P, 1)},
            comp_op0="greater", comp_op1="less", reduce_op="maximum", range_start=0, reduce_cmd="idle",
            on_false_value=-3.4028234663852886e38,
        ),
    ],
    "select_reduce": [
        alike("dst", "predicate", "on_true", on_false=0.0, reduce_op="maximum", reduce_cmd="idle"),
    ],
    "tensor_copy_predicated": [alike("dst", "src", "predicate")],
    "max8": [shaped(lambda n: {"dst": (P, 8), "src": (P, n)})],
    "nc_find_index8": [shaped(lambda n: {"dst": (P, 8), "data": (P, n), "vals": (P, 8)})],
    "nc_match_replace8": [shaped(lambda n: {"dst": (P, n), "data": (P, n), "vals": (P, 8)}, imm=0.0)],
    "topk": [
        Layout(
            lambda n: {"val_dst": (P, 8), "idx_dst": (P, 8), "src": (P, n // 16)}, lambda n: {"n": n},
        ),
    ],
    "nonzero_with_count": [
        shaped(lambda n: {"dst": (P, n + 1), "src": (P, n)}, index_offset=0, padding_val=-1),
    ],
    "local_gather": [
        Layout(
            lambda n, run=run: {"dst": (P, n * run), "src_buffer": (P, 512), "index": (P, n // 16)},
            lambda n, run=run: {"num_elem_per_idx": run},
        )
        for run in (1, 2, 8, 32)
    ],
    "nc_n_gather": [shaped(lambda n: {"dst": (P, n), "data": (P, 512), "indices": (P, n)})],
    "nc_stream_shuffle": [alike("dst", "src", shuffle_mask=tuple(range(32)))],
    "sequence_bounds": [shaped(lambda n: {"dst": (1, 2 * n), "segment_ids": (1, n)})],
}  # fmt: skip

WITHOUT_DATA = frozenset({
    "register_move", "register_load", "register_store", "register_alu", "loop_begin", "loop_end",
    "core_barrier",
})  # fmt: skip
"""Instructions of the sequencers: they move at most one element."""

MX = frozenset({"nc_matmul_mx", "quantize_mx"})
"""Instructions whose operands have types of their own: `test_mx` has what they cost."""


# -- the documented cycles of the engine's clock ---------------------------------------------------

MIN_II = 64
FLOATS_16 = {"bfloat16", "float16"}
FLOATS_8 = {"float8_e4m3", "float8_e4m3fn", "float8_e5m2"}
BACKGROUND = 0.5
"""The share of its time that a transpose takes of the tensor engine's on NeuronCore-v4, at the least."""


def in_sbuf(form: Form, *roles: str) -> bool:
    return all(form[role].buffer == "sbuf" for role in roles)


def dense(item: Operand) -> bool:
    return item.dims[-1][0] == 1 or item.free == 1


def halved(form: Form) -> float:
    """Above 16 bytes from element to element the memory delivers half; only on the engines."""
    far = any(item.free > 1 and item.dims[-1][0] * item.itemsize > 16 for item in form.tiles)
    return 2.0 if far else 1.0


def elements(form: Form) -> float:
    return max(item.free for item in form.tiles) * halved(form)


def per_element(form: Form, target: Target) -> float:
    del target
    return max(MIN_II, elements(form))


def scaled(factor: float) -> Callable[[Form, Target], float]:
    return lambda form, _: max(MIN_II, factor * elements(form))


def copying(form: Form, target: Target) -> float:
    source = "src" if form.op == "tensor_copy" else "data"
    if form.engine == "gpsimd" and "rsqrt" in {form.param("op0"), form.param("op1")}:
        return 4 * per_element(form, target)
    types = FLOATS_16 | FLOATS_8 if target.generation >= 4 else FLOATS_16
    narrow = {form["dst"].dtype, form[source].dtype} <= types
    speed = 1.0
    contiguous = dense(form["dst"]) and dense(form[source])
    near = in_sbuf(form, "dst", source)
    if form.engine == "vector" and target.generation >= 3 and narrow:
        speed = 4 if near and contiguous else 2 if near or contiguous else 1
    if form.engine == "scalar" and target.generation >= 4 and narrow:
        speed = 2 if near or contiguous else 1
    if has_float_mode(form, target):
        speed = 1.6
    return max(MIN_II, elements(form) / speed)


def has_float_mode(form: Form, target: Target) -> bool:
    """Measured on trn2: 512 float32 from SBUF to SBUF take 380 cycles, 60 of them overhead."""
    moved = [item for item in form.tiles if item.role in {"dst", "src", "data"}]
    plain = all(item.dtype == "float32" and item.buffer == "sbuf" and dense(item) for item in moved)
    vector = form.engine == "vector" and target.generation >= 3
    return vector and plain and form.op in {"tensor_copy", "tensor_scalar"}


def two_inputs(form: Form, target: Target) -> float:
    if form.engine == "gpsimd":
        return 2 * per_element(form, target)
    near = in_sbuf(form, "data1", "data2")
    types = {item.dtype for item in form.tiles}
    simple = types == {"bfloat16"} and form.param("op") in {"add", "multiply", "subtract"}
    fast = simple and all(dense(item) for item in form.tiles)
    fast |= target.generation >= 3  # measured: N, whatever the types
    return per_element(form, target) * (2 if near and not fast else 1)


def scalar_and_two_inputs(form: Form, target: Target) -> float:
    narrow = form["data"].dtype == form["operand1"].dtype == "bfloat16"
    fast = narrow and (form.param("op0"), form.param("op1")) == ("subtract", "multiply")
    fast = (fast and form["data"].free % 2 == 0) or target.generation >= 3  # measured: N, whatever the types
    return per_element(form, target) * (1 if fast else 2)


def reducing(form: Form, target: Target) -> float:
    narrow = form["dst"].dtype == form["data"].dtype == "bfloat16"
    fast = narrow and form.param("op") in {"add", "maximum"}
    del target
    return max(MIN_II, elements(form) * (0.5 if fast else 1))


def accumulating(form: Form, target: Target) -> float:
    return per_element(form, target) + (MIN_II if form.operand("reduce_res") else 0)


def fourfold(form: Form, target: Target) -> float:
    """Four times the throughput of ScalarE, which has the same clock."""
    assert target.vector_clock_ghz == target.scalar_clock_ghz
    return max(MIN_II, elements(form) / 4) + (MIN_II if form.operand("reduce_res") else 0)


def product(form: Form, target: Target) -> float:
    types = {form["stationary"].dtype, form["moving"].dtype}
    cheap = form.param("is_moving_onezero") or form.param("is_transpose")
    passes = (2 if cheap else 4) if "float32" in types else 1
    if form.param("is_transpose") and target.generation >= 4:
        passes *= BACKGROUND
    return passes * max(min(64, form["stationary"].free), form["moving"].free)


def transposing(form: Form, target: Target) -> float:
    data = form["data"]
    if form.engine == "vector":
        return per_element(form, target)
    passes = (2 if data.itemsize == 4 else 1) * (BACKGROUND if target.generation >= 4 else 1)
    return passes * max(data.partitions, min(64, data.free))


def predicated(form: Form, target: Target) -> float:
    return per_element(form, target) * (2 if in_sbuf(form, "src", "predicate") else 1)


def zeroing(form: Form, target: Target) -> float:
    half = form.param("value") == 0 and form["dst"].itemsize == 2
    del target
    return max(MIN_II, elements(form) * (0.5 if half else 1))


def gathering(form: Form, target: Target) -> float:
    del target
    run, size = form.param("num_elem_per_idx"), form["src_buffer"].itemsize
    assert isinstance(run, int)
    an_element = (28 + 4 * run) / (4 * run) / min(4 / size, run)
    return 150 + form["dst"].free * an_element


def selected(form: Form, target: Target) -> float:
    """What no index names is not read."""
    del target
    return 150 + form["dst"].free


def on_gpsimd(form: Form, target: Target) -> float:
    return 150 + per_element(form, target)


def largest(form: Form, target: Target) -> float:
    del target
    n = form.param("n")
    assert isinstance(n, int)
    return 4 * n + form["val_dst"].free


Floor = Callable[[Form, Target], float]

FLOORS: dict[str, Floor] = {
    "tensor_copy": copying, "tensor_scalar": copying, "memset": zeroing,
    "nc_matmul": product, "nc_transpose": transposing,
    "tensor_tensor": two_inputs, "scalar_tensor_tensor": scalar_and_two_inputs,
    "tensor_scalar_reduce": accumulating, "activation": accumulating, "activation_reduce": accumulating,
    "tensor_reduce": reducing, "tensor_tensor_scan": scaled(2.0),
    "bn_stats": per_element, "bn_aggr": scaled(13 / 3), "dropout": per_element, "range_select": per_element,
    "tensor_copy_predicated": predicated, "max8": per_element, "nc_find_index8": per_element,
    "nc_match_replace8": per_element, "nc_stream_shuffle": per_element,
    "iota": on_gpsimd, "affine_select": on_gpsimd, "local_gather": gathering,
    "nc_n_gather": selected, "topk": largest,
    "activate2": accumulating, "exponential": fourfold, "rand2": scaled(0.25),
}  # fmt: skip

NO_FIGURE = frozenset({
    "tensor_scalar_cumulative", "tensor_partition_reduce", "select_reduce", "nonzero_with_count",
    "sequence_bounds", "rng", "set_rng_seed", "rand_set_state", "rand_get_state",
})  # fmt: skip
"""No document gives cycles: the floor is an element a cycle."""

CALIBRATED = frozenset({"reciprocal"})
"""Documented as 8 N and measured at 1.6 to 2.7 N: the floor is the least that was measured."""

BY_DMA = frozenset({"dma_copy", "dma_transpose", "dma_compute", "sendrecv"})


def floor_ns(form: Form, target: Target) -> float:
    """The documented time of a form."""
    if form.op in BY_DMA:
        return dma_floor_ns(form, target)
    cycles = FLOORS.get(form.op, scaled(1.6) if form.op in CALIBRATED else per_element)
    return cycles(form, target) / target.clock_ghz(form.engine)


DESCRIPTOR_NS = 8.5
"""Measured on trn2, beside the bytes: a descriptor of 4 bytes takes 9 ns, of 256 bytes 17, of 2 KiB 83."""


def dma_floor_ns(form: Form, target: Target) -> float:
    """The bytes of the widest operand over 16 engines; a transpose is slower, and so are short runs.

    Elements that do not follow each other take a descriptor each.
    """
    scattered = any(item.dims[-1][0] != 1 for item in form.tiles)
    scattered |= form.op == "dma_transpose" and form["src"].itemsize != 2
    made = DESCRIPTOR_NS if scattered else 0.0
    times = [item.elements * made + item.nbytes / target.dma_engine_bytes_per_ns for item in form.tiles]
    taken = sum(times) if form.op == "dma_compute" else max(times)
    if form.op == "dma_transpose" and form["src"].itemsize == 2 and not scattered:
        ratio = 0.9 if form["src"].in_hbm else 0.5
        taken = max(taken, form["src"].nbytes / ratio / target.dma_engine_bytes_per_ns)
    return taken / 16


# -- all forms of an operator ----------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """What one form varies: its size and, by role, types, memories and strides."""

    size: int
    types: tuple[str, ...]
    buffers: tuple[str, ...]
    strides: tuple[int, ...]


def make_form(op: str, engine: str, layout: Layout, chosen: Variant) -> Form:
    shapes = layout.shapes(chosen.size).items()
    operands = tuple(
        make_operand(role, shape, dtype, buffer, step)
        for (role, shape), dtype, buffer, step in zip(
            shapes, chosen.types, chosen.buffers, chosen.strides, strict=True
        )
    )
    return Form(op, engine, operands, tuple(layout.params(chosen.size).items()))


def make_operand(role: str, shape: Shape, dtype: str, buffer: str, step: int) -> Operand:
    rows, free = shape
    return Operand(role, ((free * step, rows), (step, free)), dtype, buffer, free * step, 0)


def buffers_of(op: str, roles: list[str]) -> list[tuple[str, ...]]:
    """The memories of the operands: HBM stands for its three kinds."""
    arguments = OPERATORS[op].arguments_by_name
    choices = [
        [name for name in ("sbuf", "psum", "hbm") if name in arguments[role].buffers] for role in roles
    ]
    return list(itertools.product(*choices))


def variants(op: str, layout: Layout) -> Iterator[Variant]:
    """All types in the first memories; all sizes, memories and strides in pairs of a few types."""
    roles = list(layout.shapes(max(SIZES)))
    memories = buffers_of(op, roles)
    plain = (1,) * len(roles)
    for first, second in itertools.product(DTYPES, repeat=2):
        for last in dict.fromkeys((first, second, "float32")):
            types = (first, second, *(last,) * len(roles))[: len(roles)]
            yield Variant(max(SIZES), types, memories[0], plain)
    steps = [plain, *(replaced(plain, i, step) for i in range(len(roles)) for step in STRIDES[1:])]
    for size, memory, strides in itertools.product(SIZES, memories, steps):
        for first, second in itertools.product(FEW_TYPES, repeat=2):
            yield Variant(size, (first, *(second,) * (len(roles) - 1)), memory, strides)


def replaced(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


@cache
def legal_forms(op: str, engine: str, name: str) -> dict[tuple[int, Variant], Form]:
    """The forms that no rule of a target refuses, by their layout's number and what they vary."""
    found, target = {}, targets.load(name)
    for number, layout in enumerate(LAYOUTS[op]):
        for chosen in variants(op, layout):
            form = make_form(op, engine, layout, chosen)
            if not OPERATORS[op].find_breaches(form, target):
                found[number, chosen] = form
    return found


def cost_ns(form: Form, target: Target) -> float:
    cost = OPERATORS[form.op].cost(form, target)
    return cost.busy_ns


CASES = [(op, engine, name) for op in LAYOUTS for engine in OPERATORS[op].engines for name in targets.names()]

NOT_THERE = {
    ("range_select", "vector", "trn1"), ("nonzero_with_count", "gpsimd", "trn1"),
    ("tensor_scalar", "scalar", "trn1"), ("tensor_copy", "scalar", "trn1"), ("rng", "gpsimd", "trn1"),
    ("rand_set_state", "gpsimd", "trn1"), ("rand_get_state", "gpsimd", "trn1"), ("sendrecv", "dma", "trn1"),
    ("sendrecv", "gpsimd", "trn1"),
    *itertools.product(("activate2",), ("scalar",), ("trn1", "trn2")),
    *itertools.product(("exponential", "rand2"), ("vector",), ("trn1", "trn2")),
}  # fmt: skip


def test_the_tables_name_every_instruction() -> None:
    assert LAYOUTS.keys() | WITHOUT_DATA | MX == OPERATORS.keys()
    assert FLOORS.keys() | NO_FIGURE | CALIBRATED | BY_DMA == LAYOUTS.keys()
    assert not FLOORS.keys() & (NO_FIGURE | CALIBRATED | BY_DMA)


@pytest.mark.parametrize(("op", "engine", "name"), CASES)
def test_no_instruction_is_cheaper_than_documented(op: str, engine: str, name: str) -> None:
    forms, target = legal_forms(op, engine, name), targets.load(name)
    assert bool(forms) != ((op, engine, name) in NOT_THERE)
    cheap = [form for form in forms.values() if cost_ns(form, target) < floor_ns(form, target) * (1 - 1e-9)]
    assert not cheap, cheap[0]


# Types are compared with wider ones. Bytes are not compared with 16-bit types, for which alone the documents
# have fast modes, nor other types with float32 in the mode that was measured for it alone.
WIDER = {
    "bfloat16": ("float32", "int32", "uint32"), "float16": ("float32", "int32", "uint32"),
    "uint8": ("uint32",), "uint16": ("uint32",), "int8": ("int32",), "int16": ("int32",),
    "tfloat32": ("float32",), "float8_e4m3": ("tfloat32", "float32"),
}  # fmt: skip


def more_work(chosen: Variant) -> Iterator[Variant]:
    """The variants that do the same and more: larger, with a wider type or a longer stride of one operand."""
    if chosen.size == SIZES[0]:
        yield replace(chosen, size=SIZES[1])
    for index, (dtype, stride) in enumerate(zip(chosen.types, chosen.strides, strict=True)):
        for wider in WIDER.get(dtype, ()):
            yield replace(chosen, types=(*chosen.types[:index], wider, *chosen.types[index + 1 :]))
        for longer in STRIDES[STRIDES.index(stride) + 1 :]:
            yield replace(chosen, strides=replaced(chosen.strides, index, longer))
    for dtype in set(chosen.types):
        for wider in WIDER.get(dtype, ()):
            yield replace(chosen, types=tuple(wider if item == dtype else item for item in chosen.types))


@pytest.mark.parametrize(("op", "engine", "name"), CASES)
def test_no_instruction_is_cheaper_than_one_that_does_less(op: str, engine: str, name: str) -> None:
    forms, target = legal_forms(op, engine, name), targets.load(name)
    for (number, chosen), form in forms.items():
        for larger in filter(None, (forms.get((number, item)) for item in more_work(chosen))):
            converts = {item.dtype for item in form.tiles} not in ({"float32"}, {"bfloat16"}, {"float16"})
            if converts and has_float_mode(larger, target):
                continue
            assert cost_ns(larger, target) >= cost_ns(form, target) * (1 - 1e-9), (form, larger)


def test_more_elements_for_each_index_take_longer() -> None:
    forms, target = legal_forms("local_gather", "gpsimd", "trn2"), targets.load("trn2")
    by_run: dict[Variant, list[float]] = {}
    for (_, chosen), form in forms.items():
        by_run.setdefault(chosen, []).append(cost_ns(form, target))
    assert all(len(costs) == len(LAYOUTS["local_gather"]) for costs in by_run.values())
    assert all(costs == sorted(costs) for costs in by_run.values())
