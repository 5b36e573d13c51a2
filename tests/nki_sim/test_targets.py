"""Target tables, costs worked out by hand from the documented formulas, and the model bound."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.dtypes import MX_DTYPES
from nki_sim.errors import TargetError
from nki_sim.forms import Dims, Form, Operand
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target
from nki_sim.timing.bounds import MinimalWork, bound_parts_ms, peak_flops_per_ns, tight_bound
from nki_sim.timing.uncertainty import constant_ranges

TRN1, TRN2, TRN3 = (targets.load(name) for name in ("trn1", "trn2", "trn3"))


def test_unknown_targets_name_the_known_ones() -> None:
    with pytest.raises(TargetError, match="unknown target 'trn7'; known targets: trn1, trn2, trn3"):
        targets.load("trn7")


@pytest.mark.parametrize("name", ["../targets/trn1", "", "trn1.json"])
def test_names_are_not_paths(name: str) -> None:
    with pytest.raises(TargetError):
        targets.load(name)


def table() -> dict[str, Any]:
    return json.loads((Path(targets.__file__).parent / "trn2.json").read_text())


def test_every_constant_says_where_it_comes_from() -> None:
    for name in targets.names():
        target = targets.load(name)
        assert set(target.sources.values()) <= targets.TAGS
    assert all(entry["note"] for entry in table().values())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.pop("psum_banks"), "psum_banks"),
        (lambda t: t.__setitem__("magic", {"value": 1, "source": "D"}), "magic"),
        (lambda t: t["psum_banks"].__setitem__("value", 8.5), "must be int"),
        (lambda t: t["psum_banks"].__setitem__("value", True), "must be int"),
        (lambda t: t["psum_banks"].__setitem__("source", "guess"), "source tag"),
    ],
)
def test_a_table_that_is_not_whole_is_refused(change: Any, text: str) -> None:
    wrong = table()
    change(wrong)
    with pytest.raises(TargetError, match=text):
        targets.parse("trn2", wrong)


def chip(
    role: str, p: int, f: int, *, dtype: str = "float32", buffer: str = "sbuf", step: int = 1
) -> Operand:
    return Operand(role, ((f * step, p), (step, f)), dtype, buffer, f * step, 0)


def hbm(role: str, dims: Dims, *, dtype: str = "float32") -> Operand:
    return Operand(role, dims, dtype, "hbm", dims[0][0], 0)


def cycles(form: Form, target: Any = TRN2) -> float:
    return OPERATORS[form.op].cost(form, target).busy_ns * target.clock_ghz(form.engine)


def product(dtype: str, n: int, *params: tuple[str, bool]) -> Form:
    operands = (
        chip("dst", 128, n, buffer="psum"),
        chip("stationary", 128, 128, dtype=dtype),
        chip("moving", 128, n, dtype=dtype),
    )
    return Form("nc_matmul", "tensor", operands, params)


def test_matmul_passes_and_overheads() -> None:
    assert cycles(product("bfloat16", 512)) == pytest.approx(512 + 4)
    assert cycles(product("float32", 512)) == pytest.approx(4 * (512 + 4))
    assert cycles(product("float32", 512, ("is_moving_onezero", True))) == pytest.approx(2 * (512 + 4))
    assert cycles(product("bfloat16", 8)) == pytest.approx(64 + 4)
    assert cycles(product("bfloat16", 512), TRN1) == pytest.approx(512 + 80)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (8, 8), (128, 8), (8, 63), (1, 64)])
def test_no_product_takes_less_than_64_cycles(rows: int, columns: int) -> None:
    """However few columns both operands have."""
    form = product("bfloat16", columns)
    narrow = replace(form.operands[1], dims=((128, 128), (1, rows)))
    form = replace(form, operands=(form.operands[0], narrow, form.operands[2]))
    assert cycles(form, TRN1) == pytest.approx(64 + 80)
    data = (chip("dst", columns, rows, buffer="psum"), chip("data", rows, columns))
    assert cycles(Form("nc_transpose", "tensor", data, ()), TRN1) == pytest.approx(2 * (max(rows, 64) + 80))


@pytest.mark.parametrize(
    ("dtype", "step", "factor"), [("bfloat16", 8, 1), ("bfloat16", 9, 2), ("float32", 5, 2)]
)
def test_strided_moving_operands_are_read_at_half_the_rate(dtype: str, step: int, factor: int) -> None:
    """Above 16 bytes; how the stationary operand lies does not matter."""
    form = product(dtype, 512)
    dst, stationary, moving = form.operands
    strided = replace(moving, dims=((512 * step, 128), (step, 512)))
    passes = 4 if dtype == "float32" else 1
    assert cycles(replace(form, operands=(dst, stationary, strided))) == pytest.approx(
        passes * (factor * 512 + 4)
    )
    weights = replace(stationary, dims=((128 * 64, 128), (64, 128)))
    assert cycles(replace(form, operands=(dst, weights, moving))) == cycles(form)


@pytest.mark.parametrize(("stationary", "moving"), [("float32", "tfloat32"), ("tfloat32", "float32")])
def test_the_wider_type_of_a_product_decides_its_passes(stationary: str, moving: str) -> None:
    """The documents allow the pair; only two narrow operands pass at once."""
    dst, left, right = product("tfloat32", 512).operands
    mixed = (dst, replace(left, dtype=stationary), replace(right, dtype=moving))
    assert cycles(replace(product("tfloat32", 512), operands=mixed)) == pytest.approx(4 * (512 + 4))
    assert cycles(product("tfloat32", 512)) == pytest.approx(512 + 4)


@pytest.mark.parametrize(
    ("dtype", "passes"),
    [
        ("float32", 2),
        ("int32", 2),
        ("uint32", 2),
        ("tfloat32", 2),
        ("bfloat16", 1),
        ("int16", 1),
        ("int8", 1),
    ],
)
def test_transposes_on_the_tensor_engine_pass_two_bytes_at_a_time(dtype: str, passes: int) -> None:
    data = (chip("dst", 128, 128, dtype=dtype, buffer="psum"), chip("data", 128, 128, dtype=dtype))
    assert cycles(Form("nc_transpose", "tensor", data, ())) == pytest.approx(passes * (128 + 4))


def test_large_matmuls_match_the_measured_totals() -> None:
    """4096 x 8192 x 8192: 6.93 ms in bf16 on trn1; fp32 on trn2 28.2 to 28.4 ms."""
    count = 32 * 64 * 16
    assert OPERATORS["nc_matmul"].cost(product("bfloat16", 512), TRN1).busy_ns * count / 1e6 == pytest.approx(
        6.93, rel=0.01
    )
    assert OPERATORS["nc_matmul"].cost(product("float32", 512), TRN2).busy_ns * count / 1e6 == pytest.approx(
        28.3, rel=0.01
    )


def pair(first: str, dtype: str = "float32", op: str = "add", engine: str = "vector") -> Form:
    operands = (
        chip("dst", 128, 512, dtype=dtype),
        chip("data1", 128, 512, dtype=dtype, buffer=first),
        chip("data2", 128, 512, dtype=dtype),
    )
    return Form("tensor_tensor", engine, operands, (("op", op),))


def test_two_input_instructions_pay_twice_on_trn1_unless_one_is_in_psum_or_narrow() -> None:
    assert cycles(pair("sbuf"), TRN1) == pytest.approx(2 * 512 + 110)
    assert cycles(pair("sbuf")) == pytest.approx(512 + 62)
    assert cycles(pair("psum")) == pytest.approx(512 + 50)
    assert cycles(pair("sbuf", "bfloat16", "maximum")) == pytest.approx(512 + 62)
    assert cycles(pair("sbuf", "bfloat16", "maximum"), TRN1) == pytest.approx(2 * 512 + 110)
    assert cycles(pair("sbuf", "bfloat16", "add"), TRN1) == pytest.approx(512 + 110)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_gpsimd_takes_longer_than_vector_for_two_inputs(target: Target) -> None:
    assert cycles(pair("sbuf", engine="gpsimd"), target) == pytest.approx(4 * 512 + 150)
    mine, other = (
        OPERATORS["tensor_tensor"].cost(pair("sbuf", engine=engine), target).busy_ns
        for engine in ("gpsimd", "vector")
    )
    assert 1.4 < mine / other < 4.0


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
@pytest.mark.parametrize("ops", [("rsqrt", None), ("add", "rsqrt"), ("rsqrt", "power")])
def test_roots_on_gpsimd_take_about_four_times_as_long_as_on_scalar(
    ops: tuple[str, str | None], target: Target
) -> None:
    operands = (chip("dst", 128, 4096), chip("data", 128, 4096))
    params = tuple((name, op) for name, op in zip(("op0", "op1"), ops, strict=True) if op)
    root = Form("tensor_scalar", "gpsimd", operands, params)
    scalar = Form("activation", "scalar", operands, (("op", "rsqrt"),))
    costs = [OPERATORS[form.op].cost(form, target).busy_ns for form in (root, scalar)]
    assert costs[0] / costs[1] == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("op", ["tensor_scalar_cumulative", "select_reduce"])
def test_what_has_no_figure_costs_as_a_scan_does(op: str) -> None:
    """Both take two inputs or carry a result from element to element."""
    operands = tuple(chip(role, 128, 512) for role in ("dst", "src", "data0", "data1"))
    form = Form(op, "vector", operands, (("op0", "add"), ("op1", "add")))
    assert cycles(form) == cycles(replace(form, op="tensor_tensor_scan")) == pytest.approx(2 * 512 + 62)


@pytest.mark.parametrize("op", ["register_load", "register_store"])
@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_registers_to_and_from_hbm_take_the_way_of_a_transfer(op: str, target: Target) -> None:
    register = Operand("dst", ((1, 1), (1, 1)), "int32", "register", 1, 0)
    near, far = (
        OPERATORS[op].cost(Form(op, "sync", (register, item), ()), target).busy_ns
        for item in (chip("src", 1, 1), hbm("src", ((1, 1), (1, 1))))
    )
    assert far - near == pytest.approx(target.dma_trigger_ns + target.dma_completion_ns)


@pytest.mark.parametrize(
    ("dtype", "out", "factor"),
    [
        ("bfloat16", "sbuf", 1), ("float16", "sbuf", 1), ("int16", "sbuf", 2), ("uint16", "sbuf", 2),
        ("bfloat16", "psum", 1),
    ],
)  # fmt: skip
def test_the_fast_mode_is_for_16_bit_floats_read_from_sbuf(dtype: str, out: str, factor: int) -> None:
    """Two times when both inputs are in SBUF and everything is bf16 or fp16, wherever the result goes."""
    form = pair("sbuf", dtype, "maximum")
    form = replace(form, operands=(replace(form["dst"], buffer=out), *form.operands[1:]))
    overhead = 62  # what counts is where the inputs are
    assert cycles(form) == pytest.approx(factor * 512 + overhead)
    mixed = replace(form, operands=(replace(form["dst"], dtype="float32"), *form.operands[1:]))
    assert cycles(mixed) == pytest.approx(2 * 512 + overhead)


@pytest.mark.parametrize(
    ("dtype", "buffer", "step", "speed"),
    [
        ("float32", "sbuf", 1, 1.6),
        ("bfloat16", "sbuf", 1, 4),
        ("bfloat16", "sbuf", 2, 2),
        ("bfloat16", "psum", 1, 2),
    ],
)
def test_copy_modes_of_the_vector_engine(dtype: str, buffer: str, step: int, speed: float) -> None:
    operands = (
        chip("dst", 128, 512, dtype=dtype),
        chip("src", 128, 512, dtype=dtype, buffer=buffer, step=step),
    )
    form = Form("tensor_copy", "vector", operands, ())
    overhead = 50 if buffer == "psum" else 62
    assert cycles(form) == pytest.approx(512 / speed + overhead)
    narrow = 512 + (60 if buffer == "psum" else 110)
    assert cycles(form, TRN1) == pytest.approx(narrow)


@pytest.mark.parametrize(
    ("dtype", "buffer", "step", "scalar", "vector"),
    [
        ("float32", "sbuf", 1, 1, 1.6),
        ("bfloat16", "sbuf", 1, 2, 4),
        ("float8_e5m2", "sbuf", 1, 2, 4),
        ("bfloat16", "psum", 1, 2, 2),
        ("bfloat16", "psum", 2, 1, 1),
    ],
)
def test_copy_modes_of_trainium3(dtype: str, buffer: str, step: int, scalar: float, vector: float) -> None:
    """ScalarE has VectorE's double rate for narrow types, and 8-bit floats are narrow."""
    operands = (
        chip("dst", 128, 512, dtype=dtype),
        chip("src", 128, 512, dtype=dtype, buffer=buffer, step=step),
    )
    for engine, speed in (("scalar", scalar), ("vector", vector)):
        overhead = getattr(TRN3, f"{engine}_overhead_{buffer}_cycles")
        form = Form("tensor_copy", engine, operands, ())
        assert cycles(form, TRN3) == pytest.approx(512 / speed + overhead)
        older = replace(form, engine="scalar")
        assert cycles(older, TRN2) == pytest.approx(512 + getattr(TRN2, f"scalar_overhead_{buffer}_cycles"))


def test_transposes_of_trainium3_s_tensor_engine_run_in_the_background() -> None:
    """Twice as fast on long chains [D]; in draws anything down to no gain at all."""
    data = (chip("dst", 128, 128, buffer="psum"), chip("data", 128, 128))
    form = Form("nc_transpose", "tensor", data, ())
    assert cycles(form, TRN3) == pytest.approx(cycles(form, TRN2) / 2)
    turned = product("bfloat16", 128, ("is_transpose", True))
    assert cycles(turned, TRN3) == pytest.approx(cycles(turned, TRN2) / 2)
    assert cycles(product("bfloat16", 128), TRN3) == cycles(product("bfloat16", 128), TRN2)
    reach = constant_ranges(TRN3)["tensor_transpose_speed"]
    assert (reach.low, reach.high) == (1.0, 2.0)


@pytest.mark.parametrize(("step", "factor"), [(4, 1), (5, 2)])
def test_strides_beyond_sixteen_bytes_halve_the_rate(step: int, factor: int) -> None:
    operands = (chip("dst", 128, 256), chip("data", 128, 256, step=step))
    form = Form("activation", "scalar", operands, (("op", "exp"), ("scale", 1.0)))
    assert cycles(form) == pytest.approx(256 * factor + 114 + 108)


def test_reductions_and_small_instructions() -> None:
    data, one = chip("data", 128, 512), chip("dst", 128, 1)
    plain = Form("tensor_reduce", "vector", (one, data), (("op", "add"), ("axis", (1,))))
    assert cycles(plain) == pytest.approx(512 + 62)
    summed = Form(
        "activation", "scalar", (chip("dst", 128, 512), data, chip("reduce_res", 128, 1)), (("op", "exp"),)
    )
    assert cycles(summed) == pytest.approx(512 + 114 + 108 + 64)
    small = Form("tensor_copy", "vector", (chip("dst", 128, 4), chip("src", 128, 4)), ())
    assert cycles(small) == pytest.approx(64 + 62)


def load(rows: int, row_bytes: int, *, step: int = 1) -> Form:
    count = row_bytes // 4
    return Form(
        "dma_copy", "dma", (chip("dst", rows, count), hbm("src", ((count * step, rows), (step, count)))), ()
    )


@pytest.mark.parametrize(
    ("row_bytes", "measured_ns"), [(4, 9), (256, 17), (512, 27), (2048, 83), (4096, 158)]
)
def test_a_descriptor_takes_as_long_as_in_profiles(row_bytes: int, measured_ns: float) -> None:
    busy_ns = OPERATORS["dma_copy"].cost(load(128, row_bytes), TRN2).busy_ns
    assert busy_ns == pytest.approx(8 * measured_ns, rel=0.06)


def test_long_rows_are_cut_and_strided_ones_need_a_descriptor_for_each_element() -> None:
    cost = OPERATORS["dma_copy"].cost
    one = 8.5 + 4096 / 27.4
    assert cost(load(128, 16384), TRN2).busy_ns == pytest.approx(8 * 4 * one)
    assert cost(load(4, 65536), TRN2).channels == 1
    assert cost(load(4, 65536), TRN2).busy_ns == pytest.approx(64 * one)
    assert cost(load(128, 4096, step=2), TRN2).busy_ns == pytest.approx(8 * 1024 * (8.5 + 4 / 27.4))


def test_transposing_dma_pays_for_narrow_types_only_a_share() -> None:
    def transposed(dtype: str) -> Form:
        dst = chip("dst", 128, 2048, dtype=dtype)
        return Form("dma_transpose", "dma", (dst, hbm("src", ((128, 2048), (1, 128)), dtype=dtype)), ())

    cost = OPERATORS["dma_transpose"].cost
    assert cost(transposed("bfloat16"), TRN2).busy_ns == pytest.approx(8 * (8.5 + 4096 / 27.4) / 0.9)
    assert cost(transposed("float32"), TRN2).busy_ns == pytest.approx(8 * 2048 * (8.5 + 4 / 27.4))
    # Every other column of the source: a descriptor for each element, as for wider types.
    dst, src = transposed("bfloat16").operands
    strided = replace(src, dims=((256, 2048), (2, 128)))
    form = replace(transposed("bfloat16"), operands=(dst, strided))
    assert cost(form, TRN2).busy_ns == pytest.approx(8 * 2048 * (8.5 + 2 / 27.4))
    # Rows of 64 bytes, each in a descriptor of its own.
    short = (chip("dst", 32, 2048, dtype="bfloat16"), hbm("src", ((64, 2048), (1, 32)), dtype="bfloat16"))
    expected = 2048 / 16 * (8.5 + 64 / 27.4) / 0.9
    assert cost(Form("dma_transpose", "dma", short, ()), TRN2).busy_ns == pytest.approx(expected)


def test_the_tight_bound_of_known_problems() -> None:
    """By hand, in ms: 11 us for a kernel, 1 us for a load to arrive, 0.7 us to trigger a transfer."""
    matmul = MinimalWork(
        read_bytes=4 * (4096 * 5120 + 5120 * 12288), write_bytes=4 * 4096 * 12288,
        matmul_flops=2 * 4096 * 12288 * 5120,
    )  # fmt: skip
    # 516 cycles for 512 columns. The clock is low for 3 us, and the first operand arrives after one.
    products = 515.396e9 / (78.643e12 / 4) * 1e3 * 516 / 512
    assert tight_bound(matmul, TRN2) == pytest.approx(products + (11 + 1 + 0.1 + 0.7 + 1) / 1e3, rel=1e-5)
    silu = MinimalWork(read_bytes=4 * 4096 * 7168, write_bytes=4 * 4096 * 7168)
    assert tight_bound(silu, TRN2) == pytest.approx(2 * 4 * 7168 * (8.5 + 4096 / 27.4) / 16e6 + 0.0117)
    # What is copied from HBM to HBM passes the DMA engines once, and HBM twice.
    copy = MinimalWork(read_bytes=10**9, write_bytes=10**9, copied_bytes=10**9)
    assert tight_bound(copy, TRN2) == pytest.approx(2000 / 716 + 0.0117)
    more = 1e10 / 4096 * (8.5 + 4096 / 27.4) / 16e6
    assert tight_bound(replace(copy, read_bytes=10**10), TRN2) == pytest.approx(more + 0.0117)
    exps = MinimalWork(read_bytes=0, write_bytes=0, activation_elements=128 * 10**6)
    assert tight_bound(exps, TRN2) == pytest.approx(1e6 / (1.2 + 1.2 / 4) / 1e6 + 0.011)
    stored = replace(exps, read_bytes=4, write_bytes=4)
    assert tight_bound(stored, TRN2) == pytest.approx(tight_bound(exps, TRN2) + 0.0018)


def test_few_products_are_made_at_the_low_clock() -> None:
    few = MinimalWork(read_bytes=0, write_bytes=0, matmul_flops=2 * 128 * 128 * 512, matmul_dtype="bfloat16")
    at_full_clock_ms = 516 / 2.4e6
    assert bound_parts_ms(few, TRN2)["tensor"] == pytest.approx(2 * at_full_clock_ms)
    many = replace(few, matmul_flops=1000 * few.matmul_flops)
    assert bound_parts_ms(many, TRN2)["tensor"] == pytest.approx(1000 * at_full_clock_ms + 0.0015)
    assert bound_parts_ms(few, TRN1)["tensor"] == pytest.approx((512 + TRN1.tensor_overhead_cycles) / 2.8e6)


@pytest.mark.parametrize(
    ("dtype", "trn1", "trn2", "trn3"),
    [
        ("float32", 22.94, 19.66, 20), ("tfloat32", 91.75, 78.64, 79), ("bfloat16", 91.75, 78.64, 79),
        ("float8_e5m2", 91.75, 157.29, 158),
    ],
)  # fmt: skip
def test_products_have_the_documented_peaks(dtype: str, trn1: float, trn2: float, trn3: float) -> None:
    """In TFLOPS: the documents say 91.75 and about 23 of NeuronCore-v2, 78.6, about 20 and 158 of v3."""
    assert peak_flops_per_ns(dtype, TRN1) / 1e3 == pytest.approx(trn1, abs=0.01)
    assert peak_flops_per_ns(dtype, TRN2) / 1e3 == pytest.approx(trn2, abs=0.01)
    assert peak_flops_per_ns(dtype, TRN3) / 1e3 == pytest.approx(trn3, rel=0.02)


@pytest.mark.parametrize("dtype", sorted(MX_DTYPES))
def test_only_trainium3_has_products_of_mx_types(dtype: str) -> None:
    """315 TFLOPS in the documents, four times those of bfloat16."""
    assert peak_flops_per_ns(dtype, TRN3) / 1e3 == pytest.approx(315, rel=0.005)
    assert peak_flops_per_ns(dtype, TRN3) == 4 * peak_flops_per_ns("bfloat16", TRN3)
    for target in (TRN1, TRN2):
        with pytest.raises(ValueError, match=f"{target.name} has no products of {dtype}"):
            peak_flops_per_ns(dtype, target)


def test_trainium3_s_documented_sizes_and_rates() -> None:
    """32 MiB of SBUF, 2 MiB of PSUM, 528 GB/s of DMA and an eighth of 144 GiB for a core."""
    assert TRN3.partitions * TRN3.sbuf_partition_bytes == 32 << 20
    assert TRN3.partitions * TRN3.psum_banks * TRN3.psum_bank_bytes == 2 << 20
    assert TRN3.dma_bytes_per_ns == pytest.approx(528)
    assert 8 * TRN3.hbm_bytes == 144 << 30
    clocks = [TRN3.clock_ghz(engine) for engine in ("tensor", "vector", "scalar", "gpsimd")]
    assert clocks == [2.4, 1.2, 1.2, 1.2]


def test_nothing_of_trainium3_is_measured_or_fitted() -> None:
    """What is not documented for it is inferred, and says from what."""
    entries = json.loads((Path(targets.__file__).parent / "trn3.json").read_text())
    assert {entry["source"] for entry in entries.values()} == {"D", "I"}
    inferred = {name: entry for name, entry in entries.items() if entry["source"] == "I"}
    assert all("trn2" in entry["note"] or "A3" in entry["note"] for entry in inferred.values())
    taken_over = {name for name, entry in inferred.items() if entry["note"].startswith("as on")}
    assert [name for name in taken_over if getattr(TRN3, name) != getattr(TRN2, name)] == []


def test_vector_s_exponential_loosens_the_bound_of_activations() -> None:
    exps = MinimalWork(read_bytes=0, write_bytes=0, activation_elements=128 * 10**6)
    lanes_per_ns = 1.2 + 1.2 / 4 + 4 * 1.2
    assert bound_parts_ms(exps, TRN3)["activation"] == pytest.approx(1e6 / lanes_per_ns / 1e6)
    both = replace(exps, elementwise_elements=exps.activation_elements)
    plain = replace(both, activation_elements=0)
    assert bound_parts_ms(both, TRN3)["elementwise"] < bound_parts_ms(plain, TRN3)["elementwise"]
    assert bound_parts_ms(both, TRN2)["elementwise"] == bound_parts_ms(plain, TRN2)["elementwise"]


@given(
    sizes=st.tuples(*[st.integers(0, 10**9)] * 5), more=st.integers(1, 10**9), at=st.integers(0, 4),
    dtype=st.sampled_from(["float32", "bfloat16", "float8_e4m3"]),
)  # fmt: skip
def test_more_work_never_lowers_the_bound(sizes: tuple[int, ...], more: int, at: int, dtype: str) -> None:
    names = ("read_bytes", "write_bytes", "matmul_flops", "activation_elements", "elementwise_elements")
    work = MinimalWork(**dict(zip(names, sizes, strict=True)), matmul_dtype=dtype, elementwise_dtype=dtype)
    larger = replace(work, **{names[at]: sizes[at] + more})
    # Of the same elements, more may be exponentials, of which VectorE takes four at a time on trn3.
    for target in (TRN2,) if names[at] == "activation_elements" else (TRN2, TRN3):
        assert tight_bound(larger, target) >= tight_bound(work, target) >= target.kernel_overhead_ns / 1e6
    assert all(value >= 0 for value in bound_parts_ms(work, TRN1).values())
