"""Takes known numbers apart into index arithmetic, so that engines make large tables.

Masks that are added to scores, and biases that grow with the distance of two positions, have a number for
each pair of positions. As text they would be longer than a kernel may be.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from targets.nki.translation.access import Atom
from targets.nki.translation.constants import find_affine, find_predicate, split_band
from targets.nki.translation.values import Array, Binary, Number, Select, Table, Unary, Value

_FEWEST = 4096
"""Numbers from which a table is taken apart."""
_HIDDEN = -1e4
"""Numbers from here down hide a score: exp of them is 0 beside others."""
_NOISE = 1e-6
"""Relative difference that rounding explains."""

_Places = NDArray[np.bool_]


def compose_table(table: Table) -> Value | None:
    """Return a table as index arithmetic, columns and a mask; None if it is something else, or short."""
    numbers = table.numbers
    if numbers.size < _FEWEST or find_affine(table) or find_predicate(table) or split_band(table):
        return None
    hidden = numbers <= _HIDDEN
    if not hidden.any():
        return _compose_shown(table, ~hidden)
    kept = _without_repeats(Table(table.node, np.where(hidden, 0.0, 1.0), table.loops))
    if hidden.all() or not (find_predicate(kept) or split_band(kept)):
        return None
    shown, fill = numbers[~hidden], float(numbers[hidden].max())
    if np.isfinite(fill) and not shown.any():
        raised = Binary(table.node, "multiply", kept, Number(table.node, -fill))
        return Binary(table.node, "add", raised, Number(table.node, fill))
    rest: Value | None
    if (shown == shown[0]).all():
        rest = Number(table.node, float(shown[0]))
    else:
        rest = _compose_shown(table, ~hidden)
    return None if rest is None else _choose(kept, rest, fill)


def _choose(kept: Table, rest: Value, fill: float) -> Value:
    """The rest where a mask is 1, else a number; a band is two masks."""
    parts = (kept,) if find_predicate(kept) else split_band(kept) or (kept,)
    found = rest
    for part in parts:
        found = Select(kept.node, part, found, Number(kept.node, fill))
    return found


def _without_repeats(table: Table) -> Table:
    """A table without the loops along which it stays the same."""
    numbers, loops = table.numbers, list(table.loops)
    for axis in range(numbers.ndim - 1, -1, -1):
        first = np.take(numbers, [0], axis)
        if (numbers == first).all():
            numbers = first.squeeze(axis)
            del loops[axis]
    return Table(table.node, np.array(numbers), tuple(loops))


def _compose_shown(table: Table, shown: _Places) -> Value | None:
    """Numbers that are affine or a distance in the loops where they count, maybe times a column."""
    found = _find_distance(table, shown)
    if found is not None or table.numbers.ndim < 2:
        return found
    for axis, atom in enumerate(table.loops):
        line = _factors(table.numbers, shown, axis)
        if line is None:
            continue
        rest = Table(table.node, np.take(table.numbers, 0, axis), _without(table.loops, atom))
        distance = _find_distance(rest, np.take(shown, 0, axis))
        if distance is not None:
            return Binary(table.node, "multiply", distance, Table(table.node, line, (atom,)))
    return None


def _without(loops: tuple[Atom, ...], atom: Atom) -> tuple[Atom, ...]:
    return tuple(one for one in loops if one != atom)


def _factors(numbers: Array, shown: _Places, axis: int) -> Array | None:
    """The factors by which slices along an axis are the first one; None if they are no multiples of it."""
    first, places = np.take(numbers, 0, axis), np.take(shown, 0, axis)
    if not (shown == np.expand_dims(places, axis)).all():
        return None
    largest = np.unravel_index(np.argmax(np.where(places, np.abs(first), -1.0)), first.shape)
    if first[largest] == 0.0:
        return None
    lines = np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1)
    factors: Array = lines[:, np.ravel_multi_index(largest, first.shape)] / first[largest]
    made = np.expand_dims(first, axis) * factors.reshape(
        [-1 if one == axis else 1 for one in range(numbers.ndim)]
    )
    return factors if _is_close(made, numbers, shown) else None


def _find_distance(table: Table, shown: _Places) -> Value | None:
    """An affine function of the loops, or its absolute value, as it goes on from a corner of the table."""
    numbers = table.numbers
    if min(numbers.shape, default=1) < 2:
        return None
    for corner in product(*((0, size - 1) for size in numbers.shape)):
        steps = [1 if at == 0 else -1 for at in corner]
        inner = [tuple(p + s * (one == axis) for one, (p, s) in enumerate(zip(corner, steps, strict=True)))
                 for axis in range(numbers.ndim)]  # fmt: skip
        if not all(shown[place] for place in (corner, *inner)):
            continue
        made = np.full(numbers.shape, numbers[corner])
        for axis, place in enumerate(inner):
            slope = (numbers[place] - numbers[corner]) * steps[axis]
            along = (np.arange(numbers.shape[axis]) - corner[axis]) * slope
            made = made + along.reshape([-1 if one == axis else 1 for one in range(numbers.ndim)])
        affine = Table(table.node, made, table.loops)
        if find_affine(affine) is None:
            continue
        if _is_close(made, numbers, shown):
            return affine
        for sign in (1.0, -1.0):
            if _is_close(sign * np.abs(made), numbers, shown):
                distance = Unary(table.node, "absolute", affine)
                return (
                    distance
                    if sign > 0
                    else Binary(table.node, "multiply", distance, Number(table.node, sign))
                )
    return None


def _is_close(made: Array, wanted: Array, shown: _Places) -> bool:
    """Whether numbers are the same where they count, up to rounding."""
    one, other = made[shown], wanted[shown]
    return bool((np.abs(one - other) <= _NOISE * np.abs(other).max(initial=0.0)).all())
