"""The source of an operand: windows, reshapes and broadcasts of a tensor, as the rewrites read them.

An access is a pattern of (step, count) pairs from a place. Most are windows along the declared dimensions.
For the others the forms are tried in order of how well the rewrites read them; `.ap`, which says the pattern
itself, always works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from nki_sim.forms import Dims, drop_idle_steps
from targets.nki.raising.instruction_rows import RowOperand, TileClass, locate, match_dimensions
from targets.nki.raising.loop_recognition import AffineNumber


@dataclass(frozen=True, slots=True)
class LoopScope:
    """The loops around a call, outermost first: their variables and their trips."""

    names: tuple[str, ...] = ()
    trips: tuple[int, ...] = ()

    def enter(self, name: str, trips: int) -> LoopScope:
        return LoopScope((*self.names, name), (*self.trips, trips))

    def largest(self, number: AffineNumber) -> int:
        """The largest value over all iterations."""
        steps = zip(number[1:], self.trips, strict=True)
        return number[0] + sum(max(0, step * (trips - 1)) for step, trips in steps)


def affine_text(number: AffineNumber, names: Sequence[str]) -> str:
    """The source of an affine number: `i * 128 + j * 32 + 5`."""
    terms = [
        (factor, name if abs(factor) == 1 else f"{name} * {abs(factor)}")
        for name, factor in zip(names, number[1:], strict=True)
        if factor
    ]
    if number[0] or not terms:
        terms.append((number[0], str(abs(number[0]))))
    # What is added comes first, so that a text does not begin with a minus.
    (first, text), *rest = sorted(terms, key=lambda term: term[0] < 0)
    signed = f"-{text}" if first < 0 else text
    return signed + "".join(f" {'-' if factor < 0 else '+'} {part}" for factor, part in rest)


def window_text(start: AffineNumber, size: int, stride: int, names: Sequence[str]) -> str:
    """The source of `size` indices from a start, `stride` apart."""
    span = (size - 1) * stride + 1
    step = f" : {stride}" if stride > 1 else ""
    moving = [(name, factor) for name, factor in zip(names, start[1:], strict=True) if factor]
    if stride == 1 and size > 1 and len(moving) == 1 and moving[0][1] == size and start[0] % size == 0:
        name, number = moving[0][0], start[0] // size
        first = f"({name} + {number})" if number else name
        return f"{first} * {size} : ({name} + {number + 1}) * {size}"
    end = (start[0] + span, *start[1:])
    return f"{affine_text(start, names)} : {affine_text(end, names)}{step}"


def access_text(name: str, item: RowOperand, place: Sequence[AffineNumber], scope: LoopScope) -> str:
    """The source of an operand of the tensor or tile `name` that begins at `place`."""
    if item.dtype == item.home.dtype and not item.column_step:
        if not item.flat:
            return _windowed(name, item.home, item.dims, place=place, scope=scope)
        for form in (_reshaped, _broadcast_rows, _split_window, _other_rows):
            text = form(name, item, place[0], scope)
            if text is not None:
                return text
    offset = place[0] if item.flat else _flat_offset(item.home, place)
    dims = _chosen_columns(item, offset, scope) if item.column_step else item.dims
    pattern = ", ".join(f"[{step}, {count}]" for step, count in dims)
    cast = "" if item.dtype == item.home.dtype else f", dtype=nl.{item.dtype}"
    return f"{name}.ap(pattern=[{pattern}], offset={affine_text(offset, scope.names)}{cast})"


def _chosen_columns(item: RowOperand, offset: AffineNumber, scope: LoopScope) -> Dims:
    """The columns that an index chooses from, to the end of the tile, as a program does not say the last."""
    last = scope.largest(tuple(number % item.home.strides[0] for number in offset))
    columns = max(1, -(-(item.home.strides[0] - last) // item.column_step))
    return item.dims[0], (item.column_step, columns)


def _flat_offset(home: TileClass, place: Sequence[AffineNumber]) -> AffineNumber:
    parts = zip(*place, strict=True)
    return tuple(
        sum(number * stride for number, stride in zip(part, home.strides, strict=True)) for part in parts
    )


def _windowed(
    name: str, home: TileClass, dims: Dims, *, place: Sequence[AffineNumber], scope: LoopScope
) -> str:
    """The source of a window along the declared dimensions, with broadcasts of single indices."""
    pairs = match_dimensions(home, dims)
    assert pairs is not None
    keys, repeats, axis = list[str](), list[str](), 0
    whole = True
    for pair, start, size, stride in zip(pairs, place, home.shape, home.strides, strict=True):
        if pair is None:
            keys.append(affine_text(start, scope.names))
            whole = False
            continue
        step, count = dims[pair]
        taken = count if step else 1
        if step == 0:
            repeats.append(f".broadcast({axis}, {count})")
        full = taken == size and not any(start)
        whole = whole and full
        keys.append(":" if full else window_text(start, taken, max(1, step // stride), scope.names))
        axis += 1
    return (name if whole else f"{name}[{', '.join(keys)}]") + "".join(repeats)


def _row_major(sizes: Sequence[int]) -> Dims:
    return tuple((prod(sizes[axis + 1 :]), size) for axis, size in enumerate(sizes))


def _reshaped(name: str, item: RowOperand, offset: AffineNumber, scope: LoopScope) -> str | None:
    """A whole tensor, perhaps in another shape."""
    del scope
    sizes = tuple(count for _, count in item.dims)
    walks = drop_idle_steps(item.dims) == drop_idle_steps(_row_major(sizes))
    if any(offset) or not walks or prod(sizes) != prod(item.home.shape):
        return None
    if item.home.on_chip and sizes[0] != item.home.shape[0]:
        return None
    return name if sizes == item.home.shape else f"{name}.reshape({sizes})"


def _broadcast_rows(name: str, item: RowOperand, offset: AffineNumber, scope: LoopScope) -> str | None:
    """Part of a tensor in HBM, repeated along new dimensions in front."""
    added = 0
    while added < len(item.dims) and item.dims[added][0] == 0:
        added += 1
    if not added or item.home.on_chip:
        return None
    shape = (*(1 for _ in range(added)), *item.home.shape)
    wider = TileClass(shape, item.home.dtype, item.home.buffer, None)
    place = _split_offset(wider, offset, scope)
    if place is None or not _is_window(wider, item.dims, place, scope):
        return None
    return _windowed(f"{name}.reshape({shape})", wider, item.dims, place=place, scope=scope)


def _split_window(name: str, item: RowOperand, offset: AffineNumber, scope: LoopScope) -> str | None:
    """A window some of whose dimensions are split, and that may then be permuted."""
    place = _split_offset(item.home, offset, scope)
    if place is None or any(step <= 0 for step, _ in item.dims):
        return None
    order = sorted(range(len(item.dims)), key=lambda axis: (-item.dims[axis][0], axis))
    pairs = [item.dims[axis] for axis in order]
    for joined, splits in _joinings(pairs):
        if not _is_window(item.home, tuple(joined), place, scope):
            continue
        text = _windowed(name, item.home, tuple(joined), place=place, scope=scope)
        for axis, sizes in reversed(splits):
            text += f".reshape_dim({axis}, {sizes})"
        if order != sorted(order):
            text += f".permute({tuple(order.index(axis) for axis in range(len(order)))})"
        return text
    return None


def _other_rows(name: str, item: RowOperand, offset: AffineNumber, scope: LoopScope) -> str | None:
    """Neighbouring elements of a tensor in HBM as rows of another length than it was declared with."""
    sizes = tuple(count for _, count in item.dims)
    row, elements = prod(sizes[1:]), prod(item.home.shape)
    if item.home.on_chip or item.dims != _row_major(sizes) or elements % row:
        return None
    if any(number % row for number in offset):
        return None
    shape = (elements // row, *sizes[1:])
    other = TileClass(shape, item.home.dtype, item.home.buffer, None)
    place = [tuple(number // row for number in offset), *[(0,) * len(offset)] * len(sizes[1:])]
    return _windowed(f"{name}.reshape({shape})", other, item.dims, place=place, scope=scope)


def _joinings(
    pairs: Sequence[tuple[int, int]],
) -> list[tuple[list[tuple[int, int]], list[tuple[int, tuple[int, ...]]]]]:
    """Ways to join neighbouring pairs that follow one another, with the sizes of what was joined."""
    found = []
    for length in range(2, len(pairs) + 1):
        for start in range(len(pairs) - length + 1):
            part = pairs[start : start + length]
            if all(outer[0] == inner[0] * inner[1] for outer, inner in pairwise(part)):
                joined = [*pairs[:start], (part[-1][0], prod(c for _, c in part)), *pairs[start + length :]]
                found.append((joined, [(start, tuple(count for _, count in part))]))
    return [(list(pairs), []), *found]


def _is_window(home: TileClass, dims: Dims, place: Sequence[AffineNumber], scope: LoopScope) -> bool:
    """Whether a pattern from a place is a window along the declared dimensions, which no iteration leaves."""
    pairs = match_dimensions(home, dims)
    if pairs is None:
        return False
    reached = (
        scope.largest(start) + (0 if pair is None else dims[pair][0] // stride * (dims[pair][1] - 1))
        for pair, start, stride in zip(pairs, place, home.strides, strict=True)
    )
    return all(last < size for last, size in zip(reached, home.shape, strict=True))


def _split_offset(home: TileClass, offset: AffineNumber, scope: LoopScope) -> list[AffineNumber] | None:
    """A flat offset as an index along each dimension; None if some iteration leaves a dimension."""
    if any(step < 0 for step in offset):
        return None
    parts = [locate(home, number) for number in offset]
    place = [tuple(part[axis] for part in parts) for axis in range(len(home.shape))]
    fits = all(scope.largest(number) < size for number, size in zip(place, home.shape, strict=True))
    return place if fits else None
