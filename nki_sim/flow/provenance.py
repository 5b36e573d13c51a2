"""Where results come from: the input regions and precisions behind each output tile, and dead instructions.

A tile is what a single instruction leaves in an output. Its inputs are followed through every instruction as
sets of regions, with one bit per distinct region that the kernel reads. Equal sets are shared. An input that
is read in more than `MAX_REGIONS` distinct regions counts as one region. A set is dropped after its last
reader, so memory stays at (live tiles) x (regions) bits; time is one pass over the program. `element_flow`
follows single elements instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nki_sim.flow import regions
from nki_sim.flow.graph import needed_instructions, trace_data_flow
from nki_sim.forms import PRODUCTS, Form, Operand
from nki_sim.functions import BITWISE
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program

MAX_REGIONS = 1 << 14

SIGNIFICANT_BITS = {
    "float32": 24, "tfloat32": 11, "float16": 11, "bfloat16": 8, "float8_e4m3": 4, "float8_e4m3fn": 4,
    "float8_e5m2": 3, "int64": 63, "int32": 31, "uint32": 32, "int16": 15, "uint16": 16, "int8": 7,
    "uint8": 8, "bool_": 1, "float8_e4m3fn_x4": 4, "float8_e5m2_x4": 3, "float4_e2m1fn_x4": 2,
    "float8_e8m0fnu": 1,
}  # fmt: skip
"""Significant bits of each data type."""

_NAMES = sorted(SIGNIFICANT_BITS, key=lambda name: (SIGNIFICANT_BITS[name], name))
_RANK = {name: rank for rank, name in enumerate(_NAMES)}

_MOVES = frozenset({"dma_copy", "tensor_copy", "dma_transpose", "nc_transpose", "sendrecv"})


@dataclass(frozen=True, slots=True)
class TensorRegion:
    """A box [first, end) of a tensor: rows of its last dimension in HBM, partitions on chip."""

    tensor: str
    rows: tuple[int, int]
    columns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TileProvenance:
    """A tile of an output: its place, the line that stores it, and its dependences.

    `inputs` are boxes around the elements read. `precision` gives, for each input that reaches the tile, the
    coarsest data type on the most precise path.
    """

    output: TensorRegion
    line: int
    inputs: tuple[TensorRegion, ...]
    precision: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OperandPrecision:
    """An operand of the instructions on one line: its type in memory, and the type it is computed in."""

    line: int
    instruction: str
    operand: str
    dtype: str
    computed: str


def find_tile_sources(program: Program) -> list[TileProvenance]:
    """Return the dependences of each tile of the outputs, in the order in which they are stored."""
    return _ProvenanceWalk(program).output_tiles()


def find_dead_instructions(program: Program) -> list[int]:
    """Return the instructions whose results no output depends on, in program order."""
    traced = trace_data_flow(program)
    live = needed_instructions(program, traced, [cell for cells in traced.finals.values() for cell in cells])
    effects = np.array([bool(OPERATORS[form.op].outputs) for form in program.forms], dtype=bool)
    if not len(program):
        return []
    found: list[int] = np.flatnonzero(~live & effects[program.form_ids]).tolist()
    return found


def list_operand_precisions(program: Program) -> list[OperandPrecision]:
    """Return each kind of operand once per line, with its type and the type it is computed in."""
    pairs = np.unique(np.stack([program.lines, program.form_ids], axis=1), axis=0).tolist()
    return [
        OperandPrecision(
            line, program.forms[form].op, item.role, item.dtype, _computed_dtype(program.forms[form], item)
        )
        for line, form in pairs
        for item in program.forms[form].operands
    ]


def _computed_dtype(form: Form, item: Operand) -> str:
    """Moves within one type and products keep the type; bitwise operators use integers, the rest float32."""
    same = len({other.dtype for other in form.operands}) == 1
    if (form.op in _MOVES and same) or (form.op in PRODUCTS and item.role != "dst") or form.engine == "sync":
        return item.dtype
    ops = {value for name, value in form.params if name.startswith(("op", "reduce_op"))}
    return item.dtype if ops and ops <= BITWISE else "float32"


class _ProvenanceWalk:
    """Passes over a program: per written cell, its set of input regions and its paths from each input."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._flow = trace_data_flow(program)
        self._boxes = regions.access_boxes(program, np.arange(len(program.cells.tensor)))
        self._ranks = [_RANK[item.dtype] for item in program.operands]
        self._regions: list[tuple[int, regions.Box]] = []
        self._region_of = self._input_regions()
        self._sets: dict[int, int] = {}
        self._ways: dict[int, dict[int, int]] = {}
        self._merged: dict[int, tuple[TensorRegion, ...]] = {}

    def output_tiles(self) -> list[TileProvenance]:
        # In data-dependent loops values also come from later instructions, so repeat until nothing changes.
        while self._walk_once() and self._program.loop_partners:
            pass
        found = [
            (cell, self._make_tile(tensor, cell))
            for tensor, writers in self._flow.finals.items()
            for cell in writers
        ]
        return [tile for _, tile in sorted(found, key=lambda entry: entry[0])]

    def _input_regions(self) -> dict[int, int]:
        """Map cells that read an input to their region."""
        cells = self._program.cells
        found: dict[int, int] = {}
        for tensor in self._program.inputs:
            read = np.flatnonzero((cells.tensor == tensor) & cells.reads)
            if not len(read):
                continue
            boxes, which = np.unique(self._boxes[read], axis=0, return_inverse=True)
            if len(boxes) > MAX_REGIONS:
                low, high = boxes.min(axis=0), boxes.max(axis=0)
                boxes, which = np.array([[low[0], high[1], low[2], high[3]]]), np.zeros(len(read), np.int64)
            found.update(zip(read.tolist(), (which.reshape(-1) + len(self._regions)).tolist(), strict=True))
            self._regions += [(tensor, tuple(box)) for box in boxes.tolist()]
        return found

    def _walk_once(self) -> bool:
        """Walk the instructions once; return whether any set or path has grown."""
        cells, grown = self._program.cells, False
        left = self._count_uses()
        reads, writes, first = cells.reads.tolist(), cells.writes.tolist(), cells.first.tolist()
        for start, end in pairwise(first):
            chosen, ways = self._gather_sources([cell for cell in range(start, end) if reads[cell]], left)
            for cell in range(start, end):
                if writes[cell] and left.get(cell):
                    grown |= self._record_sources(cell, chosen, ways)
        return grown

    def _count_uses(self) -> dict[int, int]:
        """How often each written cell is read or left in an output; other cells are not followed."""
        cells, traced = self._program.cells, self._flow
        single = traced.single[cells.reads]
        left = Counter(single[single >= 0].tolist())
        for writers in (*traced.several.values(), *traced.finals.values()):
            left.update(writers)
        return left

    def _gather_sources(self, read: list[int], left: dict[int, int]) -> tuple[int, dict[int, int]]:
        """Collect an instruction's dependences from its operands; drop sets that nothing else needs."""
        chosen, ways = 0, dict[int, int]()
        operand, tensor = self._program.cells.operand, self._program.cells.tensor
        for cell in read:
            rank = self._ranks[operand[cell]]
            region = self._region_of.get(cell)
            if region is not None:
                chosen |= 1 << region
                source = int(tensor[cell])
                ways[source] = max(ways.get(source, 0), rank)
            for writer in self._flow.sources(cell):
                merged = chosen | self._sets.get(writer, 0)
                chosen = self._sets[writer] if merged == self._sets.get(writer) else merged
                for source, way in self._ways.get(writer, {}).items():
                    ways[source] = max(ways.get(source, 0), min(way, rank))
                left[writer] -= 1
                if not left[writer] and not self._program.loop_partners:
                    self._sets.pop(writer, None)
                    self._ways.pop(writer, None)
        return chosen, ways

    def _record_sources(self, cell: int, chosen: int, ways: dict[int, int]) -> bool:
        rank = self._ranks[self._program.cells.operand[cell]]
        narrowed = {source: min(way, rank) for source, way in ways.items()}
        before = (self._sets.get(cell), self._ways.get(cell))
        self._sets[cell], self._ways[cell] = chosen, narrowed
        return before != (chosen, narrowed)

    def _make_tile(self, tensor: int, cell: int) -> TileProvenance:
        program = self._program
        chosen = self._sets.get(cell, 0)
        if chosen not in self._merged:
            self._merged[chosen] = self._region_boxes(chosen)
        precision = {
            program.site(source).name: _NAMES[rank]
            for source, rank in sorted(self._ways.get(cell, {}).items())
        }
        line = int(program.lines[program.cells.instruction[cell]])
        top, bottom, start, end = self._boxes[cell].tolist()
        place = TensorRegion(program.site(tensor).name, (top, bottom), (start, end))
        return TileProvenance(place, line, self._merged[chosen], precision)

    def _region_boxes(self, chosen: int) -> tuple[TensorRegion, ...]:
        """The regions of a set, with neighbours joined."""
        by_tensor: dict[int, list[regions.Box]] = {}
        for number, (tensor, box) in enumerate(self._regions):
            if chosen >> number & 1:
                by_tensor.setdefault(tensor, []).append(box)
        return tuple(
            TensorRegion(self._program.site(tensor).name, (box[0], box[1]), (box[2], box[3]))
            for tensor, boxes in sorted(by_tensor.items())
            for box in _join_boxes(_join_boxes(boxes, 2), 0)
        )


def _join_boxes(boxes: list[regions.Box], axis: int) -> list[regions.Box]:
    """Join boxes that touch or overlap along an axis and agree on the other one."""
    other = 2 - axis
    found: list[regions.Box] = []
    for box in sorted(boxes, key=lambda box: (box[other], box[other + 1], box[axis])):
        last = found[-1] if found else None
        if last and last[other : other + 2] == box[other : other + 2] and box[axis] <= last[axis + 1]:
            sides = list(last)
            sides[axis + 1] = max(last[axis + 1], box[axis + 1])
            found[-1] = tuple(sides)
        else:
            found.append(box)
    return found
