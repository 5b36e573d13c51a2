"""The program: a traced kernel as versioned, validated data. Everything else is a function of it.

Programs come from an untrusted process, so `Program.from_bytes` checks everything once: names, types, that
every access stays inside its tensor, and that forms and tensors agree. Code that uses a program may then
index without checks. Invalid bytes raise `IRError` and nothing else. A valid program may still break a rule
of the hardware; `checks` looks for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nki_sim.dtypes import DTYPES
from nki_sim.errors import IRError
from nki_sim.forms import DIALECTS, HBM_BUFFERS, MAX_DEPTH, ArraySpec, Form, Operand, Site
from nki_sim.operators import OPERATORS
from nki_sim.program import wire
from nki_sim.program.decode import MAX_SIZE, decode_form, decode_site, decode_text_field

__all__ = ["ArraySpec", "Cells", "Form", "Iterations", "Operand", "Program", "Site"]

MAX_INSTRUCTIONS = 2_000_000
MAX_CORES = 2

LOOP_MARKS = {"loop_begin": 1, "loop_end": -1}
SYNC_OPERATORS = frozenset({"core_barrier", "sendrecv"})
"""Instructions at which the cores of a launch wait for each other; each core issues one."""

_DTYPES = {"B": "<u1", "I": "<u4", "q": "<i8"}

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cells:
    """One row per operand of each instruction, in program order.

    `operand` indexes the flat list of all forms' operands; `first[i]` is instruction i's first cell.
    """

    instruction: Ints
    operand: Ints
    tensor: Ints
    offset: Ints
    first: Ints
    writes: Bools
    reads: Bools


@dataclass(frozen=True, eq=False)
class Iterations:
    """Loop iterations whose order the kernel leaves open, as a forest; empty if there are none.

    `nodes[i]` is the iteration that issued instruction i, 0 outside loops. The fields of iteration n (from 1)
    are at n - 1: the enclosing iteration (0 or a smaller number), the loop, and the index in the loop.
    Iterations of one execution of a loop share parent and loop.
    """

    nodes: Ints
    parents: Ints
    loops: Ints
    indices: Ints


@dataclass(frozen=True, eq=False)
class Program:
    """A kernel after tracing; build it with `from_bytes`, which validates.

    `dialect` is the namespace the kernel was written in. The compiler of `neuronxcc` kernels rewrites them:
    it spills and reloads what does not fit. `cores[i]` is the core of the launch that issues instruction i.
    `constants` maps tensors in HBM or in engines that hold data from the start to their bytes.
    `address_rotation` is what the kernel tells its compiler, None if it leaves that to the compiler.
    """

    target: str
    dialect: str
    kernel: str
    filename: str
    sites: tuple[Site, ...]
    forms: tuple[Form, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tensor_sites: Ints
    form_ids: Ints
    lines: Ints
    cores: Ints
    tensors: Ints
    offsets: Ints
    iterations: Iterations
    constants: Mapping[int, bytes]
    address_rotation: bool | None = None

    def __len__(self) -> int:
        """Number of instructions."""
        return len(self.form_ids)

    def site(self, tensor: int) -> Site:
        """The site that declares a tensor."""
        return self.sites[int(self.tensor_sites[tensor])]

    def array_specs(self, tensors: tuple[int, ...]) -> list[ArraySpec]:
        """Shapes and types of some tensors, for example of `inputs`."""
        return [ArraySpec(self.site(tensor).shape, self.site(tensor).dtype) for tensor in tensors]

    @cached_property
    def loop_partners(self) -> dict[int, int]:
        """Map each `loop_begin` to its `loop_end` and back, by instruction number.

        Raises:
            IRError: a marker has no partner, or a loop with one condition holds instructions of two cores.
        """
        marks = np.array([LOOP_MARKS.get(form.op, 0) for form in self.forms], dtype=np.int64)
        found: dict[int, int] = {}
        open_loops: list[int] = []
        for number in np.flatnonzero(marks[self.form_ids]).tolist() if marks.any() else []:
            if marks[self.form_ids[number]] > 0:
                open_loops.append(number)
                continue
            if not open_loops:
                raise IRError(f"instruction {number} ends a loop that no instruction begins")
            begin = open_loops.pop()
            alone = any(len(self.forms[self.form_ids[mark]].operands) == 1 for mark in (begin, number))
            if alone and len(set(self.cores[begin : number + 1].tolist())) > 1:
                raise IRError(f"the loop of instructions {begin} to {number} holds two cores")
            found[begin], found[number] = number, begin
        if open_loops:
            raise IRError(f"the loop that instruction {open_loops[-1]} begins has no end")
        return found

    @property
    def loops(self) -> list[tuple[int, int]]:
        """First and last instruction of each loop whose bounds depend on data, in program order."""
        return sorted(pair for pair in self.loop_partners.items() if pair[0] < pair[1])

    @cached_property
    def tensor_cores(self) -> Ints:
        """The core whose memory holds each on-chip tensor: that of the first instruction to touch it."""
        found = np.zeros(len(self.tensor_sites), dtype=np.int64)
        if self.cores.any():
            tensors, first = np.unique(self.cells.tensor, return_index=True)
            found[tensors] = self.cores[self.cells.instruction[first]]
        return found

    @cached_property
    def reinterpreted_tensors(self) -> frozenset[int]:
        """Tensors that some access reads or writes as elements of another size than declared.

        Offsets and patterns count elements of the operand's own type.
        """
        cells = self.cells
        widths = np.array([item.itemsize for item in self.operands], dtype=np.int64)
        declared = np.array([DTYPES[site.dtype].itemsize for site in self.sites], dtype=np.int64)
        other = widths[cells.operand] != declared[self.tensor_sites[cells.tensor]]
        return frozenset(np.unique(cells.tensor[other]).tolist())

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The operands of all forms, form after form."""
        return tuple(item for form in self.forms for item in form.operands)

    @cached_property
    def cells(self) -> Cells:
        """Operands of all instructions as parallel arrays."""
        counts = np.array([len(form.operands) for form in self.forms], dtype=np.int64)
        base = np.cumsum(counts) - counts
        repeat = counts[self.form_ids] if len(self) else np.zeros(0, np.int64)
        first = np.concatenate([[0], np.cumsum(repeat)]).astype(np.int64)
        instruction = np.repeat(np.arange(len(self)), repeat)
        operand = np.arange(first[-1]) - first[instruction] + base[self.form_ids[instruction]]
        writes, reads = self._operand_effects()
        return Cells(instruction, operand, self.tensors, self.offsets, first, writes[operand], reads[operand])

    def _operand_effects(self) -> tuple[Bools, Bools]:
        writes, reads = [], []
        for form in self.forms:
            for item in form.operands:
                write, read = OPERATORS[form.op].effect(form, item.role)
                writes.append(write)
                reads.append(read)
        return np.array(writes, dtype=bool), np.array(reads, dtype=bool)

    def to_bytes(self) -> bytes:
        """Encode the program for `from_bytes`."""
        header = {
            "target": self.target,
            "dialect": self.dialect,
            "kernel": self.kernel,
            "filename": self.filename,
            "sites": [wire.site_to_json(site) for site in self.sites],
            "forms": [wire.form_to_json(form) for form in self.forms],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "constants": list(self.constants),
            **wire.rotation_to_json(self.address_rotation),
        }
        columns = {
            "tensor_sites": self.tensor_sites.astype("<u4").tobytes(),
            "forms": self.form_ids.astype("<u4").tobytes(),
            "lines": self.lines.astype("<u4").tobytes(),
            "cores": self.cores.astype("<u1").tobytes(),
            "tensors": self.tensors.astype("<u4").tobytes(),
            "offsets": self.offsets.astype("<i8").tobytes(),
            "nodes": self.iterations.nodes.astype("<u4").tobytes(),
            "node_parents": self.iterations.parents.astype("<u4").tobytes(),
            "node_loops": self.iterations.loops.astype("<u4").tobytes(),
            "node_indices": self.iterations.indices.astype("<u4").tobytes(),
            "constants": b"".join(self.constants.values()),
        }
        return wire.pack(header, columns)

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """Decode and validate.

        Raises:
            IRError: the bytes are invalid in any way.
        """
        try:
            return cls._from_columns(*wire.unpack(data))
        except RecursionError as error:
            raise IRError("the header is nested too deeply") from error

    @classmethod
    def _from_columns(cls, header: dict[str, Any], columns: dict[str, memoryview]) -> Program:
        arrays = {
            name: np.frombuffer(columns[name], dtype=_DTYPES[code]).astype(np.int64)
            for name, code in wire.COLUMNS
            if name != "constants"
        }
        nodes = Iterations(
            arrays["nodes"], arrays["node_parents"], arrays["node_loops"], arrays["node_indices"]
        )
        sites = tuple(decode_site(item) for item in _header_list(header, "sites"))
        constants = _decode_constants(header, sites, arrays["tensor_sites"], data=columns["constants"])
        program = cls(
            target=decode_text_field(header, "target"),
            dialect=decode_text_field(header, "dialect"),
            kernel=decode_text_field(header, "kernel"),
            filename=decode_text_field(header, "filename"),
            sites=sites,
            forms=tuple(decode_form(item) for item in _header_list(header, "forms")),
            inputs=_header_ids(header, "inputs"),
            outputs=_header_ids(header, "outputs"),
            tensor_sites=arrays["tensor_sites"],
            form_ids=arrays["forms"],
            lines=arrays["lines"],
            cores=arrays["cores"],
            tensors=arrays["tensors"],
            offsets=arrays["offsets"],
            iterations=nodes,
            constants=constants,
            address_rotation=_decode_rotation(header),
        )
        _validate_program(program)
        return program


def _decode_rotation(header: dict[str, Any]) -> bool | None:
    value = header.get(wire.ADDRESS_ROTATION)
    if value is not None and type(value) is not bool:
        raise IRError(f"{wire.ADDRESS_ROTATION} is {str(value)[:80]!r}, not true or false")
    return value


def _header_list(header: dict[str, Any], name: str) -> list[Any]:
    value = header.get(name)
    if not isinstance(value, list):
        raise IRError(f"{name} is not a list")
    return value


def _header_ids(header: dict[str, Any], name: str) -> tuple[int, ...]:
    values = _header_list(header, name)
    if any(type(value) is not int for value in values) or len(set(values)) != len(values):
        raise IRError(f"{name} must be distinct tensor numbers")
    return tuple(values)


def _decode_constants(
    header: dict[str, Any], sites: tuple[Site, ...], tensor_sites: Ints, *, data: memoryview
) -> dict[int, bytes]:
    """The bytes of each constant tensor, which are stored one after another in `data`."""
    found: dict[int, bytes] = {}
    position = 0
    for number in _header_ids(header, "constants"):
        if not 0 <= number < len(tensor_sites) or tensor_sites[number] >= len(sites):
            raise IRError(f"constant {number} is not a tensor")
        site = sites[int(tensor_sites[number])]
        if site.buffer not in HBM_BUFFERS | {"register"}:
            raise IRError(f"constant {site.name} is in {site.buffer}")
        end = position + site.size * DTYPES[site.dtype].itemsize
        found[number] = bytes(data[position:end])
        position = end
    if position != len(data):
        raise IRError(f"constants of {position} bytes announced, {len(data)} found")
    return found


def _validate_program(program: Program) -> None:
    if max(len(program), len(program.tensor_sites)) > MAX_INSTRUCTIONS:
        raise IRError(f"more than {MAX_INSTRUCTIONS} instructions or tensors")
    if program.dialect not in DIALECTS:
        raise IRError(f"unknown dialect {program.dialect[:80]!r}")
    if len(program.lines) != len(program) or len(program.cores) != len(program):
        raise IRError("the columns of lines and cores are not as long as the program")
    _require_below(program.cores, MAX_CORES, "core of an instruction")
    _require_below(program.tensor_sites, len(program.sites), "site of a tensor")
    _require_below(program.form_ids, len(program.forms), "form of an instruction")
    _require_below(program.tensors, len(program.tensor_sites), "tensor of an operand")
    _validate_io(program)
    counts = np.array([len(form.operands) for form in program.forms], dtype=np.int64)
    total = int(counts[program.form_ids].sum()) if len(program) else 0
    if total != len(program.tensors) or total != len(program.offsets):
        raise IRError(f"instructions have {total} operands, the columns {len(program.tensors)}")
    if total:
        _validate_cells(program)
    _validate_iterations(program)
    # Computing the partners validates the loops.
    _ = program.loop_partners


def _require_below(values: Ints, limit: int, what: str) -> None:
    if len(values) and int(values.max()) >= limit:
        raise IRError(f"{what} is {int(values.max())}, there are {limit}")


def _validate_iterations(program: Program) -> None:
    found = program.iterations
    count = len(found.parents)
    if {len(found.loops), len(found.indices)} != {count} or count > MAX_INSTRUCTIONS:
        raise IRError("the columns of iterations are not equally long, or too long")
    if len(found.nodes) != (len(program) if count else 0):
        raise IRError(f"iterations of {len(found.nodes)} instructions, there are {len(program)}")
    _require_below(found.nodes, count + 1, "iteration of an instruction")
    if np.any(found.parents > np.arange(count)):
        raise IRError("an iteration comes before the one around it")
    parents = np.concatenate([[0], found.parents])
    around = parents
    for _ in range(MAX_DEPTH):
        around = parents[around]
        if not around.any():
            return
    raise IRError(f"more than {MAX_DEPTH} iterations inside each other")


def _validate_io(program: Program) -> None:
    count = len(program.tensor_sites)
    for what, numbers, buffers in (
        ("input", program.inputs, {"hbm"}),
        ("output", program.outputs, {"hbm", "shared_hbm"}),
    ):
        for number in numbers:
            if not 0 <= number < count:
                raise IRError(f"{what} {number} is not a tensor")
            if program.site(number).buffer not in buffers:
                raise IRError(f"{what} {program.site(number).name} is in {program.site(number).buffer}")
    if {*program.inputs} & program.constants.keys():
        raise IRError("an input is a constant")
    if not program.outputs:
        raise IRError("the program has no output")


def _validate_cells(program: Program) -> None:
    """Check that every access agrees with its tensor's rows and stays inside it, and inside its rows on chip.

    An access may read the bytes as another type if rows hold a whole number of its elements.
    """
    kinds: dict[tuple[int, str], int] = {}
    site_kinds = np.array(
        [kinds.setdefault((s.row * DTYPES[s.dtype].itemsize, s.buffer), len(kinds)) for s in program.sites]
    )
    items = program.operands
    item_kinds = np.array([kinds.get((o.row * o.itemsize, o.buffer), -1) for o in items])
    cells = program.cells
    sites = program.tensor_sites[cells.tensor]
    if np.any(site_kinds[sites] != item_kinds[cells.operand]):
        raise IRError("an operand does not agree with its tensor's rows or buffer")
    sizes = np.array([site.size * DTYPES[site.dtype].itemsize for site in program.sites], dtype=np.int64)
    widths = np.array([item.itemsize for item in items], dtype=np.int64)[cells.operand]
    extents = np.array([item.extent for item in items], dtype=np.int64)[cells.operand]
    low = cells.offset - np.array([item.reach_below for item in items], dtype=np.int64)[cells.operand]
    if np.any(low < 0) or np.any(low > sizes[sites] // widths - extents):
        raise IRError("an access lies outside its tensor")
    _validate_rows(items, cells, low)


def _validate_rows(items: tuple[Operand, ...], cells: Cells, low: Ints) -> None:
    chip = np.array([item.buffer not in HBM_BUFFERS for item in items])[cells.operand]
    rows = np.array([item.row for item in items], dtype=np.int64)[cells.operand]
    starts = np.array([item.start for item in items], dtype=np.int64)[cells.operand]
    free = np.array([min(MAX_SIZE, item.free_extent) for item in items], dtype=np.int64)[cells.operand]
    psum = np.array([item.buffer == "psum" for item in items])[cells.operand]
    columns = np.array([item.column for item in items], dtype=np.int64)[cells.operand]
    if np.any(columns != np.where(psum, cells.offset % rows, 0)):
        raise IRError("an operand does not say where in its row it begins")
    same = (cells.offset // rows == starts) & (low // rows == starts)
    wrong = chip & (~same | (low % rows + free > rows))
    if np.any(wrong):
        raise IRError("an access on chip crosses from one partition to the next")
