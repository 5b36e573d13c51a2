"""Plans how to run a program: which instructions, where operands are read, which products are joined.

The plan leaves out instructions whose results reach no output, copies that need not be made
(`copy_forwarding`) and matmuls that are parts of larger products (`matmul_fusion`). It also says when memory
can be released. Instructions with data-dependent addresses always run, because they may raise errors.
Programs with data-dependent loops have no plan and run instruction by instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nki_sim.checks.races import find_agreeing_writes
from nki_sim.flow.graph import needed_instructions, trace_data_flow
from nki_sim.forms import Dims
from nki_sim.program.ir import Bools, Program
from nki_sim.running.copy_forwarding import CopyForwarding, WriteTimes
from nki_sim.running.machine import OperandView, make_view, prepare_form
from nki_sim.running.matmul_fusion import ChainGrid, MatmulChain, MatrixBlock, join_matmuls
from nki_sim.running.products import MatrixProduct


@dataclass(frozen=True, slots=True)
class ExecutionStep:
    """An instruction, or a product in its place; afterwards `dead` tensors are released."""

    number: int
    product: MatrixProduct | None
    dead: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class ExecutionPlan:
    """Steps in order, and for each cell of the program where its elements are and how to view them.

    `agreeing` maps instructions of two cores that must write the same values to the cell that each writes and
    the number of the other.
    """

    steps: list[ExecutionStep]
    tensors: list[int]
    offsets: list[int]
    views: list[OperandView]
    agreeing: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _ProductTile:
    """Where a chain's sum is: tile (top, left) of a product's result; and where it begins in its tensor."""

    tensor: int
    width: int
    top: int
    left: int
    partition: int
    free: int
    row: int

    def map_offset(self, offset: int) -> int:
        partition, free = divmod(offset, self.row)
        return (partition - self.partition + self.top) * self.width + free - self.free + self.left

    def map_step(self, step: int) -> int:
        """Map a step in the tile to a step in the result; whole rows stay whole rows."""
        return step if step % self.row else step // self.row * self.width


def _block_in_product(block: MatrixBlock, total: _ProductTile) -> MatrixBlock:
    """A part of a chain's tile, as a part of the product's result."""
    return block._replace(
        base=total.tensor,
        offset=total.map_offset(block.offset),
        down=total.map_step(block.down),
        across=total.map_step(block.across),
    )


def plan_execution(program: Program, tracked: frozenset[int]) -> ExecutionPlan:
    """Plan how to run a program without data-dependent loops on a machine that tracks some tensors."""
    return _ExecutionPlanner(program, tracked).build_plan()


class _ExecutionPlanner:
    def __init__(self, program: Program, tracked: frozenset[int]) -> None:
        self._program = program
        self._flow = trace_data_flow(program)
        self._writes = WriteTimes(program)
        self._forwarding = CopyForwarding(program, self._flow, self._writes, tracked)
        self._root = self._forwarding.root.tolist()
        writers = [cell for cells in self._flow.finals.values() for cell in cells]
        self._agreeing = find_agreeing_writes(program)
        wanted = [*writers, *self._indexed_cells(), *(cell for cell, _ in self._agreeing.values())]
        self._live = needed_instructions(program, self._flow, wanted, self._root)
        self._sums: dict[int, _ProductTile] = {}
        self._views: dict[tuple[int, Dims], OperandView] = {}
        self._forms = [form for form in program.forms for _ in form.operands]
        own = [item for form in program.forms for item in prepare_form(form, program.target).views]
        self._tensors, self._offsets = program.tensors.tolist(), program.offsets.tolist()
        self._cell_views = [own[operand] for operand in program.cells.operand.tolist()]

    def _indexed_cells(self) -> list[int]:
        """One cell of each instruction with data-dependent addresses."""
        moves = np.array([any(item.index_step for item in form.operands) for form in self._program.forms])
        chosen = moves[self._program.form_ids] if len(self._program) else np.zeros(0, bool)
        found: list[int] = self._program.cells.first[:-1][chosen].tolist()
        return found

    def build_plan(self) -> ExecutionPlan:
        found = list(join_matmuls(self._program, self._flow, self._forwarding, self._writes, self._live))
        alone = self._live.copy()
        for number, grid in enumerate(found):
            alone[[step for row in grid for chain in row for step in chain.numbers]] = False
            if grid[0][0].fresh:
                self._place_sums(len(self._program.tensor_sites) + number, grid)
        products = [
            self._make_product(len(self._program.tensor_sites) + at, grid) for at, grid in enumerate(found)
        ]
        steps = [ExecutionStep(number, None) for number in np.flatnonzero(alone).tolist()]
        steps += [ExecutionStep(product.number, product) for product in products]
        steps.sort(key=lambda step: step.number)
        self._redirect_reads(alone)
        steps = self._add_releases(steps)
        return ExecutionPlan(steps, self._tensors, self._offsets, self._cell_views, self._agreeing)

    def _place_sums(self, tensor: int, grid: ChainGrid) -> None:
        cells = self._program.cells
        width = sum(chain.columns for chain in grid[0])
        top = 0
        for row in grid:
            left = 0
            for chain in row:
                tile_row = self._program.operands[cells.operand[chain.cell]].row
                partition, free = divmod(int(cells.offset[chain.cell]), tile_row)
                self._sums[chain.cell] = _ProductTile(tensor, width, top, left, partition, free, tile_row)
                left += chain.columns
            top += row[0].rows

    def _make_product(self, tensor: int, grid: ChainGrid) -> MatrixProduct:
        head = grid[0][0]
        return MatrixProduct(
            head.numbers[-1],
            tensor if head.fresh else None,
            [self._operand_blocks(row[0], "stationary") for row in grid],
            [self._operand_blocks(chain, "moving") for chain in grid[0]],
            head.accumulate,
        )

    def _operand_blocks(self, chain: MatmulChain, role: str) -> list[MatrixBlock]:
        """A chain's operands; an operand that is a sum of other products is read from their result."""
        blocks = chain.stationary if role == "stationary" else chain.moving
        found = []
        for number, block in zip(chain.numbers, blocks, strict=True):
            form = self._program.forms[self._program.form_ids[number]]
            roles = [item.role for item in form.operands]
            cell = int(self._program.cells.first[number]) + roles.index(role)
            total = self._sums.get(int(self._flow.single[self._root[cell]]))
            found.append(block if total is None else _block_in_product(block, total))
        return found

    def _redirect_reads(self, alone: Bools) -> None:
        """Point operands of single instructions to where they are read, if not in their own tensor."""
        cells, places = self._program.cells, self._forwarding.places
        single = self._flow.single[self._forwarding.root]
        moved = np.zeros(len(cells.tensor), dtype=bool)
        moved[list(places)] = True
        moved |= np.isin(single, list(self._sums))
        moved &= cells.reads & ~cells.writes & alone[cells.instruction]
        for cell in np.flatnonzero(moved).tolist():
            operand = int(cells.operand[cell])
            item = self._program.operands[operand]
            dims, offset, tensor = item.dims, self._offsets[cell], self._tensors[cell]
            place, total = places.get(cell), self._sums.get(int(single[cell]))
            if place is not None:
                tensor, offset, dims = place.base, place.map_offset(offset, item.row), place.map_dims(dims)
            if total is not None:
                tensor, offset = total.tensor, total.map_offset(offset)
                dims = tuple((total.map_step(step), count) for step, count in dims)
            self._tensors[cell], self._offsets[cell] = tensor, offset
            self._cell_views[cell] = self._cached_view(operand, dims)

    def _cached_view(self, operand: int, dims: Dims) -> OperandView:
        key = (operand, dims)
        if key not in self._views:
            self._views[key] = make_view(self._forms[operand], self._program.operands[operand], dims)
        return self._views[key]

    def _add_releases(self, steps: list[ExecutionStep]) -> list[ExecutionStep]:
        """Add to each step the tensors that it is the last one to touch."""
        program, first = self._program, self._program.cells.first.tolist()
        last: dict[int, int] = {}
        for at, step in enumerate(steps):
            for cell in range(first[step.number], first[step.number + 1]):
                last[self._tensors[cell]] = at
            if step.product is not None:
                for line in (*step.product.stationary, *step.product.moving):
                    for block in line:
                        last[block.base] = at
        for tensor in (*program.outputs, *program.inputs, *program.constants):
            last.pop(tensor, None)
        dead: dict[int, list[int]] = {}
        for tensor, at in last.items():
            dead.setdefault(at, []).append(tensor)
        return [
            ExecutionStep(step.number, step.product, tuple(dead[at])) if at in dead else step
            for at, step in enumerate(steps)
        ]
