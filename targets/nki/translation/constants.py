"""Recognises index arithmetic in known numbers, so that an engine can make them instead of loading them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from targets.nki.translation.access import Atom
from targets.nki.translation.values import Array, Table

_LARGEST = 1 << 24
"""Whole numbers up to here are exact in float32."""


@dataclass(frozen=True, slots=True)
class AffineNumbers:
    """offset + sum of step * loop, in whole numbers, times a factor."""

    offset: int
    steps: dict[Atom, int]
    factor: float = 1.0


def find_affine(table: Table) -> AffineNumbers | None:
    """Return known numbers as affine whole numbers times a factor; None if they are something else."""
    numbers = table.numbers
    if not np.isfinite(numbers).all():
        return None
    for factor in (1.0, _smallest_step(numbers)):
        if factor and (found := _fit(numbers / factor, table.loops)) is not None:
            made = found.offset + sum(step * _ramp(table, atom) for atom, step in found.steps.items())
            if np.array_equal(np.float32(made) * np.float32(factor), numbers.astype(np.float32)):
                return AffineNumbers(found.offset, found.steps, factor)
    return None


def _smallest_step(numbers: Array) -> float:
    steps = [abs(float(np.take(numbers, 1, axis).flat[0] - numbers.flat[0])) for axis in range(numbers.ndim)]
    return min((step for step in steps if step), default=0.0)


def _ramp(table: Table, atom: Atom) -> Array:
    at = table.loops.index(atom)
    return np.arange(atom.size, dtype=np.float64).reshape((-1,) + (1,) * (len(table.loops) - 1 - at))


def _fit(numbers: Array, loops: tuple[Atom, ...]) -> AffineNumbers | None:
    rounded = np.rint(numbers)
    if np.abs(numbers - rounded).max() > 1e-9 * max(1.0, np.abs(numbers).max()):
        return None
    if np.abs(rounded).max() > _LARGEST:
        return None
    offset = int(rounded.flat[0])
    steps = {atom: int(np.take(rounded, 1, axis).flat[0]) - offset for axis, atom in enumerate(loops)}
    return AffineNumbers(offset, steps)


def find_predicate(table: Table) -> AffineNumbers | None:
    """Return affine whole numbers that are at least 0 where the table is true and below 0 elsewhere.

    Only tables of 0 and 1 have them. Each line along the last loop has to be true on one side of a place that
    moves evenly with the other loops; lines that are all true or all false may lie beyond the ends.
    """
    numbers = table.numbers
    if not bool(np.isin(numbers, (0.0, 1.0)).all()):
        return None
    for direction in (1, -1):
        for steps in _candidate_steps(numbers):
            found = _threshold(table, direction, steps)
            if found is not None:
                return found
    return None


def split_band(table: Table) -> tuple[Table, Table] | None:
    """Return two tables of 0 and 1, each with a predicate, whose product is the table; None if it is no band.

    Such a table is true between two places of each line, as the mask of a window of keys is.
    """
    numbers = table.numbers
    if not numbers.ndim or not bool(np.isin(numbers, (0.0, 1.0)).all()):
        return None
    after = np.maximum.accumulate(numbers, axis=-1)
    before = np.flip(np.maximum.accumulate(np.flip(numbers, -1), axis=-1), -1)
    parts = replace(table, numbers=after), replace(table, numbers=before)
    if not np.array_equal(after * before, numbers) or None in map(find_predicate, parts):
        return None
    return parts


def _candidate_steps(numbers: Array) -> Iterator[tuple[int, ...]]:
    """Steps of the other loops for one step of the last one: from how the border moves between lines."""
    borders = numbers.sum(axis=-1)
    inside = [(borders > 0) & (borders < numbers.shape[-1])]
    choices: list[list[int]] = []
    for axis in range(numbers.ndim - 1):
        both = np.take(inside[0], range(1, borders.shape[axis]), axis) & np.take(
            inside[0], range(borders.shape[axis] - 1), axis
        )
        moved = np.abs(np.diff(borders, axis=axis))[both]
        # A loop that was split moves the border by whole lines, so no two neighbours have it inside.
        step = int(moved.flat[0]) if moved.size else numbers.shape[-1]
        choices.append([step, -step] if step else [0])
        choices[-1] += [0] if step and not moved.size else []
    yield from product(*choices)


def _threshold(table: Table, direction: int, steps: tuple[int, ...]) -> AffineNumbers | None:
    """The offset for which direction * last + steps >= -offset exactly where the table is true."""
    score = np.zeros(table.numbers.shape)
    weights = (*steps, direction)
    for atom, weight in zip(table.loops, weights, strict=True):
        score = score + weight * _ramp(table, atom)
    is_true = table.numbers != 0
    if not is_true.any() or is_true.all():
        return None
    least = int(score[is_true].min())
    if score[~is_true].max() >= least:
        return None
    return AffineNumbers(-least, dict(zip(table.loops, weights, strict=True)))
