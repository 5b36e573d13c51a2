"""Finds the declaration of each tile: which are new in each iteration, which live across, which form a list.

Tiles that one call of the program touches in different iterations belong to one family, which is declared in
one place: in the innermost loop whose iterations share none of its tiles. If one iteration uses one tile, the
declaration is that of a tile; otherwise it is a list of tiles, with an affine index at each use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from targets.nki.raising.instruction_rows import NotRaised, TileClass
from targets.nki.raising.loop_recognition import AffineNumber, Call, Node, Repeat

LoopPath = tuple[int, ...]
"""The place of each loop around a call in the block around that loop, outermost first."""


@dataclass(frozen=True, slots=True)
class TileUse:
    """One operand of one call: where the call stands, its loops' trips, and which tile it uses."""

    path: LoopPath
    position: int
    trips: tuple[int, ...]
    operand: tuple[int, int]
    """The call's number and the operand's."""
    tile: AffineNumber
    home: TileClass


@dataclass(frozen=True, slots=True)
class TileFamily:
    """The tiles of one declaration, in the body of the loop at `path` before its node `position`.

    `copies` is the length of the list of tiles, 1 for a single tile. `indices` has the index in the list for
    each use, with a step for each loop around it; `first` is the number of its first tile.
    """

    home: TileClass
    path: LoopPath
    position: int
    copies: int
    first: int
    indices: Mapping[tuple[int, int], AffineNumber]


def find_families(nodes: Sequence[Node]) -> list[TileFamily]:
    """Return the declarations that a program needs, in the order of their first tiles.

    Raises:
        NotRaised: a list of tiles is not walked in even steps, and no other tiles are between its own.
    """
    left = _group_uses(_collect_uses(nodes, (), (), counter=_Counter()))
    made: list[tuple[list[TileUse], TileFamily]] = []
    while left:
        group = left.pop(0)
        try:
            made.append((group, _make_family(group)))
        except NotRaised:
            # An iteration that stands by itself, as one that begins a total, leaves holes among the tiles
            # that the other iterations walk. Its own tiles fill the holes.
            others = (*left, *(uses for uses, _ in made))
            partner = next((uses for uses in others if _are_interleaved(group, uses)), None)
            if partner is None:
                raise
            left = [
                sorted((*group, *partner), key=_use_order),
                *(uses for uses in left if uses is not partner),
            ]
            made = [pair for pair in made if pair[0] is not partner]
    return sorted((family for _, family in made), key=lambda family: family.first)


def _use_order(use: TileUse) -> tuple[int, int]:
    return use.operand


def _are_interleaved(group: Sequence[TileUse], other: Sequence[TileUse]) -> bool:
    """Whether two families are of one kind of tile, and some tiles of one lie between tiles of the other."""
    (first, last), (low, high) = _tile_range(group), _tile_range(other)
    return group[0].home == other[0].home and first < high and low < last


def _tile_range(group: Iterable[TileUse]) -> tuple[int, int]:
    tiles = [tile for use in group for tile in touched_tiles(use.tile, use.trips)]
    return min(tiles), max(tiles)


class _Counter:
    """Numbers the calls."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count - 1


def _collect_uses(
    nodes: Iterable[Node], path: LoopPath, trips: tuple[int, ...], *, counter: _Counter
) -> Iterator[TileUse]:
    for position, node in enumerate(nodes):
        if isinstance(node, Repeat):
            yield from _collect_uses(node.body, (*path, position), (*trips, node.trips), counter=counter)
            continue
        number = counter.next()
        for operand, tile, home in _tile_operands(node):
            yield TileUse(path, position, trips, (number, operand), tile, home)


def _tile_operands(call: Call) -> Iterator[tuple[int, AffineNumber, TileClass]]:
    start = 0
    for number, item in enumerate(call.key.operands):
        if item.tensor is None:
            yield number, call.numbers[start], item.home
        start += item.numbers


def touched_tiles(tile: AffineNumber, trips: Sequence[int]) -> frozenset[int]:
    """The tiles that a use touches in all iterations of the loops with these trips."""
    found = {tile[0]}
    for step, count in zip(tile[1:], trips, strict=True):
        if step:
            found = {start + step * i for start in found for i in range(count)}
    return frozenset(found)


def _group_uses(uses: Iterable[TileUse]) -> list[list[TileUse]]:
    """The uses by family: those that share a tile, directly or through others."""
    leader: dict[int, int] = {}

    def find(tile: int) -> int:
        while leader.setdefault(tile, tile) != tile:
            leader[tile] = leader[leader[tile]]
            tile = leader[tile]
        return tile

    listed = list(uses)
    for use in listed:
        first = find(use.tile[0])
        for tile in touched_tiles(use.tile, use.trips):
            leader[find(tile)] = first
            first = find(first)
    groups: dict[int, list[TileUse]] = {}
    for use in listed:
        groups.setdefault(find(use.tile[0]), []).append(use)
    return list(groups.values())


def _make_family(uses: Sequence[TileUse]) -> TileFamily:
    path = uses[0].path[: _home_depth(uses)]
    depth = len(path)
    inner = [_inner_tiles(use, depth) for use in uses]
    ranks = {tile: rank for rank, tile in enumerate(sorted(frozenset().union(*inner)))}
    indices = {use.operand: _rank_tile(use, depth, ranks) for use in uses}
    position = min(use.path[depth] if len(use.path) > depth else use.position for use in uses)
    return TileFamily(uses[0].home, path, position, len(ranks), min(ranks), indices)


def _inner_tiles(use: TileUse, depth: int) -> frozenset[int]:
    """The tiles of a use in the first iterations of the outer `depth` loops."""
    return touched_tiles((use.tile[0], *use.tile[depth + 1 :]), use.trips[depth:])


def _home_depth(uses: Sequence[TileUse]) -> int:
    """How many of the common loops give the family new tiles in each iteration."""
    depth = 0
    while all(len(use.path) > depth and use.path[depth] == uses[0].path[depth] for use in uses):
        steps = {use.tile[depth + 1] for use in uses}
        trips = uses[0].trips[depth]
        tiles = frozenset[int]().union(*(_inner_tiles(use, depth + 1) for use in uses))
        if len(steps) != 1 or not _are_apart(tiles, steps.pop(), trips):
            break
        depth += 1
    return depth


def _are_apart(tiles: frozenset[int], step: int, trips: int) -> bool:
    """Whether no two iterations use the same tile, if each uses those of the one before plus `step`."""
    return all(tile + step * i not in tiles for i in range(1, trips) for tile in tiles)


def _rank_tile(use: TileUse, depth: int, ranks: Mapping[int, int]) -> AffineNumber:
    """A use's index in the sorted list of its family's tiles in one iteration.

    Raises:
        NotRaised: the index is no affine function.
    """
    base, steps, trips = use.tile[0], use.tile[depth + 1 :], use.trips[depth:]
    rises = tuple(
        ranks[base + step] - ranks[base] if count > 1 else 0 for step, count in zip(steps, trips, strict=True)
    )
    for point in product(*map(range, trips)):
        tile = base + sum(step * i for step, i in zip(steps, point, strict=True))
        if ranks[tile] != ranks[base] + sum(rise * i for rise, i in zip(rises, point, strict=True)):
            raise NotRaised("tiles of a list are not used in even steps")
    return (ranks[base], *(0 for _ in range(depth)), *rises)
