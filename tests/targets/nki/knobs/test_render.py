"""The text of kernels."""

from __future__ import annotations

import ast

import pytest

from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.ir import Scope
from targets.nki.knobs.narrowing import widest_ir
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.tracing import trace_workload
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from tests.support.workloads import TARGET, WORKLOADS, matmul

ORDER = ("d2.block", "d2.tile", "d0.block", "d0.tile", "d1.block", "d1.tile")

KERNEL = '''\
"""matmul, lowered from three knobs; a tile is what one instruction takes.

d0: 256 = 2 blocks of 1 tiles of 128
d1: 256 = 2 blocks of 1 tiles of 128
d2: 512 = 1 blocks of 1 tiles of 512
loops, from the outside in: d2.block d2.tile d0.block d0.tile d1.block d1.tile
"""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def matmul(lhs, rhs):
    assert lhs.shape == (256, 256)
    assert rhs.shape == (256, 512)
    output = nl.ndarray((256, 512), dtype=nl.bfloat16, buffer=nl.shared_hbm)

    sbuf_rhs = nl.ndarray((128, 2, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    for i_d1 in range(2):
        nisa.dma_copy(dst=sbuf_rhs[:, i_d1, :], src=rhs[nl.ds(i_d1 * 128, 128), 0:512])
    for i_d0 in range(2):
        sbuf_lhs = nl.ndarray((128, 256), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=sbuf_lhs, src=lhs[nl.ds(i_d0 * 128, 128), 0:256])
        psum_lhs_T = nl.ndarray((128, 2, 128), dtype=nl.bfloat16, buffer=nl.psum)
        sbuf_lhs_T = nl.ndarray((128, 2, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
        psum_output = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for i_d1 in range(2):
            nisa.nc_transpose(dst=psum_lhs_T[:, i_d1, :], data=sbuf_lhs[:, nl.ds(i_d1 * 128, 128)])
            nisa.tensor_copy(dst=sbuf_lhs_T[:, i_d1, :], src=psum_lhs_T[:, i_d1, :])
            nisa.nc_matmul(dst=psum_output, stationary=sbuf_lhs_T[:, i_d1, :], moving=sbuf_rhs[:, i_d1, :])
        sbuf_output = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=sbuf_output, src=psum_output)
        nisa.dma_copy(dst=output[nl.ds(i_d0 * 128, 128), 0:512], src=sbuf_output)
    return output
'''


def test_a_kernel_reads_as_a_person_would_write_it() -> None:
    graph = trace_workload(matmul, {"lhs": ((256, 256), "bfloat16"), "rhs": ((256, 512), "bfloat16")})
    ir = widest_ir(graph, ORDER)
    for buffer in ("sbuf_lhs", "psum_lhs_T", "sbuf_lhs_T", "psum_output", "sbuf_output"):
        ir = ir.with_knob(("buffer_scopes", buffer, "d0"), Scope.PER_TILE)
    assert render_kernel(ir) == KERNEL


@pytest.mark.parametrize("name", WORKLOADS)
def test_rendering_is_repeatable_and_lines_are_short(name: str) -> None:
    ir = WORKLOADS[name].default
    source = render_kernel(ir)
    assert source == render_kernel(ir)
    assert max(map(len, source.splitlines())) <= 110
    ast.parse(source)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_rewrite_engine_can_read_what_is_rendered(name: str) -> None:
    workload = WORKLOADS[name]
    arguments = [ArrayArgument(shape, dtype) for shape, dtype in workload.specs.values()]
    kernel = read_kernel(render_kernel(workload.default), arguments, TARGET)
    assert kernel is not None


def test_invalid_knobs_are_not_rendered() -> None:
    graph = WORKLOADS["matmul"].graph
    with pytest.raises(KnobError, match=r"set buffer_scopes\[psum_output\]\[d1\] to FULL"):
        render_kernel(
            widest_ir(graph, ORDER).with_knob(("buffer_scopes", "psum_output", "d1"), Scope.PER_BLOCK)
        )
