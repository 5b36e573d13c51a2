"""Finds elements that are used before they are written, and outputs that are never written.

A tensor has one bit per element. Whole-tensor writes and repeated regions take short cuts, so tiled kernels
rarely need the bits. Moving unwritten elements is no fault: it makes results computed from them undefined
(`is_undefined`). Unwritten elements are a fault in an output, an address or a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from nki_sim.checks.undefined import deciding_roles, spread_undefined
from nki_sim.dtypes import DTYPES
from nki_sim.flow.regions import make_element_marks, pattern_in_bytes
from nki_sim.forms import PRODUCTS, Operand, merge_dims
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import LOOP_MARKS, Bools, Program
from nki_sim.timing.memory import tensor_lifetimes

Finding = tuple[str, int, int, int]


@dataclass(slots=True)
class _TensorCover:
    """What has been written of one tensor; `foul` marks elements that undefined inputs made undefined."""

    bits: Bools
    left: int
    seen: set[tuple[int, int]] = field(default_factory=set)
    foul: Bools | None = None

    def write(self, offset: int, index: int, item: Operand) -> None:
        if (offset, index) in self.seen:
            return
        self.seen.add((offset, index))
        # Overlaps may make `left` too small, never too large; the bits give the final answer.
        self.left -= item.elements
        _access_bits(self.bits, offset, item)[...] = True
        if self.foul is not None:
            _access_bits(self.foul, offset, item)[...] = False

    def write_undefined(self, offset: int, item: Operand, places: Bools) -> None:
        """Write a region in which some positions [P, F] are undefined."""
        if self.foul is None:
            self.foul = np.zeros_like(self.bits)
        mask = _spread_places(places, item)
        _access_bits(self.bits, offset, item)[...] = ~mask
        _access_bits(self.foul, offset, item)[...] = mask
        self.seen.clear()
        self.left = len(self.bits) - int(np.count_nonzero(self.bits))

    def covers(self, offset: int, index: int, item: Operand) -> bool:
        return (offset, index) in self.seen or bool(_access_bits(self.bits, offset, item).all())

    @property
    def is_full(self) -> bool:
        return self.left <= 0 and bool(self.bits.all())


def _access_bits(bits: Bools, offset: int, item: Operand) -> Bools:
    """The bits of the elements that an operand touches."""
    shape = tuple(count for _, count in item.dims)
    return np.ndarray(shape, np.bool_, bits, offset, tuple(step for step, _ in item.dims))


def _spread_places(places: Bools, item: Operand) -> Bools:
    """Expand positions [P, F] to the dimensions of an access, or of its bytes."""
    shape = [count for _, count in item.dims]
    if places.size == item.elements:
        return places.reshape(shape)
    return np.broadcast_to(places.reshape([*shape[:-1], 1]), shape)


def _covered_places(bits: Bools, offset: int, item: Operand, *, elements: int) -> Bools:
    """Which positions [P, F] of an access have all their bits set; the access may be one of bytes."""
    view = _access_bits(bits, offset, item)
    return view.reshape(elements, -1).all(axis=1).reshape(item.partitions, -1)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the accesses of a program show without running it.

    `findings` are (code, tensor, instruction or -1, elements), at most one per code and declaration.
    `unproven` are tensors for which data decide what is written or read, so the run has to check them. `open`
    says whether undefined elements reach some of these.
    """

    findings: list[Finding]
    unproven: frozenset[int]
    open: bool


def examine_coverage(program: Program) -> Coverage:
    """Check all accesses in program order."""
    walk = _CoverageWalk(program)
    findings: dict[tuple[str, int], Finding] = {}
    for code, tensor, number, value in walk.run():
        findings.setdefault((code, int(program.tensor_sites[tensor])), (code, tensor, number, value))
    return Coverage(list(findings.values()), frozenset(walk.unproven), walk.open)


class _CoverageWalk:
    """One pass over the accesses; `None` in `covers` means that nothing about the tensor is open."""

    def __init__(self, program: Program) -> None:
        self._program = program
        sizes = np.array([site.size for site in program.sites], dtype=np.int64)
        self._sizes = sizes[program.tensor_sites].tolist()
        # Tensors accessed as elements of several sizes are covered byte by byte.
        self._scaled = program.reinterpreted_tensors
        for tensor in self._scaled:
            self._sizes[tensor] *= DTYPES[program.site(tensor).dtype].itemsize
        self._covers: dict[int, _TensorCover | None] = dict.fromkeys((*program.inputs, *program.constants))
        # What each enclosing loop has written, and the kernel outside all loops.
        self._loops: list[list[int]] = [[]]
        self._last = tensor_lifetimes(program).last if program.loop_partners else np.zeros(0, dtype=np.int64)
        self._accesses = _OrderedAccesses(program)
        # The first read of unwritten elements, by the tensors that it made undefined.
        self._origins: dict[int, tuple[int, int]] = {}
        self.unproven: set[int] = set()
        self.open = False

    def run(self) -> Iterator[Finding]:
        program, accesses, covers = self._program, self._accesses, self._covers
        accumulation = _PsumAccumulation(program)
        lost: dict[int, Bools] = {}
        now = -1
        for number, index, tensor, offset, write, also in accesses.iter_accesses():
            if number != now:
                now, lost = number, {}
            if write and accumulation.is_undefined(index, tensor, offset):
                yield "psum_accumulate_undefined", tensor, number, 0
            if accesses.marks[index]:
                self._mark_loop(accesses.marks[index], number)
            if not lost and tensor in covers and covers[tensor] is None:
                continue
            if accesses.decided[index]:
                if tensor not in covers and not write and not also:
                    yield "uninitialised_read", tensor, number, 0
                self._leave_to_run(tensor, spoiled=bool(lost))
            elif write:
                self._record_write(number, index, tensor, offset=offset, lost=lost)
            else:
                missing = self._undefined_places(index, tensor, offset)
                if missing is None:
                    continue
                origin = self._origins.setdefault(tensor, (tensor, number))
                if accesses.strict[index] or program.loop_partners:
                    yield "uninitialised_read", *origin, 0
                else:
                    lost[index] = missing
        yield from self._check_outputs()

    def _undefined_places(self, index: int, tensor: int, offset: int) -> Bools | None:
        """Positions [P, F] that a read finds undefined; None if there are none."""
        item = self._program.operands[index]
        cover = self._covers.get(tensor)
        if cover is None:
            return None if tensor in self._covers else np.ones((item.partitions, item.free), dtype=bool)
        touched, unit = self._covered_access(index, tensor)
        if cover.covers(offset * unit, index, touched):
            return None
        return ~_covered_places(cover.bits, offset * unit, touched, elements=item.elements)

    def _record_write(
        self, number: int, index: int, tensor: int, *, offset: int, lost: dict[int, Bools]
    ) -> None:
        covers, program = self._covers, self._program
        places = self._spread_undefined(number, index, lost) if lost else None
        if tensor in covers and covers[tensor] is None and places is None:
            return
        if tensor in self.unproven:
            self.open = True
            return
        item, unit = self._covered_access(index, tensor)
        size = self._sizes[tensor]
        self._loops[-1].append(tensor)
        if places is None and self._accesses.lengths[index] * unit == size:
            covers[tensor] = None
            return
        cover = covers.get(tensor)
        if cover is None:
            bits = make_element_marks(size)
            if tensor in covers:
                bits[...] = True
            cover = covers[tensor] = _TensorCover(bits, size)
        if places is None:
            cover.write(offset * unit, index, item)
        else:
            cover.write_undefined(offset * unit, item, places)
            source = int(program.cells.tensor[self._accesses.find_cell(number, next(iter(lost)))])
            self._origins.setdefault(tensor, self._origins[source])
        covers[tensor] = None if cover.is_full else cover

    def _spread_undefined(self, number: int, index: int, lost: dict[int, Bools]) -> Bools | None:
        program = self._program
        form = program.forms[program.form_ids[number]]
        roles = {program.operands[other].role: places for other, places in lost.items()}
        return spread_undefined(form, program.target, roles, program.operands[index])

    def _covered_access(self, index: int, tensor: int) -> tuple[Operand, int]:
        """The access in the tensor's unit of coverage (elements or bytes), and the units per element."""
        item = self._program.operands[index]
        return (item, 1) if tensor not in self._scaled else _access_in_bytes(item)

    def _check_outputs(self) -> Iterator[Finding]:
        for tensor in self._program.outputs:
            cover = self._covers.get(tensor)
            foul = 0 if cover is None or cover.foul is None else int(cover.foul.sum())
            if foul:
                yield "uninitialised_read", *self._origins[tensor], foul
            missing = 0 if tensor in self._covers else self._sizes[tensor]
            if cover is not None:
                missing = len(cover.bits) - int(cover.bits.sum()) - foul
            if missing:
                yield "tensor_output_not_written_to", tensor, -1, missing

    def _leave_to_run(self, tensor: int, *, spoiled: bool = False) -> None:
        """Leave the tensor, and what is undefined in it, to the run."""
        cover = self._covers.get(tensor)
        foul = cover is not None and cover.foul is not None and bool(cover.foul.any())
        self.open |= spoiled or foul
        self._covers[tensor] = None
        self.unproven.add(tensor)

    def _mark_loop(self, mark: int, number: int) -> None:
        """Enter or leave a loop; its writes are proven only inside it, because it may run zero times."""
        if mark > 0:
            self._loops.append([])
            return
        outputs = set(self._program.outputs)
        for tensor in self._loops.pop():
            if self._last[tensor] > number or tensor in outputs:
                self._leave_to_run(tensor)


def _access_in_bytes(item: Operand) -> tuple[Operand, int]:
    """The access in bytes, and the bytes of an element."""
    return replace(item, dims=pattern_in_bytes(item)), item.itemsize


class _OrderedAccesses:
    """All reads and writes in program order; an instruction's reads come before its writes.

    Per operand: `lengths` as from `_contiguous_elements`, whether data decide what it touches (`decided`),
    whether it must have been written (`strict`), and 1 or -1 for the marks of loops.
    """

    def __init__(self, program: Program) -> None:
        pairs = [(form, item) for form in program.forms for item in form.operands]
        partial = {form: OPERATORS[form.op].partial(form) for form in program.forms}
        deciding = {form: deciding_roles(form) for form in program.forms}
        self._program = program
        self.lengths = [_contiguous_elements(item) for _, item in pairs]
        self.decided = [item.index_step > 0 or item.role in partial[form] for form, item in pairs]
        self.strict = [item.role in deciding[form] for form, item in pairs]
        self.marks = [LOOP_MARKS.get(form.op, 0) for form, _ in pairs]

    def iter_accesses(self) -> Iterable[tuple[int, int, int, int, bool, bool]]:
        """Yield (instruction, operand, tensor, offset, whether it writes, whether a read is also a write)."""
        cells = self._program.cells
        reads, writes = np.flatnonzero(cells.reads), np.flatnonzero(cells.writes)
        chosen = np.concatenate([reads, writes])
        kinds = np.repeat([False, True], [len(reads), len(writes)])
        order = np.lexsort((chosen, kinds, cells.instruction[chosen]))
        chosen, kinds = chosen[order], kinds[order]
        columns = (
            cells.instruction[chosen], cells.operand[chosen], cells.tensor[chosen], cells.offset[chosen],
            kinds, cells.writes[chosen] & ~kinds,
        )  # fmt: skip
        return zip(*(column.tolist() for column in columns), strict=True)

    def find_cell(self, number: int, operand: int) -> int:
        """The cell of an instruction's operand."""
        cells = self._program.cells
        first, end = cells.first[number : number + 2].tolist()
        return int(first) + int(np.flatnonzero(cells.operand[first:end] == operand)[0])


def _contiguous_elements(item: Operand) -> int:
    """Number of elements if the pattern is one contiguous run, else 0."""
    joined = merge_dims(item.dims)
    return item.elements if not joined or (len(joined) == 1 and joined[0][0] == 1) else 0


class _PsumAccumulation:
    """Finds accumulation onto PSUM not written by a matmul, which is undefined on hardware."""

    def __init__(self, program: Program) -> None:
        forms = [form for form in program.forms for _ in form.operands]
        self._program = program
        self._moved = [item.index_step > 0 for item in program.operands]
        self._matmul = [form.op in PRODUCTS for form in forms]
        self._adds = [bool(form.param("accumulate")) for form in forms]
        cells = program.cells
        adding = np.array(self._adds, dtype=bool)[cells.operand] & cells.writes
        self._goals = set(cells.tensor[adding].tolist())
        self._foreign: dict[int, Bools] = {}

    def is_undefined(self, index: int, tensor: int, offset: int) -> bool:
        """Whether this write accumulates onto elements not written by a matmul; records the new owner."""
        if tensor not in self._goals:
            return False
        foreign = self._foreign.get(tensor)
        if foreign is None:
            if self._matmul[index]:
                return False
            foreign = self._foreign[tensor] = make_element_marks(self._program.site(tensor).size)
        if self._moved[index]:
            return False
        view = _access_bits(foreign, offset, self._program.operands[index])
        if self._adds[index]:
            return bool(view.any())
        view[...] = not self._matmul[index]
        return False
