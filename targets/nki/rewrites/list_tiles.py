"""The tiles of a list that one iteration of a loop uses: how many they are, and their numbers 0, 1, ...

A kernel that makes all rows of an intermediate result keeps its tiles in one long list. If each iteration of
a loop fills the tiles that it reads, a list of these tiles, declared in the loop, is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Statement
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, Tensor, make_affine

MAX_TILES = 1024
"""Tiles that one access may pick in an iteration."""


@dataclass(frozen=True, slots=True)
class OwnTiles:
    """`count` tiles that every iteration has for itself; `texts` has the source of each index into them."""

    count: int
    texts: Mapping[Affine, str]


def find_own_tiles(kernel: Kernel, tensor: Tensor, loop: Loop) -> OwnTiles:
    """The tiles of a list that an iteration of a loop uses, by the index that picks each.

    Raises:
        RewriteRefused: iterations share tiles, or the tiles of one cannot be numbered by its loops.
    """
    uses = kernel.uses_of(tensor)
    outer = frozenset(item.id for item in (*loop.path, loop))
    if any(access.role not in item.texts or len(access.view.picks) != 1 for item, access in uses):
        raise RewriteRefused(f"an iteration over {loop.var} uses part of a list {tensor.name}")
    picks = {access.view.picks[0] for _, access in uses}
    if len({_part_of(pick, outer) for pick in picks}) != 1:
        raise RewriteRefused(f"an iteration over {loop.var} uses tiles of {tensor.name} that others use")
    inner = {pick: _inside(loop, pick) for pick in picks}
    used = {pick: _list_values(kernel, rest) for pick, rest in inner.items()}
    if not all(_is_filled(kernel, loop, tensor, number) for number in range(len(uses))):
        raise RewriteRefused(f"an iteration over {loop.var} reads a tile of {tensor.name} before it fills it")
    numbers = {value: number for number, value in enumerate(sorted(set().union(*used.values())))}
    texts = {pick: render_index(kernel, _renumber(kernel, rest, numbers)) for pick, rest in inner.items()}
    return OwnTiles(len(numbers), texts)


def _part_of(value: Affine, loops: Collection[str]) -> Affine:
    return make_affine(0, {name: factor for name, factor in value.terms if name in loops})


def _list_values(kernel: Kernel, value: Affine) -> tuple[int, ...]:
    """The values in all iterations of the loops in it, the last loop fastest."""
    trips = [kernel.trips[name] for name, _ in value.terms]
    if prod(trips) > MAX_TILES:
        raise RewriteRefused(f"an index takes more than {MAX_TILES} values")
    factors = [factor for _, factor in value.terms]
    return tuple(
        value.const + sum(factor * number for factor, number in zip(factors, numbers, strict=True))
        for numbers in product(*map(range, trips))
    )


def _renumber(kernel: Kernel, value: Affine, numbers: Mapping[int, int]) -> Affine:
    """The numbers of the tiles that an index picks, again as an index.

    Raises:
        RewriteRefused: they are not a sum over the loops.
    """
    first = numbers[value.const]
    terms = {name: numbers.get(value.const + factor, first) - first for name, factor in value.terms}
    made = Affine(first, tuple((name, terms[name]) for name, _ in value.terms))
    if _list_values(kernel, made) != tuple(numbers[one] for one in _list_values(kernel, value)):
        raise RewriteRefused("the tiles of an iteration do not follow one another evenly")
    return make_affine(first, terms)


def render_index(kernel: Kernel, value: Affine) -> str:
    """The source of an index, from the variables of the loops in it.

    Raises:
        RewriteRefused: a loop has no variable that counts its iterations, or the index falls with it.
    """
    loops = {loop.id: loop for loop in kernel.loops}
    parts: list[str] = []
    for name, factor in value.terms:
        text = loops[name].index_text
        if text is None or factor < 0:
            raise RewriteRefused(f"the loop over {loops[name].var} does not number tiles")
        parts.append(text if factor == 1 else f"{text} * {factor}")
    return " + ".join([*parts, *([str(value.const)] if value.const or not parts else [])])


def _is_filled(kernel: Kernel, loop: Loop, tensor: Tensor, number: int) -> bool:
    """Whether what an access reads was written in the same iteration of a loop, each tile as a whole."""
    uses = kernel.uses_of(tensor)
    item, access = uses[number]
    if not access.reads:
        return True
    before = [(other, one) for other, one in uses[:number] if other is not item and _fills_tile(other, one)]
    same = [other for other, one in before if one.view.picks == access.view.picks]
    if any(_is_around(other.path, item.path) for other in same):
        return True
    depth = len(loop.path) + 1
    done = [one for other, one in before if other.path[depth : depth + 1] != item.path[depth : depth + 1]]
    read = _list_values(kernel, _inside(loop, access.view.picks[0]))
    return set(read) <= {
        one for other in done for one in _list_values(kernel, _inside(loop, other.view.picks[0]))
    }


def _fills_tile(item: Statement, access: Access) -> bool:
    view = access.view
    return access.writes and not access.reads and view.plain and view.is_whole and not item.guards


def _is_around(outer: Sequence[Loop], path: Sequence[Loop]) -> bool:
    return tuple(path[: len(outer)]) == tuple(outer)


def _inside(loop: Loop, pick: Affine) -> Affine:
    """The part of an index that changes within an iteration, with the constant."""
    return pick - _part_of(pick, frozenset(item.id for item in (*loop.path, loop)))
