"""Compiles a program: the current namespace renames values of tiles, the legacy one rewrites the kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nki_sim.compiler.broadcast import multiply_broadcasts
from nki_sim.compiler.compiled_program import CompiledProgram, compile_unchanged
from nki_sim.compiler.engine_assignment import assign_engines
from nki_sim.compiler.hoist import hoist_computation
from nki_sim.compiler.kept_loads import keep_loads
from nki_sim.compiler.load_streaming import stream_loads
from nki_sim.compiler.masked_tails import widen_products
from nki_sim.compiler.narrow_reloads import narrow_reloads
from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.compiler.psum_placement import place_in_psum
from nki_sim.compiler.residency import plan_residency
from nki_sim.compiler.sbuf_tiles import SbufTiles
from nki_sim.compiler.spill import insert_spills
from nki_sim.compiler.tile_arrays import find_split_tiles
from nki_sim.compiler.tile_values import rename_values, rotates_addresses
from nki_sim.flow.chip_memory import tile_footprint
from nki_sim.program.ir import Program
from nki_sim.targets import Target

_CoreResidency = tuple[SbufTiles, list[int]]
"""The tiles of a core, and their evictions and reloads (`plan_residency`)."""


def compile_program(program: Program, target: Target) -> CompiledProgram:
    """Return the instructions that run on a target.

    Programs with loops whose bounds depend on data run as traced, because their iterations are unknown.
    """
    if program.loops:
        return compile_unchanged(program)
    draft = ProgramDraft(program)
    if program.dialect != "neuronxcc":
        if rotates_addresses(program, target):
            rename_values(draft)
        _fit_sbuf(draft, target)
        return draft.build_program() if draft.is_changed else compile_unchanged(program)
    assign_engines(draft)
    before = len(draft.tensor_sites)
    _stream_arrays(draft, target)
    streams = len(draft.tensor_sites) > before
    twins = hoist_computation(draft, computed=not streams)
    multiply_broadcasts(draft, target)
    place_in_psum(draft, target)
    if streams:
        walks = _plan_cores(draft, target)
    else:
        keep_loads(draft, target, twins)
        walks = _stream_arrays(draft, target)
    _move_tiles(draft, target, walks)
    widen_products(draft)
    if target.dma_descriptor_ns:
        _prepare_descriptors(draft)
    return draft.build_program()


def _fit_sbuf(draft: ProgramDraft, target: Target) -> None:
    """Load again or spill what does not fit in SBUF; the order of instructions stays.

    Kernels that need 224 and 322 KiB of a partition ran on Trainium 2, with more traffic [M].
    """
    if any(_peak_bytes(draft, target, core) > target.sbuf_usable_bytes for core in draft.cores):
        _move_tiles(draft, target, _stream_arrays(draft, target))


def _peak_bytes(draft: ProgramDraft, target: Target, core: int) -> int:
    """Peak bytes of a partition that the tiles of a core need in program order."""
    mine = draft.tensors_in_memory("sbuf", placed=False) & (draft.tensor_cores() == core)
    sizes = [tile_footprint(site, target) if site.buffer == "sbuf" else 0 for site in draft.sites]
    first, last = draft.tensor_spans()
    chosen = np.flatnonzero(mine & (first >= 0))
    rooms = np.array(sizes, dtype=np.int64)[np.array(draft.tensor_sites)[chosen]]
    change = np.zeros(len(draft) + 1, dtype=np.int64)
    np.add.at(change, first[chosen], rooms)
    np.subtract.at(change, last[chosen] + 1, rooms)
    return int(np.cumsum(change).max(initial=0))


def _move_tiles(draft: ProgramDraft, target: Target, walks: list[_CoreResidency]) -> None:
    """Add the traffic of tiles that leave SBUF and come back."""
    insert_spills(draft, [(tiles, _pass_arrays(draft, target, tiles, moves=moves)) for tiles, moves in walks])
    narrow_reloads(draft)


def _prepare_descriptors(draft: ProgramDraft) -> None:
    """Make descriptors before the kernel runs: profiles of legacy kernels show static DMA [M]."""
    draft.replace_forms({
        number: draft.add_form(replace(form, params=(*form.params, ("dge_mode", "none"))))
        for number, form in enumerate(list(draft.forms))
        if form.op == "dma_copy"
        and form.param("dge_mode") is None
        and not any(item.is_scattered for item in form.operands)
    })  # fmt: skip


def _plan_cores(draft: ProgramDraft, target: Target) -> list[_CoreResidency]:
    found = []
    for core in draft.cores:
        tiles = SbufTiles(draft, target, core)
        found.append((tiles, plan_residency(tiles, target.sbuf_usable_bytes, draft.tensor_sites)))
    return found


def _stream_arrays(draft: ProgramDraft, target: Target) -> list[_CoreResidency]:
    """Stream arrays that do not fit until all others do; return the remaining evictions and reloads."""
    while True:
        walks = _plan_cores(draft, target)
        tensors = set().union(*(find_split_tiles(draft, *walk, loaded=True) for walk in walks))
        # Streaming a part again does not make it smaller.
        tensors -= set(np.flatnonzero(draft.loaded_again_tensors()).tolist())
        if not tensors:
            return walks
        stream_loads(draft, tensors)


def _pass_arrays(draft: ProgramDraft, target: Target, tiles: SbufTiles, *, moves: list[int]) -> list[int]:
    """Evictions and reloads if computed arrays that do not stay whole pass through SBUF."""
    passing: set[int] = set()
    while True:
        more = find_split_tiles(draft, tiles, moves, loaded=False) - passing
        if not more:
            return moves
        passing |= more
        moves = plan_residency(tiles, target.sbuf_usable_bytes, draft.tensor_sites, passing)
