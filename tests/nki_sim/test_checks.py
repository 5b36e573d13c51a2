"""The rules that only a whole program shows: capacity, initialisation, outputs, accumulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.checks.program import Violation
from nki_sim.checks.warnings import find_warnings
from nki_sim.compiler.compiled_program import TRACED
from nki_sim.compiler.pass_pipeline import compile_program

X = ArraySpec((128, 512), "float32")
TRN2 = targets.load("trn2")


def found(program: Any) -> list[Violation]:
    return checks.check(program, TRN2)


def only(program: Any) -> Violation:
    (violation,) = found(program)
    return violation


def kernel(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return f"""
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
{lines}
    return out
"""


def test_a_correct_kernel_breaks_nothing(tracing: Any, texts: Any) -> None:
    args = ArraySpec((256, 256), "float32"), ArraySpec((256, 1024), "float32")
    assert found(tracing(texts.matmul, *args)) == []


def capacity(words: int, count: int, partitions: int = 128) -> str:
    return kernel(f"""
tiles = []
for i in range({count}):
    t = nl.ndarray(({partitions}, {words}), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(t, 0.0)
    tiles.append(t)
nisa.dma_copy(dst=out, src=x)
for t in tiles:
    nisa.tensor_scalar(t, t, nl.add, 1.0)
""")


def test_sbuf_may_be_full_to_the_last_byte(tracing: Any) -> None:
    words = TRN2.sbuf_usable_bytes // 4 // 4
    assert found(tracing(capacity(words, 4), X)) == []


def test_sbuf_overflow_names_the_tiles_that_take_the_room(tracing: Any) -> None:
    words = TRN2.sbuf_usable_bytes // 4 // 4
    program = tracing(capacity(words + 1, 4), X)
    assert found(program) == []
    (violation,) = find_warnings(program, TRN2)
    assert (violation.code, violation.tensor) == ("sbuf_spill", "t")
    assert (violation.limit, violation.value) == (TRN2.sbuf_usable_bytes, TRN2.sbuf_usable_bytes + 16)
    assert f"4 x {4 * words + 4}" in violation.message


@pytest.mark.parametrize(
    ("partitions", "count", "fits"),
    [(64, 2, True), (64, 3, False), (65, 1, True), (65, 2, False), (32, 4, True), (32, 5, False)],
)
def test_tiles_of_few_partitions_lie_above_one_another(
    tracing: Any, partitions: int, count: int, fits: bool
) -> None:
    body = capacity(TRN2.sbuf_usable_bytes // 4, count, partitions)
    program = tracing(body, X)
    assert found(program) == []
    assert [item.code for item in find_warnings(program, TRN2)] == ([] if fits else ["sbuf_spill"])


def test_only_values_that_are_needed_at_once_are_spilled(tracing: Any) -> None:
    """Two tiles, each written anew before every use: their values never lie in SBUF together."""
    body = """
a, b = (nl.ndarray((128, {words}), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
nisa.dma_copy(dst=out, src=x)
for _ in range(3):
    for t in (a, b):
        nisa.memset(t, 0.0)
        nisa.tensor_scalar(t, t, nl.add, 1.0)
"""
    words = TRN2.sbuf_usable_bytes // 4 * 3 // 4
    program = tracing(kernel(body.format(words=words)), X)
    assert find_warnings(program, TRN2) == []
    in_place = replace(TRN2, address_rotation=False)
    (warning,) = find_warnings(program, in_place)
    assert (warning.code, warning.value) == ("sbuf_spill", 2 * 4 * words)
    for target, spills in ((TRN2, False), (in_place, True)):
        assert (compile_program(program, target).origins.max() > TRACED) == spills


def test_no_tile_is_longer_than_a_partition(tracing: Any) -> None:
    body = capacity(TRN2.sbuf_usable_bytes // 4 + 1, 1, partitions=1)
    assert only(tracing(body, X)).value == TRN2.sbuf_usable_bytes + 4


def test_tiles_of_past_iterations_give_their_room_back(tracing: Any) -> None:
    body = """
nisa.dma_copy(dst=out, src=x)
for i in range(20):
    t = nl.ndarray((128, 30000), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(t, 0.0)
"""
    assert found(tracing(kernel(body), X)) == []


@pytest.mark.parametrize(("live", "code"), [(8, []), (9, ["psum_capacity"])])
def test_psum_has_eight_banks(live: int, code: list[str], tracing: Any) -> None:
    body = f"""
nisa.dma_copy(dst=out, src=x)
banks = []
for i in range({live}):
    acc = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(acc, 0.0)
    banks.append(acc)
for acc in banks:
    nisa.tensor_scalar(acc, acc, nl.add, 1.0)
"""
    assert [item.code for item in found(tracing(kernel(body), X))] == code


def test_an_output_must_be_written_to_the_last_element(tracing: Any) -> None:
    good = kernel("nisa.dma_copy(out[0:100, :], x[0:100, :])\nnisa.dma_copy(out[64:128, :], x[64:128, :])")
    assert found(tracing(good, X)) == []
    bad = kernel("nisa.dma_copy(out[0:100, :], x[0:100, :])\nnisa.dma_copy(out[101:128, :], x[101:128, :])")
    violation = only(tracing(bad, X))
    assert (violation.code, violation.tensor, violation.value) == ("tensor_output_not_written_to", "out", 512)


def test_an_output_that_nothing_touches(tracing: Any) -> None:
    violation = only(tracing(kernel("pass"), X))
    assert (violation.code, violation.value) == ("tensor_output_not_written_to", 128 * 512)
    assert violation.line == 9


@pytest.mark.parametrize("columns", [512, 511])
def test_reads_of_memory_that_nobody_wrote(columns: int, tracing: Any) -> None:
    body = f"""
t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=t[:, 0:{columns}], src=x[:, 0:{columns}])
nisa.dma_copy(dst=out, src=t)
"""
    broken = found(tracing(kernel(body), X))
    codes = [(item.code, item.tensor, item.line) for item in broken]
    assert codes == ([] if columns == 512 else [("uninitialised_read", "t", 12)])
    assert all(item.message.endswith("(declared in line 10)") for item in broken)


def test_strided_writes_cover_together(tracing: Any) -> None:
    body = """
t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=t[:, 0:512:2], src=x[:, 0:256])
nisa.dma_copy(dst=t[:, 1:512:2], src=x[:, 256:512])
nisa.dma_copy(dst=out, src=t)
"""
    assert found(tracing(kernel(body), X)) == []


def accumulation(first: str) -> str:
    return kernel(f"""
t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=x)
acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
{first}
nisa.nc_matmul(acc, t[:, 0:128], t, accumulate=True)
r = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_copy(r, acc)
nisa.dma_copy(dst=out, src=r)
""")


LEFT = "nisa.nc_matmul(acc[:, 0:256], t[:, 0:128], t[:, 0:256], accumulate=False)"


@pytest.mark.parametrize(
    ("first", "codes"),
    [
        ("nisa.nc_matmul(acc, t[:, 0:128], t, accumulate=False)", []),
        ("nisa.memset(acc, 0.0)", ["psum_accumulate_undefined"]),
        ("nisa.memset(acc, 0.0)\nnisa.nc_matmul(acc, t[:, 0:128], t, accumulate=False)", []),
        (f"{LEFT}\nnisa.nc_matmul(acc[:, 256:512], t[:, 0:128], t[:, 256:512], accumulate=False)", []),
        (f"nisa.memset(acc, 0.0)\n{LEFT}", ["psum_accumulate_undefined"]),
        ("nisa.nc_matmul(acc, t[:, 0:128], t, accumulate=False)\nnisa.memset(acc[:, 0:1], 0.0)",
         ["psum_accumulate_undefined"]),
        ("pass", ["uninitialised_read"]),
    ],
)  # fmt: skip
def test_accumulation_starts_with_a_matmul(first: str, codes: list[str], tracing: Any) -> None:
    assert [item.code for item in found(tracing(accumulation(first), X))] == codes


def test_a_part_of_a_product_is_a_matmuls_too(tracing: Any) -> None:
    """What counts is who wrote the elements, not through which view of the tile."""
    first = "nisa.memset(acc, 0.0)\nnisa.nc_matmul(acc, t[:, 0:128], t, accumulate=False)"
    text = accumulation(first).replace(
        "nisa.nc_matmul(acc, t[:, 0:128], t, accumulate=True)",
        "nisa.nc_matmul(acc[:, 8:16], t[:, 0:128], t[:, 8:16], accumulate=True)",
    )
    assert found(tracing(text, X)) == []


def test_inputs_are_read_only(tracing: Any) -> None:
    violation = only(tracing(kernel("nisa.dma_copy(dst=x, src=x)\nnisa.dma_copy(dst=out, src=x)"), X))
    assert (violation.code, violation.tensor) == ("cannot_update_immutable_parameter", "x")


def test_hbm_is_finite_and_huge_tensors_are_refused_before_they_are_walked(tracing: Any) -> None:
    body = (
        "y = nl.ndarray((1 << 20, 1 << 19), dtype=nl.float32, buffer=nl.private_hbm)\nnisa.dma_copy(out, x)"
    )
    violation = only(tracing(kernel(body), X))
    assert (violation.code, violation.tensor) == ("hbm_capacity", "y")
