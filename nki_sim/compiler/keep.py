"""Loads that the legacy compiler does once for all iterations of a loop, because their tiles may stay.

A declaration's tiles are kept, all or none, as long as the places of all declarations fit in SBUF together.
Profiles show both: weights that are loaded once, and loads repeated where SBUF is full [C].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from nki_sim.compiler.draft import Draft
from nki_sim.compiler.hoist import merge
from nki_sim.compiler.rotation import Span, assigned, spans, taken
from nki_sim.targets import Target


def keep(draft: Draft, target: Target, twins: Mapping[int, int]) -> None:
    """Merge loaded tiles with the earlier ones that they equal, declaration by declaration."""
    kept: dict[int, int] = {}
    for used in spans(draft):
        kept |= _kept(draft, target, used, twins)
    if kept:
        merge(draft, kept)


def _kept(draft: Draft, target: Target, used: Mapping[int, Span], twins: Mapping[int, int]) -> dict[int, int]:
    """The tiles of one core that need not be loaded, while there is room for those that stay longer."""
    by_site: dict[int, dict[int, Span]] = defaultdict(dict)
    for tensor, span in used.items():
        by_site[draft.tensor_sites[tensor]][tensor] = span
    room = sum(_room(draft, target, one) for one in by_site.values())
    kept: dict[int, int] = {}
    for one in by_site.values():
        names = {tensor: twins[tensor] for tensor in one if twins.get(tensor) in used}
        if not names:
            continue
        more = _room(draft, target, _together(one, names)) - _room(draft, target, one)
        if room + more <= target.sbuf_usable_bytes:
            kept |= names
            room += more
    return kept


def _room(draft: Draft, target: Target, used: Mapping[int, Span]) -> int:
    return taken(draft, target, assigned(draft, used, target.legacy_rotation).values())


def _together(used: Mapping[int, Span], names: Mapping[int, int]) -> dict[int, Span]:
    """Spans of tiles when each lasts for those that equal it."""
    found: dict[int, Span] = {}
    for tensor, (first, last) in used.items():
        name = names.get(tensor, tensor)
        earliest, latest = found.get(name, (first, last))
        found[name] = min(first, earliest), max(last, latest)
    return dict(sorted(found.items(), key=lambda entry: entry[1]))
