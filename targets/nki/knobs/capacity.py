"""Computes the peak use of SBUF and PSUM by an IR, and the buffers that are live at the peak.

A buffer counts from the first to the last item of its loop that uses it, which is never less than the
simulator counts. SBUF is counted in bytes per partition, PSUM in banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nki_sim import targets
from nki_sim.dtypes import DTYPES
from nki_sim.targets import Target
from targets.nki.knobs.ir import KernelIR
from targets.nki.knobs.nest import BufferLifetimes, LoopNest, buffer_lifetimes
from targets.nki.knobs.operators import PARTIAL, SCRATCH, TileUse
from targets.nki.knobs.placement import Placement
from targets.nki.knobs.plan import Buffer, PlanStep

MEMORIES = ("sbuf", "psum")
UNITS = {"sbuf": "bytes per partition", "psum": "banks"}
COLUMN_BYTES = 4


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The peak use of a memory, and the buffers that are live then."""

    taken: int
    buffers: tuple[str, ...]


def memory_capacity(memory: str, target: Target) -> int:
    """The size of a memory, in its unit."""
    return target.sbuf_usable_bytes if memory == "sbuf" else target.psum_banks


def buffer_dtype(ir: KernelIR, place: Placement, buffer: str) -> str:
    """The type of a buffer's elements: sums that accumulate block by block are float32."""
    step = ir.plan.producer[buffer]
    result = ir.plan.buffer[buffer]
    if result.memory == "psum":
        return "float32" if step.reduced_dim else buffer_dtype(ir, place, step.operands[0][1])
    if is_accumulated(ir, place, step):
        return "float32"
    name = buffer.removeprefix("sbuf_")
    return ir.graph.value[name].dtype if len(result.core_dims) > 1 else "float32"


def is_accumulated(ir: KernelIR, place: Placement, step: PlanStep) -> bool:
    """Whether a step adds to its result in SBUF over loop iterations."""
    result = ir.plan.buffer.get(step.result)
    if result is None or result.memory == "psum":
        return False
    return any(ir.trip_count(loop) > 1 for loop in place.reduced[step.number])


def is_initialized(ir: KernelIR, place: Placement, buffer: str) -> bool:
    """Whether a buffer is initialised when it is created, as the start of a sum or of carried state."""
    step = ir.plan.producer[buffer]
    return (buffer == step.state and step.entry.carries is not None) or is_accumulated(ir, place, step)


def buffer_extent(ir: KernelIR, buffer: Buffer) -> tuple[int, int]:
    """The number of partition tiles in a buffer, and of elements in each row; 1 for a column."""
    counts = [ir.held_tiles(buffer.name, dim) for dim in buffer.dims]
    row = counts[-1] * ir.graph.dim[buffer.dims[-1]].tile if len(buffer.core_dims) > 1 else 1
    return prod(counts[: buffer.lead + 1]), row


def memory_taken(ir: KernelIR, place: Placement, buffer: Buffer, target: Target) -> int:
    """The amount of its memory that a buffer takes."""
    nbytes = row_bytes(ir, place, buffer)
    return nbytes if buffer.memory == "sbuf" else -(-nbytes // target.psum_bank_bytes)


def row_bytes(ir: KernelIR, place: Placement, buffer: Buffer) -> int:
    """Bytes of a buffer per partition."""
    tiles, row = buffer_extent(ir, buffer)
    return tiles * row * DTYPES[buffer_dtype(ir, place, buffer.name)].itemsize


def memory_peaks(ir: KernelIR, place: Placement, nest: LoopNest) -> dict[str, MemoryPeak]:
    """The peak of each memory."""
    target = targets.load(ir.graph.target)
    homes = buffer_lifetimes(ir, place, nest)
    return {memory: _find_peak(_PeakContext(ir, place, homes, target, memory), nest) for memory in MEMORIES}


@dataclass(frozen=True)
class _PeakContext:
    """The context that `_find_peak` counts in."""

    ir: KernelIR
    place: Placement
    homes: BufferLifetimes
    target: Target
    memory: str


def _find_peak(count: _PeakContext, nest: LoopNest) -> MemoryPeak:
    mine = [
        buffer
        for buffer in count.ir.plan.buffers
        if buffer.memory == count.memory and count.homes.loops.get(buffer.name) is nest
    ]
    sizes = {buffer.name: memory_taken(count.ir, count.place, buffer, count.target) for buffer in mine}
    best = MemoryPeak(0, ())
    for number, item in enumerate(nest.items):
        inner = (
            _find_peak(count, item)
            if isinstance(item, LoopNest)
            else MemoryPeak(_scratch_size(count, item), ())
        )
        live = [name for name in sizes if count.homes.used[name][0] <= number <= count.homes.used[name][1]]
        taken = inner.taken + sum(sizes[name] for name in live)
        if taken > best.taken:
            best = MemoryPeak(taken, (*live, *inner.buffers))
    return best


def _scratch_size(count: _PeakContext, number: int) -> int:
    """The memory that a step needs besides its buffers."""
    step = count.ir.plan.steps[number]
    if count.memory != "sbuf":
        return 0
    uses = scratch_tiles(count.ir, count.place, step)
    nbytes = {PARTIAL: COLUMN_BYTES, SCRATCH: COLUMN_BYTES * row_elements(count.ir, count.place, step)}
    return sum(nbytes[name] for name in uses)


def scratch_tiles(ir: KernelIR, place: Placement, step: PlanStep) -> tuple[str, ...]:
    """The scratch tiles that a step's instructions use."""
    made = step.entry.emit(dict(step.settings), is_accumulated(ir, place, step))
    found = [use.slot for item in made for _, use in item.arguments if isinstance(use, TileUse)]
    return tuple(name for name in (PARTIAL, SCRATCH) if name in found)


def row_elements(ir: KernelIR, place: Placement, step: PlanStep) -> int:
    """Row length, in elements, of what a step takes at once of its first operand."""
    dims = ir.plan.core_of(step.operands[0][1])
    if len(dims) == 1:
        return 1
    return ir.tiles_in_scope(dims[1], place.spans[step.number, dims[1]]) * ir.graph.dim[dims[1]].tile
