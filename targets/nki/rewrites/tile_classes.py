"""Finds what changes together when a dimension is cut into other tiles.

Tiles of one dimension are a class: the loops that count them, the windows that those loops move, the
dimensions of the tiles on chip that such a window fills, and the dimensions and lists that hold one entry for
each tile. Which dimensions are equal follows from the instructions: a copy has the sizes of its data, a
product the rows of its moving operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Statement, StatementKind
from targets.nki.rewrites.tile_reductions import gathers_tiles
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, DimensionRange

Dimension = tuple[int, int]
"""A tensor's id and one of its dimensions."""
AxisGroups = list[list[tuple[Access, int]]]
"""Axes of an instruction's operands that have one size, group by group."""


@dataclass(eq=False)
class TileClass:
    """A dimension's tiles. `width` is their size and `trips` their number."""

    kernel: Kernel
    width: int
    trips: int
    loops: dict[str, Loop] = field(default_factory=dict)
    tiles: set[Dimension] = field(default_factory=set)
    """Dimensions of tiles on chip that hold one tile."""
    counters: set[Dimension] = field(default_factory=set)
    """Dimensions of tensors on chip with one index for each tile."""
    lists: set[int] = field(default_factory=set)
    """Tensors that are lists with one entry for each tile."""
    backwards: frozenset[str] = frozenset()
    """The loops that visit the tiles from the last to the first."""

    def is_walked(self, window: DimensionRange) -> bool:
        """Whether a window is one of the tiles that a loop of the class counts."""
        steps = [factor for name, factor in window.start.terms if name in self.loops]
        return len(steps) == 1 and abs(steps[0]) == window.size == self.width and window.step == 1

    def fills(self, access: Access, dim: int) -> bool:
        """Whether an access covers a dimension that holds one tile."""
        window = access.view.box[dim]
        whole = window.size == self.width and window.start == Affine(0) and window.step == 1
        return whole and (access.tensor.id, dim) in self.tiles

    def is_tiled(self, access: Access, dim: int) -> bool:
        """Whether the window of an access in this dimension is one tile."""
        return self.is_walked(access.view.box[dim]) or self.fills(access, dim)


def find_tile_class(kernel: Kernel, loop: Loop) -> TileClass:
    """Return the class of the tiles that a loop counts.

    Raises:
        RewriteRefused: the loop counts no tiles, or something depends on how many there are.
    """
    widths = {
        window.size
        for item in kernel.operations()
        for access in item.accesses
        for window in access.view.box
        if window.size > 1 and abs(window.start.coefficient(loop.id)) == window.size
    }
    if len(widths) != 1:
        raise RewriteRefused(f"the loop over {loop.var} does not move windows of one size")
    found = TileClass(kernel, widths.pop(), loop.trips)
    _add_loop(found, loop)
    while _grow_class(found):
        pass
    _check_class(found)
    found.backwards = frozenset(_find_backwards(found))
    return found


def _add_loop(found: TileClass, loop: Loop) -> bool:
    if loop.id in found.loops:
        return False
    if loop.index_text != loop.var or loop.trips != found.trips:
        raise RewriteRefused(f"the loop over {loop.var} counts something else than the {found.trips} tiles")
    found.loops[loop.id] = loop
    return True


def _grow_class(found: TileClass) -> bool:
    """Add what belongs to the class because of what is in it; return whether there was anything."""
    grown = [_grow_by_statement(found, item) for item in found.kernel.operations()]
    return any(grown)


def _grow_by_statement(found: TileClass, item: Statement) -> bool:
    grown = False
    for access in item.accesses:
        grown |= _grow_counters(found, item, access)
    for group in group_axes(item):
        places = [(access, access.view.axes[axis].source) for access, axis in group]
        if not any(dim is not None and found.is_tiled(access, dim) for access, dim in places):
            continue
        for access, dim in places:
            if dim is not None and not found.is_tiled(access, dim):
                grown |= _add_dimension(found, item, access, dim=dim)
    return grown


def _add_dimension(found: TileClass, item: Statement, access: Access, *, dim: int) -> bool:
    """Add a dimension that another operand's tile fixes: one that holds a tile, or that a loop walks."""
    window, tensor = access.view.box[dim], access.tensor
    loops = {loop.id: loop for loop in item.path}
    walking = [name for name, factor in window.start.terms if abs(factor) == window.size]
    if window.size != found.width or window.step != 1:
        raise RewriteRefused(f"{item.op} takes {tensor.name} in windows of another size")
    if window.start == Affine(0) and tensor.is_on_chip and tensor.shape[dim] == found.width:
        found.tiles.add((tensor.id, dim))
        return True
    if len(walking) != 1:
        raise RewriteRefused(f"a window of {tensor.name} changes size without moving with the tiles")
    return _add_loop(found, loops[walking[0]])


def _grow_counters(found: TileClass, item: Statement, access: Access) -> bool:
    """Add dimensions, lists and loops that count the tiles of a tensor."""
    tensor, grown = access.tensor, False
    loops = {loop.id: loop for loop in item.path}
    for dim, window in enumerate(access.view.box):
        names = [name for name, factor in window.start.terms if abs(factor) == 1]
        if not tensor.is_on_chip or window.size != 1 or tensor.shape[dim] != found.trips or len(names) != 1:
            continue
        key = tensor.id, dim
        if key in found.counters:
            grown |= _add_loop(found, loops[names[0]])
        elif names[0] in found.loops:
            found.counters.add(key)
            grown = True
    counted = {name for place in access.view.picks for name in place.loops}
    if tensor.id in found.lists:
        added = [_add_loop(found, loops[name]) for name in counted]
        grown |= any(added)
    elif counted & found.loops.keys():
        found.lists.add(tensor.id)
        grown = True
    return grown


def group_axes(item: Statement) -> AxisGroups:
    """The axes of an instruction's operands that have one size."""
    if item.op in _GROUPS_BY_OP:
        return list(_GROUPS_BY_OP[item.op](item))
    ranks = {len(access.view.axes) for access in item.accesses}
    groups: AxisGroups = []
    for axis in range(max(ranks, default=0)):
        sized: dict[int, list[tuple[Access, int]]] = {}
        for access in item.accesses:
            if len(access.view.axes) == max(ranks) or axis == 0:
                sized.setdefault(access.view.axes[axis].count, []).append((access, axis))
        groups += sized.values()
    return groups


def _named_groups(
    item: Statement, *groups: tuple[tuple[str, int], ...]
) -> Iterator[list[tuple[Access, int]]]:
    for group in groups:
        places = [(item.find_access(role), axis) for role, axis in group]
        yield [(access, axis) for access, axis in places if access is not None]


def _product_axes(item: Statement) -> Iterator[list[tuple[Access, int]]]:
    if any(len(access.view.axes) != 2 for access in item.accesses):
        raise RewriteRefused(f"{item.op} has operands of more than two dimensions")
    return _named_groups(
        item,
        (("stationary", 0), ("moving", 0)),
        (("stationary", 1), ("dst", 0)),
        (("moving", 1), ("dst", 1)),
    )


def _transpose_axes(item: Statement) -> Iterator[list[tuple[Access, int]]]:
    if any(len(access.view.axes) != 2 for access in item.accesses):
        raise RewriteRefused(f"{item.op} has operands of more than two dimensions")
    return _named_groups(item, (("data", 0), ("dst", 1)), (("data", 1), ("dst", 0)))


_GROUPS_BY_OP: Mapping[str, Callable[[Statement], Iterator[list[tuple[Access, int]]]]] = {
    "nc_matmul": _product_axes,
    "nc_transpose": _transpose_axes,
}


def _check_class(found: TileClass) -> None:
    """Refuse a class of which some part has no counterpart with other tiles."""
    kernel = found.kernel
    for loop in found.loops.values():
        if not loop.stop.isdigit():
            raise RewriteRefused(f"the number of iterations over {loop.var} has a name: change that")
    for item in kernel.statements:
        inside = any(loop in found.loops.values() for loop in item.path)
        if item.kind in {StatementKind.OPAQUE, StatementKind.BIND} and inside:
            raise RewriteRefused(f"the loop holds what cannot be read or moved: {item.reason or 'a name'}")
        for access in item.accesses:
            _check_access(found, item, access)


def _check_access(found: TileClass, item: Statement, access: Access) -> None:
    tensor, ours = access.tensor, found.loops.keys()
    for dim, window in enumerate(access.view.box):
        key = tensor.id, dim
        starts_tile = window.start == Affine(0) and window.size <= found.width  # perhaps the last one's rows
        if key in found.tiles and not starts_tile:
            raise RewriteRefused(f"{item.op} takes part of a tile of {tensor.name}")
        counts = key in found.counters and window.size == 1 and window.start.loops & ours
        if key in found.counters and not counts and not gathers_tiles(found.kernel, item, tensor.id, ours):
            raise RewriteRefused(f"{item.op} takes several tiles of {tensor.name}, or a certain one")
        if window.start.loops & ours and not counts and not found.is_walked(window):
            raise RewriteRefused(f"a window of {tensor.name} is no tile, and moves with the tiles")
    if tensor.id in found.lists and not any(place.loops & ours for place in access.view.picks):
        raise RewriteRefused(f"{item.op} takes a certain tile of the list {tensor.name}")
    if any(place.loops & ours for place in access.view.within):
        raise RewriteRefused(f"a rearranged view of {tensor.name} moves with the tiles")


def _find_backwards(found: TileClass) -> Iterator[str]:
    """The loops of the class that run backwards.

    Raises:
        RewriteRefused: a loop runs both ways.
    """
    for name, loop in found.loops.items():
        signs = {factor > 0 for factor in _class_steps(found, name)}
        if len(signs) > 1:
            raise RewriteRefused(f"the loop over {loop.var} moves some windows forwards and others backwards")
        if signs == {False}:
            yield name


def _class_steps(found: TileClass, loop: str) -> Iterator[int]:
    for item in found.kernel.operations():
        for access in item.accesses:
            yield from (
                factor
                for place in (*access.view.picks, *(window.start for window in access.view.box))
                if (factor := place.coefficient(loop))
            )
