"""Which elements have been written when they are read, and which outputs never are, exactly.

A tensor is covered by one bit per element; whole-tensor writes and repeated regions take short cuts, so
that tiled kernels rarely touch the bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from nki_sim.forms import Operand, merged
from nki_sim.ir import Bools, Program

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


def uninitialised(program: Program) -> list[Finding]:
    """(code, tensor, instruction or -1, elements), at most one per code and declaration."""
    findings: dict[tuple[str, int], Finding] = {}
    for code, tensor, number, value in _walk(program):
        findings.setdefault((code, int(program.tensor_sites[tensor])), (code, tensor, number, value))
    return list(findings.values())


def _walk(program: Program) -> Iterator[Finding]:
    items = program.operands
    lengths = [_whole(item) for item in items]
    sizes = np.array([site.size for site in program.sites], dtype=np.int64)[program.tensor_sites].tolist()
    covers: dict[int, _Cover | None] = dict.fromkeys(program.inputs)
    accumulation = _Accumulation(program)
    cells = program.cells
    columns = (cells.instruction, cells.operand, cells.tensor, cells.offset, cells.writes, cells.reads)
    # Within an instruction all reads come before the writes.
    order = np.lexsort((cells.writes & ~cells.reads, cells.instruction))
    for number, index, tensor, offset, write, read in zip(*(c[order].tolist() for c in columns), strict=True):
        if write and accumulation.undefined(index, tensor, offset):
            yield "psum_accumulate_undefined", tensor, number, 0
        if tensor in covers and covers[tensor] is None:
            continue
        cover = covers.get(tensor)
        if read and (cover is None or not cover.has(offset, index, items[index])):
            yield "uninitialised_read", tensor, number, 0
        if not write:
            continue
        if lengths[index] == sizes[tensor]:
            covers[tensor] = None
            continue
        if cover is None:
            cover = covers[tensor] = _Cover(np.zeros(sizes[tensor], dtype=bool), sizes[tensor])
        cover.write(offset, index, items[index])
        if cover.full:
            covers[tensor] = None
    for tensor in program.outputs:
        if tensor not in covers or covers[tensor] is not None:
            cover = covers.get(tensor)
            missing = sizes[tensor] if cover is None else int((~cover.bits).sum())
            yield "tensor_output_not_written_to", tensor, -1, missing


def _whole(item: Operand) -> int:
    """Elements of the pattern when it is one contiguous run, else 0."""
    joined = merged(item.dims)
    return item.elements if not joined or (len(joined) == 1 and joined[0][0] == 1) else 0


class _Accumulation:
    """Accumulating onto PSUM that something other than a matmul wrote is undefined on hardware."""

    def __init__(self, program: Program) -> None:
        forms = [form for form in program.forms for _ in form.operands]
        self._program = program
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
        view = _view(foreign, offset, self._program.operands[index])
        if self._adds[index]:
            return bool(view.any())
        view[...] = not self._matmul[index]
        return False
