"""Finds conflicting accesses of one tensor by parties that have no order between them.

Parties are the iterations of a loop, or the cores of a launch. The boxes that enclose each party's accesses
settle nearly all tensors. Where boxes overlap, the check goes element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from nki_sim.flow import regions
from nki_sim.forms import Dims, reach_below
from nki_sim.program.ir import Ints, Program

READ, WRITE, UPDATE = range(3)
"""Kinds of accesses. Updates are associative, such as `+=`; other accesses that read and write are a READ."""

# The kinds of writes by other parties that conflict with each access. An update does not conflict with an
# earlier write, because that write is the initial value of its sum.
_CONFLICTING_WRITES = {READ: (WRITE, UPDATE), WRITE: (WRITE,), UPDATE: (WRITE,)}


Owners = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PartyAccesses:
    """Some cells of a program, the party of each (from 0), and the scope in which parties have no order."""

    cells: Ints
    parties: Ints
    scopes: Ints
    kinds: Ints


@dataclass(frozen=True, slots=True)
class AccessConflict:
    """A party touches, with `cell`, elements that another party writes."""

    cell: int
    party: int
    other: int


def find_conflicts(program: Program, accesses: PartyAccesses, seen: set[int]) -> Iterator[AccessConflict]:
    """Yield at most one conflict for each declaration that is not in `seen`; adds those found to `seen`."""
    if not len(accesses.cells):
        return
    boxes = regions.access_boxes(program, accesses.cells)
    for group in _group_accesses(program, accesses):
        site = int(program.tensor_sites[program.cells.tensor[accesses.cells[group[0]]]])
        if site in seen:
            continue
        found = _find_conflict(program, accesses, group, boxes=boxes[group])
        if found is not None:
            seen.add(site)
            yield found


def _group_accesses(program: Program, accesses: PartyAccesses) -> Iterator[Ints]:
    """Positions of the accesses of one tensor in one scope, sorted by party.

    Only tensors that several parties touch and one of them writes.
    """
    tensors = program.cells.tensor[accesses.cells]
    order = np.lexsort((accesses.parties, accesses.scopes, tensors))
    keys = np.stack([tensors[order], accesses.scopes[order]])
    first = np.flatnonzero(np.concatenate([[True], np.any(keys[:, 1:] != keys[:, :-1], axis=0)]))
    last = np.concatenate([first[1:], [len(order)]]) - 1
    several = accesses.parties[order[first]] != accesses.parties[order[last]]
    writes = np.logical_or.reduceat(program.cells.writes[accesses.cells[order]], first)
    for begin, end in zip(first[several & writes].tolist(), last[several & writes].tolist(), strict=True):
        yield order[begin : end + 1]


def _find_conflict(
    program: Program, accesses: PartyAccesses, group: Ints, *, boxes: Ints
) -> AccessConflict | None:
    parties = accesses.parties[group]
    if _only_updates(program, accesses, group):
        return None
    first = np.flatnonzero(np.diff(parties, prepend=-1))
    bounds = np.stack([
        np.minimum.reduceat(boxes[:, 0], first), np.maximum.reduceat(boxes[:, 1], first),
        np.minimum.reduceat(boxes[:, 2], first), np.maximum.reduceat(boxes[:, 3], first),
    ], axis=1)  # fmt: skip
    if _intervals_disjoint(bounds[:, 0], bounds[:, 1]) or _intervals_disjoint(bounds[:, 2], bounds[:, 3]):
        return None
    near, _ = regions.find_overlaps(bounds)
    close = np.array([len(others) > 1 for others in near], dtype=bool)
    if not close.any() or _parties_disjoint(program, accesses.cells[group], first):
        return None
    mine = np.repeat(close, np.diff(np.append(first, len(group))))
    return _ElementOwners(program, accesses, group[mine]).first_conflict()


def _only_updates(program: Program, accesses: PartyAccesses, group: Ints) -> bool:
    """Whether all accesses are updates, except for writes of one party before any update."""
    kinds, parties = accesses.kinds[group], accesses.parties[group]
    writes = kinds == WRITE
    if np.any(kinds == READ) or not writes.any():
        return not np.any(kinds == READ)
    numbers = program.cells.instruction[accesses.cells[group]]
    alone = parties[writes].min() == parties[writes].max()
    return bool(alone and numbers[writes].max() < numbers[~writes].min(initial=len(program)))


def _parties_disjoint(program: Program, cells: Ints, first: Ints) -> bool:
    """Whether the parties, which begin at `first`, touch disjoint ranges along some tensor dimensions."""
    table, shape = program.cells, program.site(int(program.cells.tensor[cells[0]])).shape
    if int(table.tensor[cells[0]]) in program.reinterpreted_tensors or len(first) > _MOST_PAIRED:
        return False
    used = np.unique(table.operand[cells])
    items = [program.operands[item] for item in used.tolist()]
    extents = np.array([_pattern_extents(item.ascending_dims, shape) for item in items])
    number = np.searchsorted(used, table.operand[cells])
    first_elements = table.offset[cells] - np.array([item.reach_below for item in items])[number]
    low = np.stack(np.unravel_index(first_elements, shape), axis=1)
    high = low + extents[number]
    if np.any(high > np.array(shape)):
        return False
    low, high = np.minimum.reduceat(low, first), np.maximum.reduceat(high, first)
    meets = np.all((low[:, None] < high[None]) & (low[None] < high[:, None]), axis=2)
    return int(np.count_nonzero(meets)) == len(first)


_MOST_ELEMENTS = 1 << 26
"""Limit on elements of a tensor that are checked one by one; each takes 28 bytes."""

_MOST_PAIRED = 1024
"""Limit on parties that are compared pairwise."""


def _pattern_extents(dims: Dims, shape: tuple[int, ...]) -> list[int]:
    """How far a pattern reaches along each dimension; a step counts for the largest that divides it."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    found = [1] * len(shape)
    for step, count in dims:
        if step and count > 1:
            axis = next(axis for axis, stride in enumerate(strides) if step % stride == 0)
            found[axis] += step // strides[axis] * (count - 1)
    return found


def _intervals_disjoint(starts: Ints, ends: Ints) -> bool:
    order = np.argsort(starts, kind="stable")
    return bool(np.all(starts[order[1:]] >= np.maximum.accumulate(ends[order])[:-1]))


@dataclass(frozen=True, slots=True)
class _PatternAccess:
    """One access pattern of one party, in bytes if the tensor is read as several types."""

    cell: int
    instruction: int
    party: int
    kind: int
    writes: bool
    offset: int
    dims: Dims

    @property
    def low(self) -> int:
        return self.offset - reach_below(self.dims)

    @property
    def end(self) -> int:
        return self.offset + 1 + sum(step * (count - 1) for step, count in self.dims if step > 0)

    def owners_view(self, owners: Owners, base: int) -> Owners:
        """The owners of the elements it touches."""
        shape = tuple(count for _, count in self.dims)
        strides = tuple(step * owners.itemsize for step, _ in self.dims)
        return np.ndarray(shape, owners.dtype, owners, (self.offset - base) * owners.itemsize, strides)


class _ElementOwners:
    """The parties that write each element of a tensor, by kind of write."""

    def __init__(self, program: Program, accesses: PartyAccesses, group: Ints) -> None:
        table, items, cells = program.cells, program.operands, accesses.cells[group]
        bytewise = int(table.tensor[cells[0]]) in program.reinterpreted_tensors
        columns = (
            accesses.parties[group], accesses.kinds[group], table.writes[cells], table.offset[cells],
            table.operand[cells],
        )  # fmt: skip
        # Equal accesses of one party count once; for writes the last one counts.
        reverse = [column[::-1] for column in columns]
        _, at = np.unique(np.stack(reverse), axis=1, return_index=True)
        at = len(cells) - 1 - at
        at = np.sort(at)
        self._accesses = [
            _PatternAccess(
                cell, instruction, party, kind, bool(writes),
                offset * (items[number].itemsize if bytewise else 1),
                regions.pattern_in_bytes(items[number]) if bytewise else items[number].dims,
            )
            for cell, instruction, party, kind, writes, offset, number in zip(
                cells[at].tolist(), table.instruction[cells[at]].tolist(),
                *(column[at].tolist() for column in columns), strict=True,
            )
        ]  # fmt: skip
        self._base = min(access.low for access in self._accesses)
        self._size = max(access.end for access in self._accesses) - self._base

    def first_conflict(self) -> AccessConflict | None:
        """The first conflict; None if the tensor is too large to check every element."""
        if self._size > _MOST_ELEMENTS:
            return None
        # The first and the last party that write each element, by kind, and the last instruction to write it.
        first = np.full((3, self._size), np.iinfo(np.int32).max, dtype=np.int32)
        last = np.full((3, self._size), -1, dtype=np.int32)
        latest = np.full(self._size, -1, dtype=np.int32)
        for access in self._accesses:
            if access.writes:
                kind = max(access.kind, WRITE)
                self._mark_owners(access, first[kind], np.minimum, value=access.party)
                self._mark_owners(access, last[kind], np.maximum, value=access.party)
                if kind == WRITE:
                    self._mark_owners(access, latest, np.maximum, value=access.instruction)
        for access in self._accesses:
            late = access.owners_view(latest, self._base) > access.instruction
            for kind in _CONFLICTING_WRITES[access.kind]:
                counts = late if (access.kind, kind) == (UPDATE, WRITE) else np.True_
                others = (
                    access.owners_view(first[kind], self._base),
                    access.owners_view(last[kind], self._base),
                )
                for other, strange in zip(others, (np.less, np.greater), strict=True):
                    clashing = other[strange(other, access.party) & counts]
                    if len(clashing):
                        return AccessConflict(access.cell, access.party, int(clashing[0]))
        return None

    def _mark_owners(self, access: _PatternAccess, table: Owners, choose: np.ufunc, *, value: int) -> None:
        view = access.owners_view(table, self._base)
        choose(view, value, out=view)
