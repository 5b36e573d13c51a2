"""The buffers that a declaration inside a loop rotates through.

The legacy compiler gives such a declaration a fixed number of places: iteration i waits until iteration
i - n has done with its tile. Tiles that live together have a place each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from nki_sim.compiler.compiled import LOAD_AGAIN
from nki_sim.compiler.draft import Draft
from nki_sim.flow.room import size
from nki_sim.targets import Target

Span = tuple[int, int]
"""First and last instruction that uses a tile."""


@dataclass(slots=True)
class _Slots:
    """Places of one declaration, and when the tile in each of them is used last."""

    names: list[int]
    last: list[int]

    def take(self, tensor: int, first: int, last: int, most: int) -> int:
        """The place of a tile that is used from `first` to `last`."""
        free = [at for at, end in enumerate(self.last) if end < first]
        if len(self.names) < most or not free:
            self.names.append(tensor)
            self.last.append(last)
            return tensor
        at = min(free, key=self.last.__getitem__)
        self.last[at] = last
        return self.names[at]


def rotate(draft: Draft, target: Target) -> None:
    """Put places in the stead of tiles, as many of them as fit."""
    used = spans(draft)
    for places in range(target.legacy_rotation, 0, -1):
        names = assigned(draft, used, places)
        sites = [draft.site(tensor) for tensor in set(names.values())]
        if sum(size(site, target) for site in sites) <= target.sbuf_usable_bytes:
            draft.rename(names)
            return


def assigned(draft: Draft, used: Mapping[int, Span], places: int) -> dict[int, int]:
    """For each tile the first tile that had its place."""
    slots: dict[int, _Slots] = defaultdict(lambda: _Slots([], []))
    return {
        tensor: slots[draft.tensor_sites[tensor]].take(tensor, first, last, places)
        for tensor, (first, last) in used.items()
    }


def spans(draft: Draft) -> dict[int, Span]:
    """First and last use of each tile that the compiler places in SBUF, but for what it loads again.

    Those take any room that is free.
    """
    found: dict[int, Span] = {}
    again: set[int] = set()
    for at, step in enumerate(draft.steps):
        if step.origin == LOAD_AGAIN:
            again.update(step.tensors)
        for tensor in step.tensors:
            first, _ = found.get(tensor, (at, at))
            found[tensor] = first, at
    sites = {tensor: draft.site(tensor) for tensor in found.keys() - again}
    sites = dict(sorted(sites.items(), key=lambda entry: found[entry[0]]))
    return {t: found[t] for t, site in sites.items() if site.buffer == "sbuf" and site.address is None}
