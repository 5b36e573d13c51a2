"""Avoids copies: lets a read take its elements from the source of a copy instead of from the copied tile.

A load, a copy on chip or a transpose that keeps the type leaves a tile that equals part of another tensor.
Until something writes that tensor, reads of the tile can be served from it, through any number of copies.
Copies that nothing reads any more are not made. No value changes. A matmul that transposes (`is_transpose`)
with an identity among the program's constants counts as such a copy.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nki_sim.flow.graph import DataFlow
from nki_sim.forms import Dims, Form, merge_dims
from nki_sim.program.ir import Ints, Program
from nki_sim.semantics.arrays import NUMPY
from nki_sim.semantics.matrix import MULTIPLYING_TARGET

_COPIES = {
    "dma_copy": ("src", False), "tensor_copy": ("src", False),
    "dma_transpose": ("src", True), "nc_transpose": ("data", True), "nc_matmul": ("stationary", True),
}  # fmt: skip
"""Instructions that only move elements: what they read, and whether they swap rows and columns."""

_PROMISES = frozenset({"is_transpose", "is_stationary_onezero", "is_moving_onezero"})
_NEUTRAL = (False, None, "none", ())

_ANY_ORDER = frozenset(_COPIES)
"""Instructions that read columns as fast as rows."""


class TilePlace(NamedTuple):
    """Where a tile's element (partition p, free element f) is: `origin + p * down + f * across` of `base`."""

    base: int
    origin: int
    down: int
    across: int

    def map_offset(self, offset: int, row: int) -> int:
        """Map an element's offset in the tile to its offset in the base."""
        partition, free = divmod(offset, row)
        return self.origin + partition * self.down + free * self.across

    def map_dims(self, dims: Dims) -> Dims:
        """Map the tile's access pattern to steps of the base."""
        (_, count), *free = dims
        return ((self.down, count), *((step * self.across, size) for step, size in free))


class WriteTimes:
    """The instruction numbers at which each tensor is written."""

    def __init__(self, program: Program) -> None:
        cells = program.cells
        chosen = np.flatnonzero(cells.writes)
        self._times: dict[int, list[int]] = {}
        columns = (cells.tensor[chosen].tolist(), cells.instruction[chosen].tolist())
        for tensor, number in zip(*columns, strict=True):
            self._times.setdefault(tensor, []).append(number)

    def next_write(self, tensor: int, after: int) -> float:
        """The first instruction after `after` that writes the tensor; infinity if none does."""
        times = self._times.get(tensor, ())
        at = bisect_right(times, after)
        return times[at] if at < len(times) else float("inf")


@dataclass(frozen=True, slots=True)
class _CopyForm:
    """A form that copies: the position of its source among the operands, and the shape of the result.

    `identity` is the position of an operand that must be an identity for this, -1 if none is needed.
    """

    source: int
    identity: int
    swaps: bool
    rows: int
    dims: Dims
    row: int


class CopyForwarding:
    """`places[cell]` serves the tile that a cell reads; cells that are missing read their own tensor.

    `root[cell]` is the read whose writers matter: that of the first copy on the way, else the cell itself.
    Nothing is forwarded in programs with data-dependent loops, nor to or from tensors that hold elements of
    several sizes or whose reads the run checks (`soft`).
    """

    def __init__(self, program: Program, flow: DataFlow, writes: WriteTimes, tracked: frozenset[int]) -> None:
        self.places: dict[int, TilePlace] = {}
        self.root: Ints = np.arange(len(program.cells.tensor))
        self._program = program
        self._writes = writes
        self._copies = [_describe_copy(form, program.target) for form in program.forms]
        self._identities: dict[tuple[int, int, Dims], bool] = {}
        self._steps: dict[tuple[int, tuple[int, int] | None], tuple[int, int] | None] = {}
        self.soft = program.reinterpreted_tensors | tracked
        if not program.loop_partners:
            self._serve_reads(flow)

    def _serve_reads(self, flow: DataFlow) -> None:
        cells, program = self._program.cells, self._program
        copies = np.array([copy is not None for copy in self._copies], dtype=bool)
        plain = np.array([not any(item.index_step for item in form.operands) for form in program.forms])
        chosen = (flow.single >= 0) & ~cells.writes & plain[program.form_ids[cells.instruction]]
        made = np.where(chosen, cells.instruction[flow.single], 0)
        chosen &= copies[program.form_ids[made]]
        numbers = np.flatnonzero(chosen)
        columns = (numbers, cells.instruction[numbers], flow.single[numbers], made[numbers])
        tiles: dict[int, TilePlace | None] = {}
        for cell, number, writer, maker in zip(*(column.tolist() for column in columns), strict=True):
            if writer not in tiles:
                tiles[writer] = self._tile_place(writer, maker)
            place = tiles[writer]
            if place is not None and self._can_serve(place, maker, number):
                source = self._source_cell(maker)
                self.places[cell] = place
                self.root[cell] = self.root[source]

    def _can_serve(self, place: TilePlace, maker: int, reader: int) -> bool:
        fast = abs(place.across) <= 1 or self._program.forms[self._program.form_ids[reader]].op in _ANY_ORDER
        # Not through a copy within one tensor either, because it may overwrite its source.
        return fast and self._writes.next_write(place.base, maker - 1) > reader

    def _source_cell(self, maker: int) -> int:
        copy = self._copies[int(self._program.form_ids[maker])]
        assert copy is not None
        return int(self._program.cells.first[maker]) + copy.source

    def _tile_place(self, writer: int, maker: int) -> TilePlace | None:
        """The place of the tile that a copy has written, in coordinates of the whole tile."""
        program, cells = self._program, self._program.cells
        form = int(program.form_ids[maker])
        copy, source = self._copies[form], self._source_cell(maker)
        assert copy is not None
        item = program.operands[cells.operand[source]]
        offset, base = int(cells.offset[source]), int(cells.tensor[source])
        served = self.places.get(source)
        key = (form, (served.down, served.across) if served else None)
        if key not in self._steps:
            self._steps[key] = _source_steps(copy, served.map_dims(copy.dims) if served else copy.dims)
        steps = self._steps[key]
        if copy.identity >= 0 and not self._is_identity(int(cells.first[maker]) + copy.identity):
            return None
        if steps is None or base in self.soft or int(cells.tensor[writer]) in self.soft:
            return None
        if served:
            base, offset = served.base, served.map_offset(offset, item.row)
        down, across = steps
        partition, free = divmod(int(cells.offset[writer]), copy.row)
        return TilePlace(base, offset - partition * down - free * across, down, across)

    def _is_identity(self, cell: int) -> bool:
        """Whether an operand is served from a constant that is an identity there."""
        program, place = self._program, self.places.get(cell)
        if place is None or place.base not in program.constants:
            return False
        item = program.operands[program.cells.operand[cell]]
        dims = place.map_dims(item.dims)
        key = (place.base, place.map_offset(int(program.cells.offset[cell]), item.row), dims)
        if key not in self._identities:
            size = NUMPY[item.dtype].itemsize
            shape, strides = tuple(count for _, count in dims), tuple(step * size for step, _ in dims)
            data = program.constants[place.base]
            found = np.ndarray(shape, NUMPY[item.dtype], data, key[1] * size, strides).reshape(shape[0], -1)
            self._identities[key] = np.array_equal(found, np.eye(*found.shape))
        return self._identities[key] and self._writes.next_write(place.base, -1) == float("inf")


def _describe_copy(form: Form, target: str) -> _CopyForm | None:
    """Describe what a form copies, if two steps describe its tile; else None.

    The tensor engine of NeuronCore-v2 does not copy: it multiplies, which spreads infinity and NaN.
    """
    if form.op not in _COPIES or any(item.index_step for item in form.operands):
        return None
    if form.engine == "tensor" and target == MULTIPLYING_TARGET:
        return None
    role, swaps = _COPIES[form.op]
    dst, src = form["dst"], form[role]
    if dst.in_hbm or dst.dtype != src.dtype or form.param("oob_mode") == "skip":
        return None
    if swaps and (len(src.dims) != 2 or form.param("axes") not in {None, (1, 0)}):
        return None
    if form.op == "nc_matmul" and not _only_transposes(form):
        return None
    steps = matrix_steps(dst.dims, dst.partitions)
    if steps is None or (steps[1] != 1 and dst.free > 1):
        return None
    rows = src.dims[0][1] if swaps else dst.partitions
    roles = [item.role for item in form.operands]
    identity = roles.index("moving") if form.op == "nc_matmul" else -1
    return _CopyForm(roles.index(role), identity, swaps, rows, src.dims, dst.row)


def _only_transposes(form: Form) -> bool:
    """Whether a matmul with an identity as its moving operand only transposes."""
    plain = all(value in _NEUTRAL for name, value in form.params if name not in _PROMISES)
    moving = form["moving"]
    return bool(form.param("is_transpose")) and plain and moving.partitions == moving.free


def _source_steps(copy: _CopyForm, dims: Dims) -> tuple[int, int] | None:
    """Distance in the source between neighbours along the partitions and along the free axis."""
    steps = matrix_steps(dims, copy.rows)
    return steps if steps is None or not copy.swaps else (steps[1], steps[0])


def matrix_steps(dims: Dims, rows: int) -> tuple[int, int] | None:
    """The two steps of a pattern of equally spaced rows and elements; None if it is not that simple."""
    total = 1
    at = 0
    while at < len(dims) and total < rows:
        total *= dims[at][1]
        at += 1
    down, across = merge_dims(dims[:at]), merge_dims(dims[at:])
    if total != rows or len(down) > 1 or len(across) > 1:
        return None
    return (down[0][0] if down else 0), (across[0][0] if across else 0)
