"""Traces data flow: for every operand that is read, the instructions whose values reach it.

The result is exact element by element. Accesses that fill boxes of rows and columns are compared as boxes.
Only if patterns with gaps overlap without covering each other are elements counted, in tensors of at most
`MAX_BITS` elements. Larger tensors, comparisons beyond `MAX_COMPARED`, data-dependent addresses and loops
with data-dependent bounds get a safe answer: every write that may reach the access. Time and memory grow with
the number of operands and of overlapping pairs of distinct regions, not with the size of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.errors import LimitError
from nki_sim.flow.regions import Box, access_boxes, find_overlaps, pattern_in_bytes
from nki_sim.forms import Dims, Site, make_ascending, merge_dims
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Bools, Ints, Program

MAX_BITS = 1 << 24

MAX_COMPARED = 1 << 22
"""Limit on overlapping writes that are compared for whether a read sees them."""

MAX_SOURCES = 1 << 24
"""Limit on all writes in `several` together."""

AccessPattern = tuple[Dims, int]
"""An access pattern and its first element."""

RegionKey = Box | AccessPattern | tuple[Box]
"""Identifies a region: its box if it fills it, else its pattern, or a box that it may lie anywhere in."""

_ONE_REGION = ([[0]], [[0]])


@dataclass(frozen=True, eq=False)
class DataFlow:
    """The writes that each read sees. Cells are those of `Program.cells`.

    `single[cell]` is the write that gave the cell every element it reads, or -1 if there is none or several.
    `several` holds the other cases: all writes that gave it some element, in program order. Elements that
    none of them wrote were there from the start or are uninitialised. `finals` gives the same for the final
    contents of each output.
    """

    single: Ints
    several: dict[int, tuple[int, ...]]
    finals: dict[int, tuple[int, ...]]

    def sources(self, cell: int) -> tuple[int, ...]:
        """The cells that wrote what a cell reads."""
        writer = int(self.single[cell])
        return (writer,) if writer >= 0 else self.several.get(cell, ())


def trace_data_flow(program: Program) -> DataFlow:
    """Trace every read of a program back to its writes."""
    return _FlowTracer(program).trace()


def loop_starts(program: Program) -> Ints:
    """Per instruction, the `loop_begin` of the outermost data-dependent loop around it, -1 outside."""
    starts = np.full(len(program), -1, dtype=np.int64)
    ops = [form.op for form in program.forms]
    marks = np.array([op in {"loop_begin", "loop_end"} for op in ops], dtype=bool)
    depth = first = 0
    for number in np.flatnonzero(marks[program.form_ids]).tolist() if len(program) else []:
        if ops[program.form_ids[number]] == "loop_begin":
            first = first if depth else number
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                starts[first : number + 1] = first
    return starts


def needed_instructions(
    program: Program, traced: DataFlow, wanted: Iterable[int], root: Sequence[int] | None = None
) -> Bools:
    """Which instructions the values of some cells depend on, including their writers.

    `root[cell]` is the read whose writers count instead of the cell's own. A data-dependent loop is needed as
    a whole.
    """
    cells = program.cells
    number_of, first = cells.instruction.tolist(), cells.first.tolist()
    reads, single, several = cells.reads.tolist(), traced.single.tolist(), traced.several
    starts = loop_starts(program).tolist() if program.loop_partners else None
    found = [False] * len(program)
    todo = [number_of[cell] for cell in wanted]
    while todo:
        number = todo.pop()
        if found[number]:
            continue
        found[number] = True
        if starts is not None and starts[number] == number:
            todo.extend(range(number, program.loop_partners[number] + 1))
        elif starts is not None and starts[number] >= 0:
            todo.append(starts[number])
        for cell in range(first[number], first[number + 1]):
            if reads[cell]:
                origin = cell if root is None else root[cell]
                writer = single[origin]
                sources = (writer,) if writer >= 0 else several.get(origin, ())
                todo.extend(number_of[source] for source in sources)
    return np.array(found, dtype=bool)


def uncertain_writes(program: Program) -> Bools:
    """Per cell, whether it is a write for which only the run shows whether it happens, and where."""
    cells = program.cells
    skips = np.array([form.param("oob_mode") == "skip" for form in program.forms], dtype=bool)
    if not len(program):
        return np.zeros(0, dtype=bool)
    optional = skips[program.form_ids] | (loop_starts(program) >= 0)
    soft: Bools = cells.writes & (_indexed_cells(program) | optional[cells.instruction])
    return soft


def data_dependent_tensors(program: Program) -> frozenset[int]:
    """Tensors for which only the run shows what is written, or whether reads find written elements."""
    partial = {form: OPERATORS[form.op].partial(form) for form in program.forms}
    loose = [
        item.index_step != 0 or item.role in partial[form] for form in program.forms for item in form.operands
    ]
    found = uncertain_writes(program) | np.array(loose, dtype=bool)[program.cells.operand]
    return frozenset(program.cells.tensor[found].tolist())


def _indexed_cells(program: Program) -> Bools:
    """Per cell, whether its address depends on data."""
    moves = np.array([item.index_step != 0 for item in program.operands], dtype=bool)
    indexed: Bools = moves[program.cells.operand]
    return indexed


@dataclass(slots=True, eq=False)
class _TensorHistory:
    """The accesses of one tensor in program order, and its distinct regions.

    Regions that fill their box are identified by it (`keys`), other regions by their pattern. Regions at a
    data-dependent place (`moves`) are identified by the box that they may lie in. `size` counts elements, or
    bytes if elements of several sizes are accessed; so do patterns.
    """

    site: Site
    size: int
    cells: list[int]
    region: list[int]
    keys: list[RegionKey]
    moves: list[bool]
    patterns: list[AccessPattern]
    areas: list[Box]
    dense: list[bool]
    near: list[list[int]]
    inside: list[list[int]]


class _FlowTracer:
    def __init__(self, program: Program) -> None:
        self._program = program
        cells = program.cells
        self._reads, self._writes = cells.reads.tolist(), cells.writes.tolist()
        self._indexed = _indexed_cells(program)
        self._starts = loop_starts(program)[cells.instruction]
        self._soft = uncertain_writes(program).tolist()
        self._single = np.full(len(cells.tensor), -1, dtype=np.int64)
        self._several: dict[int, tuple[int, ...]] = {}
        self._left, self._sources = MAX_COMPARED, 0
        self._finals: dict[int, tuple[int, ...]] = dict.fromkeys(program.outputs, ())
        self._memo: dict[tuple[Site, RegionKey, tuple[RegionKey, ...]], list[int]] = {}

    def trace(self) -> DataFlow:
        rest = self._settle_single_writes()
        order = np.lexsort(
            (
                self._program.cells.writes[rest],
                self._program.cells.instruction[rest],
                self._program.cells.tensor[rest],
            )
        )
        for history in self._split_histories(rest[order]):
            self._follow_history(history)
        return DataFlow(self._single, self._several, self._finals)

    def _settle_single_writes(self) -> Ints:
        """Settle tensors that one instruction fills before anything reads them; return the other cells."""
        cells, program = self._program.cells, self._program
        count = len(program.tensor_sites)
        writes = np.bincount(cells.tensor[cells.writes], minlength=count)
        writer = np.full(count, -1, dtype=np.int64)
        whole = np.flatnonzero(
            cells.writes & self._touches_whole_tensor() & ~np.array(self._soft, dtype=bool)
        )
        writer[cells.tensor[whole]] = whole
        first = np.full(count, len(program), dtype=np.int64)
        np.minimum.at(first, cells.tensor[cells.reads], cells.instruction[cells.reads])
        settled = (writes == 1) & (writer >= 0)
        settled[settled] = cells.instruction[writer[settled]] < first[settled]
        chosen = settled[cells.tensor] & cells.reads
        self._single[chosen] = writer[cells.tensor[chosen]]
        for tensor in program.outputs:
            if settled[tensor]:
                self._finals[tensor] = (int(writer[tensor]),)
        return np.flatnonzero(~settled[cells.tensor] & (writes[cells.tensor] > 0))

    def _touches_whole_tensor(self) -> Bools:
        """Per cell, whether it touches every element of its tensor."""
        program = self._program
        apart = np.array([has_distinct_elements(item.dims) for item in program.operands], dtype=bool)
        counts = np.array(
            [_count_elements(item.dims) * item.itemsize for item in program.operands], dtype=np.int64
        )
        sizes = np.array([site.size * DTYPES[site.dtype].itemsize for site in program.sites], dtype=np.int64)
        operand = program.cells.operand
        whole: Bools = counts[operand] == sizes[program.tensor_sites[program.cells.tensor]]
        found: Bools = whole & apart[operand]
        return found

    def _split_histories(self, order: Ints) -> Iterator[_TensorHistory]:
        program, cells = self._program, self._program.cells
        tensors = cells.tensor[order]
        found = access_boxes(program, order)
        dense, moves = self._fills_box(order, found).tolist(), self._indexed[order].tolist()
        areas: list[Box] = [tuple(area) for area in found.tolist()]
        numbers = order.tolist()
        dims = [item.dims for item in program.operands]
        places = zip(cells.operand[order].tolist(), cells.offset[order].tolist(), strict=True)
        patterns = [(dims[operand], offset) for operand, offset in places]
        for at in np.flatnonzero(self._has_mixed_sizes(order)).tolist():
            item = program.operands[cells.operand[order[at]]]
            patterns[at] = (pattern_in_bytes(item), patterns[at][1] * item.itemsize)
        bounds = [*np.flatnonzero(np.diff(tensors, prepend=-1)).tolist(), len(order)]
        for first, last in pairwise(bounds):
            part = slice(first, last)
            accesses = zip(patterns[part], dense[part], moves[part], areas[part], strict=True)
            keys: list[RegionKey] = [
                area if solid else (area,) if moved else pattern for pattern, solid, moved, area in accesses
            ]
            ids: dict[RegionKey, int] = {}
            region = [ids.setdefault(key, len(ids)) for key in keys]
            # The first access of each region stands for all of them.
            firsts: dict[int, int] = {}
            for at, number in enumerate(region, first):
                firsts.setdefault(number, at)
            heads = list(firsts.values())
            boxed = [areas[at] for at in heads]
            near, inside = _ONE_REGION if len(ids) == 1 else find_overlaps(np.array(boxed, dtype=np.int64))
            tensor = int(tensors[first])
            site = program.site(tensor)
            unit = DTYPES[site.dtype].itemsize if tensor in program.reinterpreted_tensors else 1
            yield _TensorHistory(
                site, site.size * unit, numbers[part], region, list(ids), [moves[at] for at in heads],
                [patterns[at] for at in heads], boxed, [dense[at] for at in heads], near, inside,
            )  # fmt: skip

    def _fills_box(self, order: Ints, areas: Ints) -> Bools:
        """Per cell, whether it touches every element of its box."""
        items = self._program.operands
        apart = np.array([has_distinct_elements(item.dims) for item in items], dtype=bool)
        counts = np.array([_count_elements(item.dims) for item in items], dtype=np.int64)
        size = (areas[:, 1] - areas[:, 0]) * (areas[:, 3] - areas[:, 2])
        operand = self._program.cells.operand[order]
        dense: Bools = apart[operand] & (counts[operand] == size)
        return dense & ~self._indexed[order] & ~self._has_mixed_sizes(order)

    def _has_mixed_sizes(self, order: Ints) -> Bools:
        """Per cell, whether its tensor is accessed as elements of several sizes."""
        return np.isin(self._program.cells.tensor[order], list(self._program.reinterpreted_tensors))

    def _follow_history(self, history: _TensorHistory) -> None:
        """Walk one tensor's accesses and keep the last write of each region."""
        writer = [-1] * len(history.keys)
        soft: list[int] = []
        later = [cell for cell in history.cells if self._soft[cell] and self._starts[cell] >= 0]
        for cell, region in zip(history.cells, history.region, strict=True):
            if self._reads[cell]:
                self._record_read(
                    history, cell, region, writer=writer, soft=self._reaching_writes(cell, soft, later)
                )
            if self._soft[cell]:
                soft.append(cell)
            elif self._writes[cell]:
                for other in history.inside[region] if history.dense[region] else (region,):
                    writer[other] = -1
                writer[region] = cell
        tensor = int(self._program.cells.tensor[history.cells[0]])
        if tensor in self._finals:
            self._finals[tensor] = tuple(sorted([*(cell for cell in writer if cell >= 0), *soft]))

    def _reaching_writes(self, cell: int, soft: list[int], later: list[int]) -> list[int]:
        """Writes without a fixed place or time that may reach a read, also from earlier iterations."""
        start = self._starts[cell]
        if start < 0 or not later:
            return soft
        return sorted({*soft, *(other for other in later if self._starts[other] == start)})

    def _record_read(
        self, history: _TensorHistory, cell: int, region: int, *, writer: list[int], soft: list[int]
    ) -> None:
        near = history.near[region]
        found = [(writer[other], other) for other in near if writer[other] >= 0]
        if len(found) > 1:
            found = self._visible_writes(history, region, sorted(found, reverse=True))
        if len(found) == 1 and not soft and _covers_region(history, found[0][1], region):
            self._single[cell] = found[0][0]
        else:
            self._several[cell] = tuple(sorted([*(number for number, _ in found), *soft]))
            self._sources += len(self._several[cell])
            if self._sources > MAX_SOURCES:
                raise LimitError(
                    "limit_work", f"reads see more than {MAX_SOURCES} writes",
                    hint="read tensors in the tiles in which they are written",
                )  # fmt: skip

    def _visible_writes(
        self, history: _TensorHistory, region: int, found: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """The overlapping writes, newest first, that no newer one hides."""
        if _covers_region(history, found[0][1], region):
            return found[:1]
        keys = history.keys
        key = (history.site, keys[region], tuple(keys[other] for _, other in found))
        kept = self._memo.get(key)
        if kept is None and self._left < len(found):
            return found
        if kept is None:
            self._left -= len(found)
            kept = self._memo[key] = _visible_positions(history, region, [other for _, other in found])
        return [found[at] for at in kept]


def _covers_region(history: _TensorHistory, over: int, region: int) -> bool:
    """Whether one region holds every element of another."""
    if over == region:
        return True
    a, b = history.areas[over], history.areas[region]
    return history.dense[over] and a[0] <= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] >= b[3]


def _visible_positions(history: _TensorHistory, region: int, found: list[int]) -> list[int]:
    """Positions in `found` (newest first) of the writes that newer ones do not hide from a read."""
    solid = all(history.dense[other] for other in found)
    if solid and (history.dense[region] or history.moves[region]):
        return _visible_boxes(history, region, found)
    if history.moves[region]:
        return list(range(len(found)))
    return _visible_elements(history, region, found)


def _visible_boxes(history: _TensorHistory, region: int, found: list[int]) -> list[int]:
    """Positions in `found` of the boxes that earlier boxes do not hide."""
    area = history.areas[region]
    others = [history.areas[other] for other in found]
    rows = np.unique(np.clip([area[:2], *(box[:2] for box in others)], area[0], area[1]))
    columns = np.unique(np.clip([area[2:], *(box[2:] for box in others)], area[2], area[3]))
    left = np.ones((len(rows) - 1, len(columns) - 1), dtype=bool)
    kept = []
    for at, box in enumerate(others):
        top, bottom = np.searchsorted(rows, np.clip(box[:2], area[0], area[1]))
        start, end = np.searchsorted(columns, np.clip(box[2:], area[2], area[3]))
        part = left[top:bottom, start:end]
        if part.any():
            kept.append(at)
            part[...] = False
    return kept


def _visible_elements(history: _TensorHistory, region: int, found: list[int]) -> list[int]:
    """The same, element by element; all positions if the tensor is too large for that."""
    if history.size > MAX_BITS:
        return list(range(len(found)))
    bits = np.zeros(history.size, dtype=bool)
    _region_bits(bits, history, region)[...] = True
    kept = []
    for at, other in enumerate(found):
        part = _region_bits(bits, history, other)
        if part.any():
            kept.append(at)
            part[...] = False
    return kept


def _region_bits(bits: Bools, history: _TensorHistory, region: int) -> Bools:
    dims, offset = history.patterns[region]
    shape = tuple(count for _, count in dims)
    return np.ndarray(shape, np.bool_, bits, offset, tuple(step for step, _ in dims))


def _ascending_walks(dims: Dims) -> Dims:
    """The pattern's ascending walks from the widest step to the narrowest, without repeated elements."""
    walks = (pair for pair in make_ascending(dims) if pair[0] and pair[1] > 1)
    return merge_dims(tuple(sorted(walks, reverse=True)))


def has_distinct_elements(dims: Dims) -> bool:
    """Whether all positions of the pattern are different elements, apart from steps of 0."""
    return all(outer[0] >= inner[0] * inner[1] for outer, inner in pairwise(_ascending_walks(dims)))


def _count_elements(dims: Dims) -> int:
    """Number of different elements in a pattern whose positions are distinct."""
    total = 1
    for _, count in _ascending_walks(dims):
        total *= count
    return total
