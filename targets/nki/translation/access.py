"""Affine indices: which element of an array each iteration of some loops reads or writes.

An `Atom` is one loop, from 0 to its size. An `Access` says that iteration (i, j, ...) means element
`offset + stride_i * i + stride_j * j + ...` of an array's row-major layout. Slices, transposes, broadcasts
and reshapes of an array are all accesses to it. A reshape may need a loop to be split in two;
`SplitNeededError` says which and where, and whoever made the loop begins anew with it split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from remote.judge.identity.expression import Shape, strides_of
from targets.base import UntranslatableError


@dataclass(frozen=True, slots=True)
class Atom:
    """A loop over 0, 1, ..., size - 1."""

    name: str
    size: int

    def split(self, inner: int) -> tuple[Atom, Atom]:
        """Return two loops, one in the other, that do the same; the inner one has this size."""
        return Atom(f"{self.name}o", self.size // inner), Atom(f"{self.name}i", inner)

    def is_split_with(self, inner: Atom) -> bool:
        """Whether this loop and the one inside it are a single one, split."""
        return Atom(self.name[:-1], self.size * inner.size).split(inner.size) == (self, inner)


Terms = tuple[tuple[Atom, int], ...]


class SplitNeededError(Exception):
    """A loop crosses the end of an axis; as two loops, the inner one of this size, it does not."""

    def __init__(self, atom: Atom, inner: int) -> None:
        super().__init__(f"{atom.name} of {atom.size} by {inner}")
        self.atom, self.inner = atom, inner


@dataclass(frozen=True, slots=True)
class AxisIndex:
    """The index along one axis: offset + sum of step * atom."""

    offset: int = 0
    terms: Terms = ()

    def shift(self, offset: int, step: int) -> AxisIndex:
        """Return offset + step * this index."""
        return AxisIndex(offset + step * self.offset, tuple((atom, step * by) for atom, by in self.terms))


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of a row-major array: an offset, and the stride of each loop that moves it."""

    offset: int
    terms: Terms

    @property
    def atoms(self) -> frozenset[Atom]:
        """The loops that the element depends on."""
        return frozenset(atom for atom, _ in self.terms)

    @property
    def backward(self) -> frozenset[Atom]:
        """The loops that go from the end of an array to its start."""
        return frozenset(atom for atom, stride in self.terms if stride < 0)

    def turned(self) -> Access:
        """Return the access that walks the same elements with every loop going forward."""
        start = self.offset + sum(stride * (atom.size - 1) for atom, stride in self.terms if stride < 0)
        return Access(start, tuple((atom, abs(stride)) for atom, stride in self.terms))

    def stride(self, atom: Atom) -> int:
        """How many elements one step of a loop moves, 0 for other loops."""
        return next((stride for mine, stride in self.terms if mine == atom), 0)

    def split_by_axis(self, shape: Shape) -> list[AxisIndex]:
        """Return the index along each axis of an array of this shape.

        Raises:
            SplitNeededError: a loop runs over the end of an axis.
            UntranslatableError: rows run over the end of an axis.
        """
        units = strides_of(shape)
        starts = [int(at) for at in np.unravel_index(self.offset, shape)] if shape else []
        terms: list[list[tuple[Atom, int]]] = [[] for _ in shape]
        for atom, stride in self.terms:
            axis = next(
                (at for at, unit in enumerate(units) if shape[at] > 1 and abs(stride) >= unit), len(shape) - 1
            )
            step, rest = divmod(stride, units[axis])
            terms[axis].append((atom, step))
            while rest:  # along a diagonal, a loop moves several axes
                axis = next(at for at, unit in enumerate(units) if shape[at] > 1 and rest >= unit)
                step, rest = divmod(rest, units[axis])
                terms[axis].append((atom, step))
        for axis, size in enumerate(shape):
            _check_inside(starts[axis], terms[axis], size)
        return [AxisIndex(start, tuple(own)) for start, own in zip(starts, terms, strict=True)]


def _check_inside(start: int, terms: Iterable[tuple[Atom, int]], size: int) -> None:
    """Raise if an index reaches the end of its axis: its slowest loop is to be split there."""
    terms = sorted(terms, key=lambda term: -abs(term[1]))
    low = start + sum(min(0, step * (atom.size - 1)) for atom, step in terms)
    high = start + sum(max(0, step * (atom.size - 1)) for atom, step in terms)
    if low >= 0 and high < size:
        return
    for atom, step in terms:
        inner = size // abs(step)
        if size % abs(step) == 0 and 1 < inner < atom.size and atom.size % inner == 0:
            raise SplitNeededError(atom, inner)
        inner = gcd(inner, atom.size)
        if 1 < inner < atom.size:
            raise SplitNeededError(atom, inner)
    raise UntranslatableError(f"rows that run over the end of an axis of {size}")


def join_axes(shape: Shape, indices: Sequence[AxisIndex]) -> Access:
    """Return the access with these indices along the axes of an array; axes of size 1 do not move it."""
    offset, found = 0, dict[Atom, int]()
    for size, unit, index in zip(shape, strides_of(shape), indices, strict=True):
        if size == 1:
            continue
        offset += index.offset * unit
        for atom, step in index.terms:
            found[atom] = found.get(atom, 0) + step * unit
    return make_access(offset, found.items())


def make_access(offset: int, terms: Iterable[tuple[Atom, int]]) -> Access:
    """Return an access; loops that do not move it are left out, and the order of the others is fixed."""
    kept = [(atom, stride) for atom, stride in terms if stride and atom.size > 1]
    return Access(offset, tuple(sorted(kept, key=lambda term: term[0].name)))


def through_view(access: Access, view_shape: Shape, strides: Shape, offset: int) -> Access:
    """Return the access to a view's source that an access to the view means."""
    found = dict[Atom, int]()
    at = offset
    for size, stride, index in zip(view_shape, strides, access.split_by_axis(view_shape), strict=True):
        if size > 1:
            at += stride * index.offset
            for atom, step in index.terms:
                found[atom] = found.get(atom, 0) + stride * step
    return make_access(at, found.items())


def through_broadcast(access: Access, shape: Shape, source: Shape) -> Access:
    """Return the access to an array that was broadcast from shape `source` to `shape`."""
    if shape == source:
        return access
    indices = access.split_by_axis(shape)[len(shape) - len(source) :]
    return join_axes(source, indices)


def match_axes(own: Shape, shape: Shape, axes: Sequence[AxisIndex]) -> list[AxisIndex]:
    """The first result's loops for a result whose axes are some of its axes, in order."""
    found: list[AxisIndex] = []
    at = 0
    for size in own:
        if size == 1:
            found.append(AxisIndex())
            continue
        while at < len(shape) and shape[at] != size:
            at += 1
        if at == len(shape):
            raise UntranslatableError("results of different axes")
        found.append(axes[at])
        at += 1
    return found
