"""Models loads that the legacy compiler does once for all iterations, because their tiles can stay in SBUF.

All tiles of a declaration are kept, or none, as long as the buffers of all declarations fit in SBUF together.
Profiles show both: weights loaded once, and loads repeated when SBUF is full [C].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from heapq import heappush, heapreplace

import numpy as np

from nki_sim.compiler.hoist import merge_tiles
from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.flow.chip_memory import tile_footprint
from nki_sim.targets import Target

TileSpan = tuple[int, int]
"""First and last instruction that uses a tile."""

_BUFFERS = 2
"""Buffers that room is counted for, so that one tile of a declaration can be loaded while another is used
[I].
"""


def keep_loads(draft: ProgramDraft, target: Target, twins: Mapping[int, int]) -> None:
    """Merge loaded tiles with the earlier tiles that they equal, declaration by declaration."""
    kept: dict[int, int] = {}
    for used in _tile_spans(draft):
        kept |= _find_kept_tiles(draft, target, used, twins=twins)
    if kept:
        merge_tiles(draft, kept)


def _find_kept_tiles(
    draft: ProgramDraft, target: Target, used: Mapping[int, TileSpan], *, twins: Mapping[int, int]
) -> dict[int, int]:
    """The tiles of one core that need not be loaded again, while there is room for those that stay longer."""
    by_site: dict[int, dict[int, TileSpan]] = defaultdict(dict)
    for tensor, span in used.items():
        by_site[draft.tensor_sites[tensor]][tensor] = span
    room = sum(_needed_bytes(draft, target, one) for one in by_site.values())
    kept: dict[int, int] = {}
    for one in by_site.values():
        names = {tensor: twins[tensor] for tensor in one if twins.get(tensor) in used}
        if not names:
            continue
        more = _needed_bytes(draft, target, _merge_spans(one, names)) - _needed_bytes(draft, target, one)
        if room + more <= target.sbuf_usable_bytes:
            kept |= names
            room += more
    return kept


def _tile_spans(draft: ProgramDraft) -> list[dict[int, TileSpan]]:
    """By core, the tiles that the compiler places in its SBUF, in the order of their first use."""
    cells = draft.cells
    tensors, firsts = np.unique(cells.tensor, return_index=True)
    tensors = tensors[np.argsort(firsts)]
    tensors = tensors[draft.tensors_in_memory("sbuf", placed=False)[tensors]]
    first, last = draft.tensor_spans()
    cores = draft.tensor_cores()[tensors]
    return [
        dict(zip(mine.tolist(), zip(first[mine].tolist(), last[mine].tolist(), strict=True), strict=True))
        for mine in (tensors[cores == core] for core in draft.cores)
    ]


def _needed_bytes(draft: ProgramDraft, target: Target, used: Mapping[int, TileSpan]) -> int:
    """Bytes of a partition for the buffers of one declaration: `_BUFFERS`, or as many as live together."""
    ends: list[int] = []
    for first, last in used.values():
        if len(ends) < _BUFFERS or ends[0] >= first:
            heappush(ends, last)
        else:
            heapreplace(ends, last)
    return len(ends) * tile_footprint(draft.site(next(iter(used))), target)


def _merge_spans(used: Mapping[int, TileSpan], names: Mapping[int, int]) -> dict[int, TileSpan]:
    """Lifetimes of tiles when each also covers the uses of tiles that equal it."""
    found: dict[int, TileSpan] = {}
    for tensor, (first, last) in used.items():
        name = names.get(tensor, tensor)
        earliest, latest = found.get(name, (first, last))
        found[name] = min(first, earliest), max(last, latest)
    return dict(sorted(found.items(), key=lambda entry: entry[1]))
