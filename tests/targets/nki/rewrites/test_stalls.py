"""Waits inside iterations: what an engine needs of others holds it up, unless it can look past it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from targets.nki.rewrites.estimate import estimate_kernel, statement_ns
from targets.nki.rewrites.kernel_ir import ArrayArgument, Kernel
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.stalls import busy_and_stalled_ns
from tests.support.kernels import HEADER, TARGET, Sample
from tests.support.rewrite_outcomes import find_rewrite

TURNS = """
P = 128

@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // P):
        rows = nl.ndarray((P, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * P : (i + 1) * P, 0:n])
        turned = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
        for q in nl.affine_range(n // P):
            part = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=part, data=rows[:, q * P : (q + 1) * P])
            nisa.tensor_copy(dst=turned[:, q * P : (q + 1) * P], src=part)
        exps = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=exps, op=nl.tanh, data={between})
        back = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
        for q in nl.affine_range(n // P):
            again = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=again, data=exps[:, q * P : (q + 1) * P])
            nisa.tensor_copy(dst=back[:, q * P : (q + 1) * P], src=again)
        nisa.dma_copy(dst=out[i * P : (i + 1) * P, 0:n], src=back)
    return out
"""


def kernel(source: str, columns: int) -> Kernel:
    return read_kernel(source, [ArrayArgument((512, columns), "float32")], TARGET)


def turns(columns: int = 2048, between: str = "turned") -> tuple[dict[str, float], dict[str, float]]:
    """(busy, busy or waiting) nanoseconds of the engines."""
    found = kernel(HEADER + TURNS.format(between=between), columns)
    costs = {item: statement_ns(item, TARGET) for item in found.operations()}
    return dict(estimate_kernel(found, TARGET).busy_ns), busy_and_stalled_ns(found, costs, TARGET)


def test_an_engine_waits_for_what_another_makes_of_its_results():
    busy, spent = turns()
    tanh = 4 * (2048 + TARGET.scalar_overhead_sbuf_cycles) / TARGET.scalar_clock_ghz
    assert spent["tensor"] - busy["tensor"] >= tanh
    assert spent["scalar"] == pytest.approx(busy["scalar"])


def test_it_does_not_wait_for_what_is_there_anyway():
    busy, spent = turns(between="rows")
    assert spent["tensor"] == pytest.approx(busy["tensor"])


def test_it_looks_past_a_few_instructions():
    busy, spent = turns(columns=256)
    assert spent["tensor"] == pytest.approx(busy["tensor"])


def test_an_estimate_knows_what_distribution_is_for():
    sample = Sample(HEADER + TURNS.format(between="turned"), ((512, 2048),), lambda x: x)
    source = find_rewrite(sample, "distribute", "i before nc_transpose to again", {"iterations": 2})
    before, after = (estimate_kernel(kernel(text, 2048), TARGET) for text in (sample.source, source))
    assert after.busy_ns == before.busy_ns
    assert after.total_ns < 0.9 * before.total_ns


def test_an_estimate_knows_what_pipelining_is_for():
    sample = Sample(HEADER + TURNS.format(between="turned"), ((2048, 2048),), lambda x: x)
    source = find_rewrite(sample, "pipeline", "i before activation to exps", {})
    before, after = (
        estimate_kernel(read_kernel(text, sample.arguments, TARGET), TARGET)
        for text in (sample.source, source)
    )
    assert after.busy_ns == pytest.approx(before.busy_ns)
    assert after.total_ns < 0.9 * before.total_ns


BEFORE_A_TAIL = """
P = 128

@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // P - 1):
        rows = nl.ndarray((P, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * P : (i + 1) * P, 0:n])
        exps = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=exps, op=nl.tanh, data=rows)
        nisa.dma_copy(dst=out[i * P : (i + 1) * P, 0:n], src=exps)
    rest = nl.ndarray((P, n), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rest, src=x[m - P : m, 0:n])
    nisa.dma_copy(dst=out[m - P : m, 0:n], src=rest)
    return out
"""


def test_the_last_transfer_waits_for_no_loop_that_is_over():
    made = estimate_kernel(kernel(HEADER + BEFORE_A_TAIL, 2048), TARGET)
    assert made.busiest_engine == "dma"
    assert made.total_ns < TARGET.kernel_overhead_ns + 1.5 * made.busy_ns["dma"]


TWO_TILES = """
P = 128

@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((2, m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // P):
        rows = nl.ndarray((P, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * P : (i + 1) * P, 0:n])
        soon = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
        late = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
        for q in nl.affine_range(n // P):
            part = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=part, data=rows[:, q * P : (q + 1) * P])
            nisa.tensor_copy(dst=soon[:, q * P : (q + 1) * P], src=part)
            nisa.tensor_tensor(
                dst=late[:, q * P : (q + 1) * P], data1=soon[:, q * P : (q + 1) * P],
                data2=soon[:, q * P : (q + 1) * P], op=nl.multiply, engine=nisa.engine.gpsimd,
            )
        for q in nl.affine_range(n // P):
            first = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=first, data={first}[:, q * P : (q + 1) * P])
            one = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=one, src=first)
            nisa.dma_copy(dst=out[0, i * P : (i + 1) * P, q * P : (q + 1) * P], src=one)
        for q in nl.affine_range(n // P):
            second = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=second, data={second}[:, q * P : (q + 1) * P])
            two = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=two, src=second)
            nisa.dma_copy(dst=out[1, i * P : (i + 1) * P, q * P : (q + 1) * P], src=two)
    return out
"""


def wait_of_tensor_engine(first: str, second: str) -> tuple[float, Mapping[str, float]]:
    """Nanoseconds for which the tensor engine waits if it takes one tile before the other; all busy times."""
    found = kernel(HEADER + TWO_TILES.format(first=first, second=second), 2048)
    costs = {item: statement_ns(item, TARGET) for item in found.operations()}
    busy = estimate_kernel(found, TARGET).busy_ns
    return busy_and_stalled_ns(found, costs, TARGET)["tensor"] - busy["tensor"], busy


def test_a_tile_is_ready_when_those_that_make_it_are_done():
    assert 0 < wait_of_tensor_engine("soon", "late")[0] < wait_of_tensor_engine("late", "soon")[0]


def test_time_that_a_result_lay_ready_is_not_taken_back():
    waited, busy = wait_of_tensor_engine("late", "soon")
    assert waited == pytest.approx(busy["gpsimd"] - busy["tensor"] / 3 + 4 * TARGET.semaphore_ns)
