"""Which input elements single output elements depend on.

Demands go backwards through the program, instruction by instruction: the places of its result that somebody
wants become places of its operands. Element-wise instructions, products, transposes and copies ask for just
what they use, what works along the rows of partitions asks for whole rows, everything else and everything
behind a data-dependent address for whole operands.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from nki_sim.errors import InputError, LimitError
from nki_sim.flow.graph import Flow, distinct, flow, soft_writes
from nki_sim.flow.regions import marks
from nki_sim.flow.slices import Box
from nki_sim.forms import Form, Operand
from nki_sim.program.ir import Bools, Ints, Program

MAX_WORK = 1 << 28
"""Elements of operands that are looked at to follow one element of an output."""

_INSTRUCTION = 1 << 12
"""Elements that take as long to look at as an instruction takes beside them."""

Reach = Callable[[Form, Operand, Ints, Operand], Ints]
"""(form, output, places of it, operand) -> places of the operand; places count elements in pattern order."""


def elements(program: Program, output: int, index: tuple[int, ...]) -> dict[str, Ints]:
    """Input name -> flat numbers of the elements that one element of an output depends on, in order.

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
    return _Demands(program, flow(program)).follow(tensor, start)


def boxes(numbers: Ints, shape: tuple[int, ...]) -> list[Box]:
    """Boxes without overlap that hold just these elements of a tensor, given by their flat numbers.

    Neighbours are joined along the last dimension first, as rows and then as blocks of rows.
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


class _Demands:
    """What is still wanted, by the cell that wrote it; latest first."""

    def __init__(self, program: Program, traced: Flow) -> None:
        self._program = program
        self._flow = traced
        self._soft = soft_writes(program)
        self._heap: list[int] = []
        self._wanted: dict[int, Bools] = {}
        self._done: dict[int, Bools] = {}
        self._inputs: dict[int, Bools] = {}
        self._left = MAX_WORK

    def _spend(self, places: int) -> None:
        self._left -= places
        if self._left < 0:
            raise LimitError(
                "limit_work", f"following one element touches more than {MAX_WORK} others",
                hint="ask for tiles, without an element, or try smaller inputs",
            )  # fmt: skip

    def follow(self, tensor: int, found: Ints) -> dict[str, Ints]:
        self._ask(tensor, self._flow.finals[tensor], found)
        while self._heap:
            cell = -heappop(self._heap)
            fresh = self._wanted.pop(cell) & ~self._done.get(cell, np.False_)
            if fresh.any():
                self._done[cell] = fresh | self._done.get(cell, np.False_)
                self._expand(cell, np.flatnonzero(fresh))
        program = self._program
        return {
            program.site(tensor).name: np.flatnonzero(bits) for tensor, bits in sorted(self._inputs.items())
        }

    def _expand(self, cell: int, places: Ints) -> None:
        """Turn places of a written operand into elements of what its instruction reads."""
        program, cells = self._program, self._program.cells
        number = int(cells.instruction[cell])
        form = program.forms[program.form_ids[number]]
        out = program.operands[cells.operand[cell]]
        for other in range(int(cells.first[number]), int(cells.first[number + 1])):
            if not cells.reads[other]:
                continue
            item = program.operands[cells.operand[other]]
            tensor = int(cells.tensor[other])
            self._spend(_INSTRUCTION + min(item.elements, program.site(tensor).size))
            if item.index_step or out.index_step or tensor in program.reinterpreted:
                self._spend(program.site(tensor).size)
                found = np.arange(program.site(tensor).size)
            else:
                found = int(cells.offset[other]) + _flat(item, _reach(form, out, places, item))
            self._ask(tensor, self._flow.sources(other), found)

    def _ask(self, tensor: int, writers: tuple[int, ...], found: Ints) -> None:
        """Want elements of a tensor from their last writers, the rest from an input."""
        cells = self._program.cells
        mixed = tensor in self._program.reinterpreted
        for cell in reversed(writers):
            item = self._program.operands[cells.operand[cell]]
            if self._soft[cell] or mixed:
                self._spend(item.elements)
                places = np.arange(item.elements)
            else:
                places, inside = _places(item, found - int(cells.offset[cell]))
                found = found[~inside]
            if len(places):
                self._want(cell, places, item.elements)
        if tensor in self._program.inputs and len(found):
            size = self._program.site(tensor).size
            self._inputs.setdefault(tensor, marks(size))[found] = True

    def _want(self, cell: int, places: Ints, count: int) -> None:
        if cell not in self._wanted:
            self._spend(count)
            self._wanted[cell] = marks(count)
            heappush(self._heap, -cell)
        self._wanted[cell][places] = True


def _flat(item: Operand, places: Ints) -> Ints:
    """The elements at some places of a pattern, counted from its first."""
    indices = np.unravel_index(places, [count for _, count in item.dims])
    total: Ints = np.zeros(len(places), dtype=np.int64)
    for (step, _), index in zip(item.dims, indices, strict=True):
        total += step * index
    return np.unique(total)


def _places(item: Operand, found: Ints) -> tuple[Ints, Bools]:
    """Places of a pattern that are among some elements, and which of these they are."""
    if not distinct(item.dims) or any(step == 0 and count > 1 for step, count in item.dims):
        pattern = _pattern(item)
        return np.flatnonzero(np.isin(pattern, found)), np.isin(found, pattern)
    weights = np.cumprod([1, *(count for _, count in reversed(item.dims))])[-2::-1]
    places, left = np.zeros_like(found), found + item.below
    # From the widest step on, as in a number with mixed bases; backward steps count from their end.
    walks = zip(item.ascending, item.dims, weights.tolist(), strict=True)
    for (step, count), (own, _), weight in sorted(walks, reverse=True):
        if step and count > 1:
            index = np.clip(left // step, 0, count - 1)
            places = places + (index if own > 0 else count - 1 - index) * weight
            left = left - index * step
    inside = left == 0
    return places[inside], inside


def _pattern(item: Operand) -> Ints:
    pattern: Ints = np.zeros(1, dtype=np.int64)
    for step, count in item.dims:
        pattern = (pattern[:, None] + step * np.arange(count)).reshape(-1)
    return pattern


def _everything(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    del form, out, places
    return np.arange(item.elements)


def _rows(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    """All of an operand in the partitions that are wanted."""
    if item.partitions != out.partitions:
        return _everything(form, out, places, item)
    rows = np.unique(places // out.free)
    return (rows[:, None] * item.free + np.arange(item.free)).reshape(-1)


def _same(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    """The same place, or the partition's one element."""
    if out.role != "dst":
        return _rows(form, out, places, item)
    if item.elements == out.elements:
        return places
    return _rows(form, out, places, item) if item.free == 1 else _everything(form, out, places, item)


def _swapped(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    """The transposed place, in matrices."""
    if len(item.dims) != 2 or len(out.dims) != 2 or form.param("axes") not in {None, (1, 0)}:
        return _everything(form, out, places, item)
    width = out.dims[1][1]
    return places % width * item.dims[1][1] + places // width


def _product(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    """A column of each operand, all the way down the contraction."""
    if form.param("perf_mode", "none") != "none":
        return _everything(form, out, places, item)
    row, column = np.divmod(places, out.free)
    if item.role == "dst":
        return places
    chosen = np.unique(row if item.role == "stationary" else column)
    places = np.arange(item.partitions)[:, None] * item.free + chosen
    return places.reshape(-1)


_REACH: dict[str, Reach] = {
    **dict.fromkeys(
        (
            "tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "activation", "activation_reduce",
            "tensor_scalar_reduce", "reciprocal", "tensor_copy", "dma_copy", "tensor_copy_predicated",
            "affine_select", "select_reduce", "register_move", "register_load", "register_store",
            "register_alu",
        ),
        _same,
    ),
    **dict.fromkeys(
        (
            "tensor_reduce", "tensor_tensor_scan", "tensor_scalar_cumulative", "bn_stats", "bn_aggr",
            "range_select", "max8", "nc_find_index8", "nc_match_replace8",
        ),
        _rows,
    ),
    "nc_transpose": _swapped,
    "dma_transpose": _swapped,
    "nc_matmul": _product,
}  # fmt: skip


def _reach(form: Form, out: Operand, places: Ints, item: Operand) -> Ints:
    rule = _REACH.get(form.op, _everything)
    return rule(form, out, places, item)
