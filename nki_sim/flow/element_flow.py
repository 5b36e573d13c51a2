"""Finds the input elements that single output elements depend on.

Demands go backwards through the program: wanted positions of an instruction's result become positions of its
operands. Element-wise instructions, products, transposes and copies ask for exactly what they use.
Instructions that work along the rows of partitions ask for whole rows. Everything else, and everything behind
a data-dependent address, asks for whole operands.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from nki_sim.errors import InputError, LimitError
from nki_sim.flow.graph import DataFlow, has_distinct_elements, trace_data_flow, uncertain_writes
from nki_sim.flow.regions import make_element_marks
from nki_sim.flow.slices import ElementBox
from nki_sim.forms import PRODUCTS, Form, Operand
from nki_sim.program.ir import Bools, Ints, Program

MAX_WORK = 1 << 28
"""Limit on operand elements visited to follow one output element."""

_INSTRUCTION = 1 << 12
"""Fixed cost of an instruction, in elements."""

Reach = Callable[[Form, Operand, Ints, Operand], Ints]
"""(form, output, its positions, operand) -> positions of the operand, counted in pattern order."""


def find_input_elements(program: Program, output: int, index: tuple[int, ...]) -> dict[str, Ints]:
    """Map input names to the sorted flat indices of the elements that one output element depends on.

    Raises:
        InputError: there is no such output or element.
    """
    if not 0 <= output < len(program.outputs):
        raise InputError(f"{program.kernel} has {len(program.outputs)} outputs, there is no number {output}")
    tensor = program.outputs[output]
    shape = program.site(tensor).shape
    if len(index) != len(shape) or any(not 0 <= at < size for at, size in zip(index, shape, strict=False)):
        raise InputError(f"{index} is not an element of {program.site(tensor).name} {shape}")
    start = np.array([np.ravel_multi_index(index, shape)], dtype=np.int64)
    return _ElementDemands(program, trace_data_flow(program)).trace_inputs(tensor, start)


def group_into_boxes(numbers: Ints, shape: tuple[int, ...]) -> list[ElementBox]:
    """Disjoint boxes that contain exactly these elements of a tensor, given as flat indices.

    Neighbours are joined along the last dimension first: into rows, then into blocks of rows.
    """
    if not len(numbers):
        return []
    rank = len(shape)
    sides = np.stack(np.unravel_index(numbers, shape), axis=1)
    sides = np.concatenate([sides, sides + 1], axis=1)
    for axis in reversed(range(rank)):
        others = [side for side in range(2 * rank) if side % rank != axis]
        sides = sides[np.lexsort((sides[:, axis], *sides[:, others].T))]
        before, after = sides[:-1], sides[1:]
        joined = (before[:, others] == after[:, others]).all(axis=1)
        joined &= before[:, rank + axis] == after[:, axis]
        ends = sides[np.append(~joined, True), rank + axis]
        sides = sides[np.append(True, ~joined)]
        sides[:, rank + axis] = ends
    sides = sides[np.lexsort(sides[:, :rank].T[::-1])]
    return [tuple(zip(row[:rank], row[rank:], strict=True)) for row in sides.tolist()]


class _ElementDemands:
    """Elements still wanted, by the cell that wrote them; latest first."""

    def __init__(self, program: Program, traced: DataFlow) -> None:
        self._program = program
        self._flow = traced
        self._soft = uncertain_writes(program)
        self._heap: list[int] = []
        self._wanted: dict[int, Bools] = {}
        self._done: dict[int, Bools] = {}
        self._inputs: dict[int, Bools] = {}
        self._left = MAX_WORK

    def _spend_work(self, places: int) -> None:
        self._left -= places
        if self._left < 0:
            raise LimitError(
                "limit_work", f"following one element touches more than {MAX_WORK} others",
                hint="ask for tiles, without an element, or try smaller inputs",
            )  # fmt: skip

    def trace_inputs(self, tensor: int, found: Ints) -> dict[str, Ints]:
        self._demand_elements(tensor, self._flow.finals[tensor], found)
        while self._heap:
            cell = -heappop(self._heap)
            fresh = self._wanted.pop(cell) & ~self._done.get(cell, np.False_)
            if fresh.any():
                self._done[cell] = fresh | self._done.get(cell, np.False_)
                self._expand_cell(cell, np.flatnonzero(fresh))
        program = self._program
        return {
            program.site(tensor).name: np.flatnonzero(bits) for tensor, bits in sorted(self._inputs.items())
        }

    def _expand_cell(self, cell: int, places: Ints) -> None:
        """Turn positions of a written operand into elements that its instruction reads."""
        program, cells = self._program, self._program.cells
        number = int(cells.instruction[cell])
        form = program.forms[program.form_ids[number]]
        out = program.operands[cells.operand[cell]]
        for other in range(int(cells.first[number]), int(cells.first[number + 1])):
            if not cells.reads[other]:
                continue
            item = program.operands[cells.operand[other]]
            tensor = int(cells.tensor[other])
            self._spend_work(_INSTRUCTION + min(item.elements, program.site(tensor).size))
            if item.index_step or out.index_step or tensor in program.reinterpreted_tensors:
                self._spend_work(program.site(tensor).size)
                found = np.arange(program.site(tensor).size)
            else:
                found = int(cells.offset[other]) + _flat_elements(
                    item, _operand_reach(form, out, places, item=item)
                )
            self._demand_elements(tensor, self._flow.sources(other), found)

    def _demand_elements(self, tensor: int, writers: tuple[int, ...], found: Ints) -> None:
        """Demand elements of a tensor from their last writers, and the rest from an input."""
        cells = self._program.cells
        mixed = tensor in self._program.reinterpreted_tensors
        for cell in reversed(writers):
            item = self._program.operands[cells.operand[cell]]
            if self._soft[cell] or mixed:
                self._spend_work(item.elements)
                places = np.arange(item.elements)
            else:
                places, inside = _matching_places(item, found - int(cells.offset[cell]))
                found = found[~inside]
            if len(places):
                self._add_demand(cell, places, item.elements)
        if tensor in self._program.inputs and len(found):
            size = self._program.site(tensor).size
            self._inputs.setdefault(tensor, make_element_marks(size))[found] = True

    def _add_demand(self, cell: int, places: Ints, count: int) -> None:
        if cell not in self._wanted:
            self._spend_work(count)
            self._wanted[cell] = make_element_marks(count)
            heappush(self._heap, -cell)
        self._wanted[cell][places] = True


def _flat_elements(item: Operand, places: Ints) -> Ints:
    """The elements at some positions of a pattern, counted from its first element."""
    indices = np.unravel_index(places, [count for _, count in item.dims])
    total: Ints = np.zeros(len(places), dtype=np.int64)
    for (step, _), index in zip(item.dims, indices, strict=True):
        total += step * index
    return np.unique(total)


def _matching_places(item: Operand, found: Ints) -> tuple[Ints, Bools]:
    """Positions of a pattern that are among the given elements, and which of these they match."""
    if not has_distinct_elements(item.dims) or any(step == 0 and count > 1 for step, count in item.dims):
        pattern = _pattern_elements(item)
        return np.flatnonzero(np.isin(pattern, found)), np.isin(found, pattern)
    weights = np.cumprod([1, *(count for _, count in reversed(item.dims))])[-2::-1]
    places, left = np.zeros_like(found), found + item.reach_below
    # Like digits of a mixed-radix number, from the widest step on; negative steps count from their end.
    walks = zip(item.ascending_dims, item.dims, weights.tolist(), strict=True)
    for (step, count), (own, _), weight in sorted(walks, reverse=True):
        if step and count > 1:
            index = np.clip(left // step, 0, count - 1)
            places = places + (index if own > 0 else count - 1 - index) * weight
            left = left - index * step
    inside = left == 0
    return places[inside], inside


def _pattern_elements(item: Operand) -> Ints:
    pattern: Ints = np.zeros(1, dtype=np.int64)
    for step, count in item.dims:
        pattern = (pattern[:, None] + step * np.arange(count)).reshape(-1)
    return pattern


def _reach_everything(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    del form, out, places
    return np.arange(item.elements)


def _reach_rows(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    """All elements of an operand in the wanted partitions."""
    if item.partitions != out.partitions:
        return _reach_everything(form, out, places, item)
    rows = np.unique(places // out.free)
    return (rows[:, None] * item.free + np.arange(item.free)).reshape(-1)


def _reach_same_place(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    """The same position, or the partition's single element."""
    if out.role != "dst":
        return _reach_rows(form, out, places, item)
    if item.elements == out.elements:
        return places
    return (
        _reach_rows(form, out, places, item) if item.free == 1 else _reach_everything(form, out, places, item)
    )


def _reach_transposed(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    """The transposed position, for matrices."""
    if len(item.dims) != 2 or len(out.dims) != 2 or form.param("axes") not in {None, (1, 0)}:
        return _reach_everything(form, out, places, item)
    width = out.dims[1][1]
    return places % width * item.dims[1][1] + places // width


def _reach_product(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    """A column of each operand, over the whole contraction."""
    if form.param("perf_mode", "none") != "none":
        return _reach_everything(form, out, places, item)
    row, column = np.divmod(places, out.free)
    if item.role == "dst":
        return places
    chosen = np.unique(row if item.role.startswith("stationary") else column)
    places = np.arange(item.partitions)[:, None] * item.free + chosen
    return places.reshape(-1)


_REACH_RULES: dict[str, Reach] = {
    **dict.fromkeys(
        (
            "tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "activation", "activation_reduce",
            "activate2", "exponential", "tensor_scalar_reduce", "reciprocal", "tensor_copy", "dma_copy",
            "tensor_copy_predicated", "affine_select", "select_reduce", "register_move",
            "register_load", "register_store", "register_alu",
        ),
        _reach_same_place,
    ),
    **dict.fromkeys(
        (
            "tensor_reduce", "tensor_tensor_scan", "tensor_scalar_cumulative", "bn_stats", "bn_aggr",
            "range_select", "max8", "nc_find_index8", "nc_match_replace8",
        ),
        _reach_rows,
    ),
    "nc_transpose": _reach_transposed,
    "dma_transpose": _reach_transposed,
    **dict.fromkeys(PRODUCTS, _reach_product),
}  # fmt: skip


def _operand_reach(form: Form, out: Operand, places: Ints, *, item: Operand) -> Ints:
    rule = _REACH_RULES.get(form.op, _reach_everything)
    return rule(form, out, places, item)
