"""Checks what instructions are refused for although every buffer has its place: types, and PSUM banks."""

from __future__ import annotations

from collections.abc import Iterator

from nki_sim import targets
from nki_sim.dtypes import DTYPES
from targets.nki.knobs.capacity import buffer_dtype, row_bytes
from targets.nki.knobs.ir import SCOPES, KernelIR, Scope
from targets.nki.knobs.placement import Placement
from targets.nki.knobs.plan import Buffer, PlanStep
from targets.nki.knobs.report import CheckFailure, KnobFix


def instruction_failures(ir: KernelIR, place: Placement) -> Iterator[CheckFailure]:
    """Yield the failures of instructions in an IR without contradictions."""
    for step in ir.plan.steps:
        if step.operator == "NKIMatmul":
            yield from _dtype_failures(ir, place, step)
    for buffer in ir.plan.buffers:
        if buffer.memory == "psum":
            yield from _bank_failures(ir, place, buffer)


def _dtype_failures(ir: KernelIR, place: Placement, step: PlanStep) -> Iterator[CheckFailure]:
    types = {name: buffer_dtype(ir, place, name) for _, name in step.operands}
    if len({dtype == "float32" for dtype in types.values()}) > 1:
        for name, dtype in types.items():
            source = ir.plan.producer[name].operands[0][1]
            buffer = ir.plan.buffer.get(source)
            if dtype == "float32" and buffer is not None and buffer.partial is not None:
                fix = (((SCOPES, source, buffer.partial), Scope.FULL),)
                pair = ", ".join(f"{key} {item}" for key, item in types.items())
                detail = f"{name} is summed block by block in float32, which goes with float32 alone: {pair}"
                yield CheckFailure("matmul_dtype", name, buffer.partial, detail, fix)


def _bank_failures(ir: KernelIR, place: Placement, buffer: Buffer) -> Iterator[CheckFailure]:
    """An instruction of the tensor engine writes to one bank: rows that straddle two are refused."""
    limit = targets.load(ir.graph.target).psum_bank_bytes
    step = ir.plan.producer[buffer.name]
    dim = buffer.core_dims[1]
    row = ir.tiles_in_scope(dim, place.spans[step.number, dim]) * ir.graph.dim[dim].tile
    written = row * DTYPES[buffer_dtype(ir, place, buffer.name)].itemsize
    if row_bytes(ir, place, buffer) > limit and limit % written:
        fix: KnobFix = tuple(((SCOPES, buffer.name, dim), Scope.PER_TILE) for dim in buffer.dims)
        detail = f"rows of {written} bytes in {buffer.name} lie over two banks of {limit} bytes"
        yield CheckFailure("psum_bank", buffer.name, dim, detail, fix)
