"""Occupancy: what the source says is alive at once is what a traced program needs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import nki_sim
import seeds
from nki_sim import ArraySpec
from nki_sim.timing import memory
from targets.nki.rewrites.estimate import peak_occupancy, tile_banks, tile_sbuf_bytes
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from tests.support.kernels import HEADER, TARGET

NAMES = ["add_rmsnorm_matmul", "bmm_softmax", "gqa_full", "lora", "rope_single_freq_apply", "swiglu"]


def trace_high_water(source: str, shapes: list[tuple[int, ...]], buffer: str) -> int:
    """The high-water mark of a traced program, over lifetimes in program order."""
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in shapes])
    life = memory.tensor_lifetimes(program)
    use = np.zeros(len(program) + 1, dtype=np.int64)
    for tensor, number in enumerate(program.tensor_sites.tolist()):
        site = program.sites[number]
        if site.buffer == buffer and life.first[tensor] >= 0:
            use[life.first[tensor]] += memory.tile_footprint(site, TARGET)
            use[life.last[tensor] + 1] -= memory.tile_footprint(site, TARGET)
    return int(np.cumsum(use).max())


def estimate_high_water(source: str, shapes: list[tuple[int, ...]], buffer: str) -> int:
    kernel = read_kernel(source, [ArrayArgument(shape, "float32") for shape in shapes], TARGET)
    return peak_occupancy(
        kernel, buffer, partial(tile_sbuf_bytes if buffer == "sbuf" else tile_banks, target=TARGET)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("buffer", ["sbuf", "psum"])
def test_kernels_need_what_their_traces_need(name: str, buffer: str):
    problem = seeds.load_problem(name)
    shapes = [tuple(item.resolve_shape(problem.spec.dims("reduced"))) for item in problem.spec.inputs]
    assert estimate_high_water(problem.kernel, shapes, buffer) == trace_high_water(
        problem.kernel, shapes, buffer
    )


CARRIED = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
    idle = nl.ndarray((128, 4 * n), dtype=x.dtype, buffer=nl.sbuf)
    for i in nl.affine_range(m // 128):
        if i == 0:
            nisa.memset(dst=kept, value=2.0)
        t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, :])
        u = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=u, data1=t, data2=kept, op=nl.multiply)
        v = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=v, src=u)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=v)
    return out
"""


def test_what_outlives_an_iteration_is_alive_in_all_of_them_and_what_nobody_uses_is_not():
    """t, u and what is kept together; v only lives when t is no longer needed."""
    shapes = [(256, 64)]
    assert (
        estimate_high_water(HEADER + CARRIED, shapes, "sbuf")
        == trace_high_water(HEADER + CARRIED, shapes, "sbuf")
        == 3 * 64 * 4
    )
