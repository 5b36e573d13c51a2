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
"""Tiles of a list that stay for the next use, as in `nki_sim.compiler.residency`."""
MAX_USES = 100_000
"""Uses of a list's tiles up to which they are counted."""


@dataclass(frozen=True, slots=True)
class _TileUse:
    """A use of some columns of a tile, which begin at `place`, counted from the list's first tile on.

    `factors` are those of the loops that are still to be gone through. `nbytes` of a partition are read.
    """

    place: int
    factors: Mapping[str, int]
    nbytes: int


def find_long_lists(kernel: Kernel, target: Target) -> list[Tensor]:
    """The lists of tiles that take more than all of SBUF."""
    tensors = [item.tensor for item in kernel.declarations.values() if item.tensor is not None]
    mine = [tensor for tensor in tensors if tensor.copies and tensor.buffer == "sbuf"]
    return [tensor for tensor in mine if tile_sbuf_bytes(tensor, target) > target.sbuf_usable_bytes]


def count_reloaded_bytes(kernel: Kernel, target: Target) -> int:
    """Bytes of a partition that come back for long lists; 0 if their tiles are used too often to count."""
    total = 0
    for tensor in find_long_lists(kernel, target):
        if sum(item.trips for item, _ in kernel.uses_of(tensor)) > MAX_USES:
            return 0
        total += _count_reloads(_list_uses(kernel.body, tensor), tensor.row_elements)
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
    nbytes = prod(view.shape[1:]) * DTYPES[view.tensor.dtype].itemsize if access.reads else 0
    return _TileUse(place.const, dict(place.terms), nbytes)


def _repeat_uses(body: Sequence[_TileUse], loop: Loop) -> list[_TileUse]:
    rest = {name for use in body for name in use.factors} - {loop.id}
    left = [{name: step for name, step in use.factors.items() if name in rest} for use in body]
    return [
        _TileUse(use.place + iteration * use.factors.get(loop.id, 0), factors, use.nbytes)
        for iteration in range(loop.trips)
        for use, factors in zip(body, left, strict=True)
    ]


def _count_reloads(uses: Sequence[_TileUse], columns: int) -> int:
    """Bytes read of tiles that are not among the last ones used, each part of a tile once until it leaves."""
    recent: OrderedDict[int, set[int]] = OrderedDict()
    total = 0
    for use in uses:
        parts = recent.setdefault(use.place // columns, set())
        recent.move_to_end(use.place // columns)
        if use.place not in parts:
            parts.add(use.place)
            total += use.nbytes
        if len(recent) > KEPT_TILES:
            recent.popitem(last=False)
    return total
