"""Which elements have been written when they are read, and which outputs never are, exactly.

A tensor is covered by one bit per element; whole-tensor writes and repeated regions take short cuts, so
that tiled kernels rarely touch the bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.forms import Operand, merged
from nki_sim.ir import LOOP_MARKS, Bools, Program
from nki_sim.memory import lifetimes
from nki_sim.operators import OPERATORS
from nki_sim.regions import in_bytes

Finding = tuple[str, int, int, int]


@dataclass(slots=True)
class _Cover:
    """What has been written of one tensor."""

    bits: Bools
    left: int
    seen: set[tuple[int, int]] = field(default_factory=set)

    def write(self, offset: int, index: int, item: Operand) -> None:
        if (offset, index) in self.seen:
            return
        self.seen.add((offset, index))
        # Overlaps make `left` too small, never too large: the bits decide in the end.
        self.left -= item.elements
        _view(self.bits, offset, item)[...] = True

    def has(self, offset: int, index: int, item: Operand) -> bool:
        return (offset, index) in self.seen or bool(_view(self.bits, offset, item).all())

    @property
    def full(self) -> bool:
        return self.left <= 0 and bool(self.bits.all())


def _view(bits: Bools, offset: int, item: Operand) -> Bools:
    """The bits of the elements that an operand touches."""
    shape = tuple(count for _, count in item.dims)
    return np.ndarray(shape, np.bool_, bits, offset, tuple(step for step, _ in item.dims))


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is known about a program without running it.

    `findings` are (code, tensor, instruction or -1, elements), at most one per code and declaration.
    `unproven` are tensors of which data decide what is written, or read: the run has to look at them.
    """

    findings: list[Finding]
    unproven: frozenset[int]


def examine(program: Program) -> Coverage:
    """Walk over all accesses in program order."""
    walk = _Walk(program)
    findings: dict[tuple[str, int], Finding] = {}
    for code, tensor, number, value in walk.run():
        findings.setdefault((code, int(program.tensor_sites[tensor])), (code, tensor, number, value))
    return Coverage(list(findings.values()), frozenset(walk.unproven))


class _Walk:
    """One pass over the accesses; `None` in `covers` stands for a tensor without open questions."""

    def __init__(self, program: Program) -> None:
        self._program = program
        sizes = np.array([site.size for site in program.sites], dtype=np.int64)
        self._sizes = sizes[program.tensor_sites].tolist()
        # Tensors accessed as elements of several sizes are covered byte by byte.
        self._scaled = program.reinterpreted
        for tensor in self._scaled:
            self._sizes[tensor] *= DTYPES[program.site(tensor).dtype].itemsize
        self._covers: dict[int, _Cover | None] = dict.fromkeys((*program.inputs, *program.constants))
        # What each loop around the current instruction, and the kernel around all, has written.
        self._loops: list[list[int]] = [[]]
        self._last = lifetimes(program).last if program.partners else np.zeros(0, dtype=np.int64)
        self.unproven: set[int] = set()

    def run(self) -> Iterator[Finding]:
        program, covers, sizes = self._program, self._covers, self._sizes
        items, cells = program.operands, program.cells
        scaled, looped = self._scaled, bool(program.partners)
        lengths, decided, marks = _accesses(program)
        accumulation = _Accumulation(program)
        columns = (cells.instruction, cells.operand, cells.tensor, cells.offset, cells.writes, cells.reads)
        # Within an instruction all reads come before the writes.
        order = np.lexsort((cells.writes & ~cells.reads, cells.instruction))
        for number, index, tensor, offset, write, read in zip(
            *(c[order].tolist() for c in columns), strict=True
        ):
            if write and accumulation.undefined(index, tensor, offset):
                yield "psum_accumulate_undefined", tensor, number, 0
            if looped and marks[index]:
                self._mark(marks[index], number)
            if tensor in covers and covers[tensor] is None:
                continue
            cover = covers.get(tensor)
            if decided[index]:
                if cover is None and not write:
                    yield "uninitialised_read", tensor, number, 0
                self._leave(tensor)
                continue
            item, unit = (items[index], 1) if tensor not in scaled else _bytewise(items[index])
            if read and (cover is None or not cover.has(offset * unit, index, item)):
                yield "uninitialised_read", tensor, number, 0
            if not write:
                continue
            self._loops[-1].append(tensor)
            if lengths[index] * unit == sizes[tensor]:
                covers[tensor] = None
                continue
            if cover is None:
                cover = covers[tensor] = _Cover(np.zeros(sizes[tensor], dtype=bool), sizes[tensor])
            cover.write(offset * unit, index, item)
            covers[tensor] = None if cover.full else cover
        yield from self._outputs()

    def _outputs(self) -> Iterator[Finding]:
        for tensor in self._program.outputs:
            cover = self._covers.get(tensor)
            if tensor not in self._covers or cover is not None:
                missing = self._sizes[tensor] if cover is None else len(cover.bits) - int(cover.bits.sum())
                yield "tensor_output_not_written_to", tensor, -1, missing

    def _leave(self, tensor: int) -> None:
        """Leave the tensor to the run."""
        self._covers[tensor] = None
        self.unproven.add(tensor)

    def _mark(self, mark: int, number: int) -> None:
        """What a loop writes is proven inside it alone: it may run no times at all."""
        if mark > 0:
            self._loops.append([])
            return
        outputs = set(self._program.outputs)
        for tensor in self._loops.pop():
            if self._last[tensor] > number or tensor in outputs:
                self._leave(tensor)


def _bytewise(item: Operand) -> tuple[Operand, int]:
    """The access in bytes, and the bytes of an element."""
    return replace(item, dims=in_bytes(item)), item.itemsize


def _accesses(program: Program) -> tuple[list[int], list[bool], list[int]]:
    """Per operand: the length of `_whole`, whether data decide what it touches, 1 and -1 for loop markers."""
    pairs = [(form, item) for form in program.forms for item in form.operands]
    partial = {form: OPERATORS[form.op].partial(form) for form in program.forms}
    return (
        [_whole(item) for _, item in pairs],
        [item.index_step > 0 or item.role in partial[form] for form, item in pairs],
        [LOOP_MARKS.get(form.op, 0) for form, _ in pairs],
    )


def _whole(item: Operand) -> int:
    """Elements of the pattern when it is one contiguous run, else 0."""
    joined = merged(item.dims)
    return item.elements if not joined or (len(joined) == 1 and joined[0][0] == 1) else 0


class _Accumulation:
    """Accumulating onto PSUM that something other than a matmul wrote is undefined on hardware."""

    def __init__(self, program: Program) -> None:
        forms = [form for form in program.forms for _ in form.operands]
        self._program = program
        self._moved = [item.index_step > 0 for item in program.operands]
        self._matmul = [form.op == "nc_matmul" for form in forms]
        self._adds = [bool(form.param("accumulate")) for form in forms]
        cells = program.cells
        adding = np.array(self._adds, dtype=bool)[cells.operand] & cells.writes
        self._goals = set(cells.tensor[adding].tolist())
        self._foreign: dict[int, Bools] = {}

    def undefined(self, index: int, tensor: int, offset: int) -> bool:
        """Whether this write accumulates onto a foreign element; else notes whose its elements are now."""
        if tensor not in self._goals:
            return False
        foreign = self._foreign.get(tensor)
        if foreign is None:
            if self._matmul[index]:
                return False
            foreign = self._foreign[tensor] = np.zeros(self._program.site(tensor).size, dtype=bool)
        if self._moved[index]:
            return False
        view = _view(foreign, offset, self._program.operands[index])
        if self._adds[index]:
            return bool(view.any())
        view[...] = not self._matmul[index]
        return False
