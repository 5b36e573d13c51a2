"""Joins matmuls: work that the tensor engine does in tiles is computed in few large products.

The matmuls that accumulate onto one region form a chain. A chain is one product with joined contractions.
Chains that share their stationary or their moving operands are rectangles of a larger product. Chains are
joined only if every operand holds the same values at the time of the product as at the time of its matmul,
and if nothing reads the sums in between. A narrow product does not get wider: see `multiply`. Results then
differ from separate matmuls only by the order of float32 additions, which hardware does not promise either.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nki_sim.flow.graph import DataFlow
from nki_sim.forms import Form
from nki_sim.program.ir import Bools, Ints, Program
from nki_sim.running.copy_forwarding import CopyForwarding, WriteTimes, matrix_steps
from nki_sim.semantics.matrix import NARROW

MAX_RESULT = 1 << 24
"""Limit on elements of a joined product."""

MAX_OPERAND = 1 << 25
"""Limit on elements of each of its operands, which may have to be gathered from many tiles."""

MAX_TRIES = 512
"""Limit on chains tried to widen one product in one direction."""

_NEUTRAL = (False, None, "none", ())


class MatrixBlock(NamedTuple):
    """A matrix in a tensor's memory: its first element, and (step, count) of contraction and free axis."""

    base: int
    offset: int
    down: int
    rows: int
    across: int
    columns: int
    dtype: str


@dataclass(eq=False, slots=True)
class MatmulChain:
    """Matmuls that add up on one region; `cell` is the last one's dst.

    `fresh` chains start from nothing, and all readers of the sum read nothing else, so it can live anywhere.
    """

    numbers: list[int]
    stationary: list[MatrixBlock]
    moving: list[MatrixBlock]
    cell: int
    accumulate: bool
    fresh: bool = False

    @property
    def rows(self) -> int:
        return self.stationary[0].columns

    @property
    def columns(self) -> int:
        return self.moving[0].columns


ChainGrid = tuple[tuple[MatmulChain, ...], ...]


def _can_fuse(form: Form) -> bool:
    if form.op != "nc_matmul" or form["dst"].dtype != "float32":
        return False
    neutral = all(value in _NEUTRAL for name, value in form.params if name != "accumulate")
    return neutral and not any(item.index_step or item.dtype == "tfloat32" for item in form.operands)


class _ChainFinder:
    """Finds the chains among the live matmuls."""

    def __init__(
        self, program: Program, flow: DataFlow, served: CopyForwarding, writes: WriteTimes, live: Bools
    ) -> None:
        self._program = program
        self._flow = flow
        self._served = served
        self._writes = writes
        self._live = live
        self._roles = [[item.role for item in form.operands] for form in program.forms]
        self._walks: dict[tuple[int, tuple[int, int] | None], tuple[int, int] | None] = {}

    def find_chains(self) -> list[MatmulChain]:
        program = self._program
        fits = np.array([_can_fuse(form) for form in program.forms], dtype=bool)
        if not len(program) or not fits.any():
            return []
        uses, seen_whole = self._count_readers()
        found: dict[int, MatmulChain] = {}
        done: list[MatmulChain] = []
        for number in np.flatnonzero(fits[program.form_ids] & self._live).tolist():
            cell = self._operand_cell(number, "dst")
            left, right = self._operand_block(number, "stationary"), self._operand_block(number, "moving")
            if left is None or right is None or not self._has_plain_rows(cell):
                continue
            accumulate = bool(program.forms[program.form_ids[number]].param("accumulate"))
            before = found.pop(int(self._flow.single[cell]), None) if accumulate else None
            if before is not None and uses[before.cell] == 1 and self._is_same_region(before.cell, cell):
                before.numbers.append(number)
                before.stationary.append(left)
                before.moving.append(right)
                before.cell = cell
            else:
                before = MatmulChain([number], [left], [right], cell, accumulate)
                done.append(before)
            found[cell] = before
        for chain in done:
            chain.fresh = not chain.accumulate and bool(seen_whole[chain.cell])
        return [piece for chain in done for piece in self._cut_chain(chain)]

    def _count_readers(self) -> tuple[Ints, Bools]:
        """Per written cell, how often it is read, and whether its readers read nothing else and no index."""
        program, flow, cells = self._program, self._flow, self._program.cells
        root = self._served.root
        plain = np.array([not any(item.index_step for item in form.operands) for form in program.forms])
        chosen = np.flatnonzero(cells.reads & self._live[cells.instruction])
        single = flow.single[root[chosen]]
        uses = np.bincount(single[single >= 0], minlength=len(cells.tensor))
        whole = uses > 0
        whole[
            single[(single >= 0) & (cells.writes | ~plain[program.form_ids[cells.instruction]])[chosen]]
        ] = False
        for group in (
            flow.finals.values(),
            (flow.several.get(cell, ()) for cell in root[chosen[single < 0]].tolist()),
        ):
            for writers in group:
                uses[list(writers)] += 1
                whole[list(writers)] = False
        return uses, whole

    def _operand_cell(self, number: int, role: str) -> int:
        roles = self._roles[self._program.form_ids[number]]
        return int(self._program.cells.first[number]) + roles.index(role)

    def _is_same_region(self, cell: int, other: int) -> bool:
        """Whether two cells of a tensor are the same region, element by element."""
        cells, items = self._program.cells, self._program.operands
        same = items[cells.operand[cell]].dims == items[cells.operand[other]].dims
        return same and bool(cells.offset[cell] == cells.offset[other])

    def _has_plain_rows(self, cell: int) -> bool:
        """Whether a sum is plain rows of its tile."""
        item = self._program.operands[self._program.cells.operand[cell]]
        steps = matrix_steps(item.dims, item.partitions)
        simple = steps is not None and (steps[1] == 1 or item.free == 1)
        return simple and int(self._program.cells.tensor[cell]) not in self._served.soft

    def _operand_block(self, number: int, role: str) -> MatrixBlock | None:
        """The matrix that an operand is; None if two steps do not describe it."""
        cells = self._program.cells
        cell = self._operand_cell(number, role)
        operand = int(cells.operand[cell])
        item = self._program.operands[operand]
        place = self._served.places.get(cell)
        key = (operand, (place.down, place.across) if place else None)
        if key not in self._walks:
            self._walks[key] = matrix_steps(
                place.map_dims(item.dims) if place else item.dims, item.partitions
            )
        steps = self._walks[key]
        if steps is None or int(cells.tensor[cell]) in self._served.soft:
            return None
        base, offset = int(cells.tensor[cell]), int(cells.offset[cell])
        if place:
            base, offset = place.base, place.map_offset(offset, item.row)
        return MatrixBlock(base, offset, steps[0], item.partitions, steps[1], item.free, item.dtype)

    def _cut_chain(self, chain: MatmulChain) -> Iterator[MatmulChain]:
        """Cut the chain into pieces within which no operand is overwritten before the piece ends."""
        pieces: list[MatmulChain] = []
        horizon = -1.0
        for number, left, right in zip(chain.numbers, chain.stationary, chain.moving, strict=True):
            if number > horizon:
                pieces.append(MatmulChain([], [], [], 0, chain.accumulate or bool(pieces)))
                horizon = float("inf")
            horizon = min(horizon, *(self._writes.next_write(block.base, number) for block in (left, right)))
            piece = pieces[-1]
            piece.numbers.append(number)
            piece.stationary.append(left)
            piece.moving.append(right)
            piece.cell = self._operand_cell(number, "dst")
        pieces[-1].fresh = chain.fresh and len(pieces) == 1
        # Leave a single matmul that adds to existing contents as it is.
        return (piece for piece in pieces if piece.fresh or len(piece.numbers) > 1)


class _ChainJoiner:
    """Joins chains that are rectangles of one product, which is computed when the first of them ends."""

    def __init__(self, chains: list[MatmulChain], writes: WriteTimes) -> None:
        self._chains = sorted(chains, key=lambda chain: chain.numbers[-1])
        self._writes = writes
        self._used = [False] * len(chains)
        ids: dict[tuple[MatrixBlock, ...], int] = {}
        self._keys = [
            tuple(ids.setdefault(tuple(blocks), len(ids)) for blocks in (chain.stationary, chain.moving))
            for chain in self._chains
        ]
        self._groups: dict[tuple[int | None, ...], list[int]] = defaultdict(list)
        for at, (left, right) in enumerate(self._keys):
            if self._chains[at].fresh:
                for key in ((left, None), (None, right), (left, right)):
                    self._groups[key].append(at)

    def join(self) -> Iterator[ChainGrid]:
        for at, chain in enumerate(self._chains):
            if not self._used[at]:
                grid = self._grow_grid(at) if chain.fresh else [[at]]
                for member in (member for row in grid for member in row):
                    self._used[member] = True
                yield tuple(tuple(self._chains[member] for member in row) for row in grid)

    def _grow_grid(self, first: int) -> list[list[int]]:
        """A row of chains with the first one's stationary operands, then similar rows below."""
        left, right = self._keys[first]
        depth = sum(block.rows for block in self._chains[first].moving)
        row, columns = [first], self._chains[first].columns
        for other in self._joinable_chains((left, None), first):
            if min(self._chains[other].columns, self._chains[first].columns) <= NARROW:
                continue
            columns += self._chains[other].columns
            if columns * depth > MAX_OPERAND or columns * self._chains[first].rows > MAX_RESULT:
                break
            if all(self._keys[other] != self._keys[member] for member in row):
                row.append(other)
        columns = sum(self._chains[member].columns for member in row)
        grid, rows = [row], self._chains[first].rows
        lefts = {left}
        for other in self._joinable_chains((None, right), first):
            if min(self._chains[other].rows, self._chains[first].rows) <= NARROW:
                continue
            rows += self._chains[other].rows
            if rows * depth > MAX_OPERAND or rows * columns > MAX_RESULT:
                break
            line = self._matching_row(self._keys[other][0], row, first)
            if line and self._keys[other][0] not in lefts:
                lefts.add(self._keys[other][0])
                grid.append(line)
        return grid

    def _matching_row(self, left: int, row: list[int], first: int) -> list[int]:
        """Chains of another stationary operand with a row's moving operands; none if one is missing."""
        line = []
        for member in row:
            found = next(self._joinable_chains((left, self._keys[member][1]), first), None)
            if found is None:
                return []
            line.append(found)
        return line

    def _joinable_chains(self, key: tuple[int | None, ...], first: int) -> Iterator[int]:
        """Unused chains that may be computed when the first one ends."""
        group = self._groups[key]
        start = bisect_right(group, first)
        for other in group[start : start + MAX_TRIES]:
            if not self._used[other] and self._can_move(self._chains[other], self._chains[first].numbers[-1]):
                yield other

    def _can_move(self, chain: MatmulChain, time: int) -> bool:
        """Whether its operands hold the same values at that time as at its own."""
        for number, left, right in zip(chain.numbers, chain.stationary, chain.moving, strict=True):
            # The product replaces the matmul at that time, whose own result does not exist yet.
            early, late = (number, time) if number < time else (time - 1, number)
            if (
                self._writes.next_write(left.base, early) <= late
                or self._writes.next_write(right.base, early) <= late
            ):
                return False
        return True


def join_matmuls(
    program: Program, flow: DataFlow, served: CopyForwarding, writes: WriteTimes, live: Bools
) -> Iterator[ChainGrid]:
    """Yield grids [i][j] of chains to compute together.

    A row of a grid shares its stationary operands, a column its moving ones. Grids are ordered by the end of
    their first chain, which is when they can be computed. Matmuls in no grid run one by one.
    """
    return _ChainJoiner(_ChainFinder(program, flow, served, writes, live).find_chains(), writes).join()
