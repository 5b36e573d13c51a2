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

    def view(self, offset: int, item: Operand) -> Bools:
        shape = tuple(count for _, count in item.dims)
        return np.ndarray(shape, np.bool_, self.bits, offset, tuple(step for step, _ in item.dims))

    def write(self, offset: int, index: int, item: Operand) -> None:
        if (offset, index) in self.seen:
            return
        self.seen.add((offset, index))
        view = self.view(offset, item)
        # Overlaps make `left` too small, never too large: the bits decide in the end.
        self.left -= item.elements
        view[...] = True

    def has(self, offset: int, index: int, item: Operand) -> bool:
        return (offset, index) in self.seen or bool(self.view(offset, item).all())

    @property
    def full(self) -> bool:
        return self.left <= 0 and bool(self.bits.all())


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
        if accumulation.undefined(number, index, tensor, offset, write=write):
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
        ops = [form.op for form in program.forms for _ in form.operands]
        self._psum = [item.buffer == "psum" for item in program.operands]
        self._matmul = [op == "nc_matmul" for op in ops]
        forms = [form for form in program.forms for _ in form.operands]
        self._adds = [bool(form.param("accumulate")) for form in forms]
        self._started: dict[int, set[tuple[int, int]]] = {}
        self._foreign: set[int] = set()
        self._dims = {}
        for index, item in enumerate(program.operands):
            self._dims[index] = hash(item.dims)

    def undefined(self, number: int, index: int, tensor: int, offset: int, *, write: bool) -> bool:
        del number
        if not write or not self._psum[index]:
            return False
        region = (offset, self._dims[index])
        if not self._matmul[index]:
            self._foreign.add(tensor)
            self._started.pop(tensor, None)
            return False
        if self._adds[index]:
            return tensor in self._foreign and region not in self._started.get(tensor, set())
        self._started.setdefault(tensor, set()).add(region)
        return False
