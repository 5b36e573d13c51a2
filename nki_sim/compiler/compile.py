"""The compiler of each namespace: the current one keeps what the kernel says, the legacy one rewrites it."""

from __future__ import annotations

import numpy as np

from nki_sim.compiler.arrays import split
from nki_sim.compiler.broadcast import multiply
from nki_sim.compiler.compiled import Compiled, unchanged
from nki_sim.compiler.draft import Draft
from nki_sim.compiler.engines import assign
from nki_sim.compiler.hoist import hoist
from nki_sim.compiler.keep import keep
from nki_sim.compiler.narrow import narrow
from nki_sim.compiler.psum import place
from nki_sim.compiler.residency import residency
from nki_sim.compiler.rotation import rotate
from nki_sim.compiler.spill import insert
from nki_sim.compiler.stream import stream
from nki_sim.compiler.tails import widen
from nki_sim.compiler.tiles import Tiles
from nki_sim.program.ir import Program
from nki_sim.targets import Target

_Walk = tuple[Tiles, list[int]]
"""The tiles of a core, and which of them leave SBUF and come back (`residency`)."""


def compiled(program: Program, target: Target) -> Compiled:
    """The instructions that run on a target.

    Programs with loops whose bounds depend on data run as they were traced: their iterations are not known.
    """
    if program.dialect != "neuronxcc" or program.loops:
        return unchanged(program)
    draft = Draft(program)
    assign(draft)
    before = len(draft.tensor_sites)
    _streamed(draft, target)
    streams = len(draft.tensor_sites) > before
    twins = hoist(draft, computed=not streams)
    multiply(draft, target)
    place(draft, target)
    if streams:
        walks = _walks(draft, target)
    else:
        keep(draft, target, twins)
        walks = _streamed(draft, target)
    insert(draft, [(tiles, _passed(draft, target, tiles, moves)) for tiles, moves in walks])
    narrow(draft)
    rotate(draft, target)
    widen(draft)
    return draft.compiled()


def _walks(draft: Draft, target: Target) -> list[_Walk]:
    found = []
    for core in draft.cores:
        tiles = Tiles(draft, target, core)
        found.append((tiles, residency(tiles, target.sbuf_usable_bytes, draft.tensor_sites)))
    return found


def _streamed(draft: Draft, target: Target) -> list[_Walk]:
    """Stream the arrays that do not fit, until all others do; who then leaves and comes back."""
    while True:
        walks = _walks(draft, target)
        tensors = set().union(*(split(draft, *walk, loaded=True) for walk in walks))
        # What a part takes does not get smaller by streaming it once more.
        tensors -= set(np.flatnonzero(draft.loaded_again()).tolist())
        if not tensors:
            return walks
        stream(draft, tensors)


def _passed(draft: Draft, target: Target, tiles: Tiles, moves: list[int]) -> list[int]:
    """Who leaves and comes back when computed arrays that do not stay whole pass through."""
    passing: set[int] = set()
    while True:
        more = split(draft, tiles, moves, loaded=False) - passing
        if not more:
            return moves
        passing |= more
        moves = residency(tiles, target.sbuf_usable_bytes, draft.tensor_sites, passing)
