"""Access patterns, data types and costs as values: properties that hold for every shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.dtypes import DTYPES, MX_DTYPES
from nki_sim.forms import BUFFERS, Dims, Form, Operand, Site, merge_dims, run_elements
from nki_sim.functions import ACTIVATIONS, ALIASES, FUNCTIONS
from nki_sim.operators import OPERATORS, V4_INSTRUCTIONS, Operator, costs
from nki_sim.semantics.arrays import NUMPY, UNINITIALISED, load_float32, store
from nki_sim.targets import Target

DIMS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), min_size=1, max_size=5).map(tuple)
TARGETS = st.sampled_from([targets.load(name) for name in targets.names()])


def walk(dims: Dims) -> list[int]:
    """Element offsets in the order a pattern visits them."""
    offsets = np.zeros(1, np.int64)
    for step, count in dims:
        offsets = (offsets[:, None] + step * np.arange(count)).reshape(-1)
    return offsets.tolist()


@given(dims=DIMS)
def test_merging_keeps_the_walk(dims: Dims) -> None:
    joined = merge_dims(dims)
    assert walk(joined) == walk(dims)
    assert len(joined) <= len(dims)
    assert all(count > 1 for _, count in joined)


@given(dims=DIMS)
def test_runs_and_extents_are_those_of_the_walk(dims: Dims) -> None:
    visited = walk(dims)
    item = Operand("dst", dims, "float32", "hbm", 8, 0)
    assert item.elements == len(visited)
    assert item.extent == max(visited) + 1
    run = run_elements(dims)
    assert visited[:run] == list(range(run))
    assert len(visited) % run == 0


@given(
    shape=st.lists(st.integers(1, 30), min_size=2, max_size=4).map(tuple),
    name=st.sampled_from(sorted(DTYPES)),
)
def test_sites_know_their_sizes(shape: tuple[int, ...], name: str) -> None:
    array = np.zeros(shape, NUMPY[name])
    for buffer in sorted(BUFFERS):
        site = Site("t", shape, name, buffer, 1)
        assert site.size == array.size
        assert site.partition_bytes == array[0].nbytes
        assert site.row == (array[0].size if buffer in {"sbuf", "psum", "register"} else shape[-1])


def test_operands_are_found_by_role() -> None:
    dst, src = (Operand(role, ((4, 2), (1, 4)), "float32", "sbuf", 4, 0) for role in ("dst", "src"))
    form = Form("tensor_copy", "vector", (dst, src), (("value", 1.0),))
    assert form["src"] is src
    assert form.operand("data") is None
    assert (form.param("value"), form.param("none"), form.param("none", 3)) == (1.0, None, 3)
    with pytest.raises(KeyError):
        form["data"]


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_type_has_an_equivalent_and_a_mark_of_the_unwritten(name: str) -> None:
    dtype = NUMPY[name]
    assert dtype.itemsize == DTYPES[name].itemsize
    filled = np.full(1, UNINITIALISED[dtype], dtype)
    if name in MX_DTYPES:
        assert set(filled.tobytes()) == {0x7F}  # NaN where the type has it
        return
    mark = filled.astype(np.float64)[0]
    assert np.isnan(mark) if DTYPES[name].kind == "float" else mark == (1 if name == "bool_" else 4)


@given(
    name=st.sampled_from([name for name in sorted(DTYPES) if NUMPY[name].kind in "iu"]),
    values=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=8),
)
def test_integers_saturate_and_round_to_even(name: str, values: list[float]) -> None:
    limits = np.iinfo(NUMPY[name])
    view = np.zeros(len(values), NUMPY[name])
    store(view, np.array(values))
    wanted = [min(max(round(value), limits.min), limits.max) for value in values]
    assert view.tolist() == wanted


def test_nan_becomes_zero_in_integers_and_load_widens() -> None:
    view = np.ones(2, np.int8)
    store(view, np.array([np.nan, 3.0], np.float32))
    assert view.tolist() == [0, 3]
    assert load_float32(view).dtype == np.float32
    wide = np.ones(2, np.float32)
    assert load_float32(wide) is wide


def test_functions_and_operators_have_one_name_each() -> None:
    assert set(ALIASES.values()) <= FUNCTIONS
    assert not ALIASES.keys() & FUNCTIONS
    assert OPERATORS.keys() >= V4_INSTRUCTIONS
    for name, operator in OPERATORS.items():
        assert operator.name == name
        assert operator.doc
        assert operator.outputs or operator.state or operator.internal
        assert len(operator.arguments_by_name) == len(operator.arguments)
        if operator.outputs and name != "topk":
            assert operator.arguments[0].name == "dst"


# -- costs of every operator on every engine -------------------------------------------------------


def form_of(
    operator: Operator, engine: str, free: int, partitions: int = 128, dtype: str = "float32"
) -> Form:
    """A plain instruction: every tensor [partitions, free], optional tensors left out."""
    operands, params = [], []
    for argument in operator.arguments:
        if argument.kind in {"out", "tensor"} and argument.required:
            buffer = min(argument.buffers & {"sbuf"} or argument.buffers)
            operands.append(Operand(argument.name, ((free, partitions), (1, free)), dtype, buffer, free, 0))
        elif argument.kind in {"alu", "reduce", "register_alu"} and argument.required:
            params.append((argument.name, "add"))
        elif argument.kind == "activation":
            params.append((argument.name, "exp"))
        elif argument.kind == "axes" and argument.required:
            params.append((argument.name, (1,)))
        elif argument.required:
            params.append((argument.name, free if argument.kind == "int" else 1.0))
    return Form(operator.name, engine, tuple(operands), tuple(params))


ENGINES = [(name, engine) for name, operator in OPERATORS.items() for engine in operator.engines]


def by_dma(name: str, engine: str) -> bool:
    """Whether DMA engines do the work, though another engine may start them."""
    return engine == "dma" or OPERATORS[name].cost is costs.dma


@pytest.mark.parametrize(("name", "engine"), ENGINES)
@given(free=st.integers(1, 2000), more=st.integers(0, 500), target=TARGETS)
def test_costs_are_positive_and_grow_with_the_size(
    name: str, engine: str, free: int, more: int, target: Target
) -> None:
    operator = OPERATORS[name]
    small, large = (operator.cost(form_of(operator, engine, size), target) for size in (free, free + more))
    assert 0 < small.busy_ns <= large.busy_ns
    assert (small.channels > 0) == by_dma(name, engine)
    assert small.result_ns >= 0


@pytest.mark.parametrize(
    ("name", "engine"), [item for item in ENGINES if item[1] != "tensor" and not by_dma(*item)]
)
@given(partitions=st.integers(1, 128), target=TARGETS)
def test_partitions_are_parallel(name: str, engine: str, partitions: int, target: Target) -> None:
    operator = OPERATORS[name]
    cost = operator.cost(form_of(operator, engine, 256, partitions), target)
    assert cost == operator.cost(form_of(operator, engine, 256), target)


@pytest.mark.parametrize(("name", "engine"), [item for item in ENGINES if not by_dma(*item)])
@given(free=st.integers(1, 600), target=TARGETS)
def test_no_instruction_is_shorter_than_the_documented_minimum(
    name: str, engine: str, free: int, target: Target
) -> None:
    operator = OPERATORS[name]
    cycles = operator.cost(form_of(operator, engine, free), target).busy_ns * target.clock_ghz(engine)
    assert cycles >= min(target.engine_min_cycles, free if engine == "tensor" else target.engine_min_cycles)


@given(free=st.integers(1, 4000), partitions=st.integers(1, 128), target=TARGETS)
def test_dma_is_never_faster_than_its_engines(free: int, partitions: int, target: Target) -> None:
    form = form_of(OPERATORS["dma_copy"], "dma", free, partitions)
    cost = OPERATORS["dma_copy"].cost(form, target)
    assert cost.channels == -(-partitions // 8)
    assert cost.busy_ns > target.dma_descriptor_overhead_ns
    assert 4 * free * partitions <= cost.busy_ns * cost.channels * target.dma_engine_bytes_per_ns * (
        1 + 1e-12
    )


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_name_the_table_they_need(name: str) -> None:
    form = form_of(OPERATORS["activation"], "scalar", 64)
    params = tuple((key, name if key == "op" else value) for key, value in form.params)
    cost = OPERATORS["activation"].cost(
        Form(form.op, form.engine, form.operands, params), targets.load("trn2")
    )
    assert (cost.table == "") == (name in {"copy", "identity", "relu", "square", "abs", "sign", "negative"})


# -- hints and helpers of the language -------------------------------------------------------------


DMA_HINTS = ", engine=nisa.engine.sync, priority=1, dge_mode=nisa.dge_mode.hwdge, name='load'"


def test_hints_are_accepted_and_change_nothing(tracing: Any) -> None:
    plain, hinted = (
        tracing(
            f"""
            @nki.jit
            def kernel(x):
                out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm, name="result")
                t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(t, x{dma})
                nisa.tensor_copy(t, t{copy})
                nisa.dma_copy(out, t)
                return out
            """,
            np.zeros((8, 8), np.float32),
        )
        for dma, copy in (("", ""), (DMA_HINTS, ", engine=nisa.engine.unknown, name='copy'"))
    )
    # Those of DMA are on record, for whoever models its descriptors.
    dma = hinted.forms[0]
    assert dma.params == (("priority", 1), ("dge_mode", "hwdge"))
    assert replace(hinted, forms=(replace(dma, params=()), *hinted.forms[1:])).to_bytes() == plain.to_bytes()


def test_helpers_of_the_language(tracing: Any) -> None:
    text = """
    @nki.jit(mode="any")
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=str(x.dtype), buffer=nl.shared_hbm)
        t = nl.empty_like(x, buffer=nl.sbuf)
        p = nl.ndarray((4, 4), dtype=nl.bfloat16, buffer=nl.psum)
        assert nl.is_hbm(x) and nl.is_sbuf(t) and nl.is_psum(p) and not nl.is_hbm(t)
        assert list(nl.affine_range(3)) == list(nl.sequential_range(0, 3)) == list(nl.static_range(0, 3, 1))
        assert nl.ds(4, 3) == slice(4, 7) and len(x) == 8 and x.ndim == 2 and t.name == "t"
        assert x.is_contiguous() and not x[:, 0:4].is_contiguous() and t[:, 0:4].is_contiguous()
        assert x.get_pattern() == [[8, 8], [1, 8]]
        assert repr(nl.exp) == "nl.exp" and repr(nl.sbuf) == "nl.sbuf" and "in sbuf" in repr(t)
        assert x.dtype is nl.float32 and x.buffer == "hbm"
        nisa.dma_copy(t, x)
        nisa.dma_copy(out, t)
        return out
    """
    assert len(tracing(text, np.zeros((8, 8), np.float32))) == 2
