"""Counts the bytes that come back to SBUF for lists of tiles that do not fit there, without tracing a kernel.

The simulator's compiler does not keep such a list: after a few others of its tiles were used, a tile leaves,
and what is read of it next comes back. How often depends on the order of the loops.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from nki_sim.dtypes import DTYPES
from nki_sim.targets import Target
from targets.nki.rewrites.estimate import tile_sbuf_bytes
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement
from targets.nki.rewrites.values import Affine, Tensor

KEPT_TILES = 4
"""Tiles of a list that stay for the next use: `KEPT_PARTS` of the simulator's compiler."""
MAX_USES = 100_000
"""Uses of a list's tiles up to which they are counted."""


@dataclass(frozen=True, slots=True)
class _TileUse:
    """A use of `size` columns of a tile, from `place` on, counted from the list's first tile.

    `factors` are those of the loops that are still to be gone through.
    """

    place: int
    factors: Mapping[str, int]
    size: int
    reads: bool


def find_long_lists(kernel: Kernel, target: Target) -> list[Tensor]:
    """The lists of tiles that take more than all of SBUF."""
    tensors = [item.tensor for item in kernel.declarations.values() if item.tensor is not None]
    mine = [tensor for tensor in tensors if tensor.copies and tensor.buffer == "sbuf"]
    return [tensor for tensor in mine if tile_sbuf_bytes(tensor, target) > target.sbuf_usable_bytes]


def count_reloaded_bytes(kernel: Kernel, target: Target) -> int:
    """Bytes of a partition that come back for long lists; 0 if they cannot be counted.

    Their tiles may be used too often, or in some iterations of a loop only.
    """
    total = 0
    for tensor in find_long_lists(kernel, target):
        uses = [item for item, _ in kernel.uses_of(tensor)]
        if any(item.guards for item in uses) or sum(item.trips for item in uses) > MAX_USES:
            return 0
        columns = _count_reloads(_list_uses(kernel.body, tensor), tensor.row_elements)
        total += columns * DTYPES[tensor.dtype].itemsize
    return total


def _list_uses(nodes: Sequence[Node], tensor: Tensor) -> list[_TileUse]:
    """The uses of a list's tiles in a block, in order, those of all iterations of the loops in it."""
    found: list[_TileUse] = []
    for node in nodes:
        if isinstance(node, Statement):
            found += [_make_use(access) for access in node.accesses if access.tensor.id == tensor.id]
            continue
        body = _list_uses(node.body, tensor)
        found += _repeat_uses(body, node) if isinstance(node, Loop) else body
    return found


def _make_use(access: Access) -> _TileUse:
    view = access.view
    place, step = sum(view.within, Affine(0)), 1
    for window, size in reversed(list(zip(view.box, view.tensor.shape, strict=True))[1:]):
        place += window.start.scale_by(step)
        step *= size
    for pick, size in reversed(list(zip(view.picks, view.tensor.copies, strict=True))):
        place += pick.scale_by(step)
        step *= size
    return _TileUse(place.const, dict(place.terms), prod(view.shape[1:]), access.reads)


def _repeat_uses(body: Sequence[_TileUse], loop: Loop) -> list[_TileUse]:
    rest = {name for use in body for name in use.factors} - {loop.id}
    left = [{name: step for name, step in use.factors.items() if name in rest} for use in body]
    return [
        _TileUse(use.place + iteration * use.factors.get(loop.id, 0), factors, use.size, use.reads)
        for iteration in range(loop.trips)
        for use, factors in zip(body, left, strict=True)
    ]


def _count_reloads(uses: Sequence[_TileUse], width: int) -> int:
    """Columns read of tiles that are not among the last ones used, each column once until its tile leaves."""
    recent: OrderedDict[int, list[tuple[int, int]]] = OrderedDict()
    total = 0
    for use in uses:
        spans = recent.setdefault(use.place // width, [])
        recent.move_to_end(use.place // width)
        new = _add_span(spans, use.place, use.place + use.size)
        total += new if use.reads else 0
        if len(recent) > KEPT_TILES:
            recent.popitem(last=False)
    return total


def _add_span(spans: list[tuple[int, int]], first: int, end: int) -> int:
    """Add a span to disjoint ones, and return how much of it is new."""
    met = [one for one in spans if one[0] < end and first < one[1]]
    new = end - first - sum(min(end, one[1]) - max(first, one[0]) for one in met)
    if new:
        spans[:] = [one for one in spans if one not in met]
        spans.append((min([first, *(one[0] for one in met)]), max([end, *(one[1] for one in met)])))
    return new
