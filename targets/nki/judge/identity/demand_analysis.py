"""Finds the parts of a program's instructions that some elements of its outputs need.

Program slices keep or drop an instruction as a whole. Numbers of a domain cost a hundred times as much as
floats, so here each instruction is cut down to the needed rows and columns of its result. One walk goes from
the last instruction to the first, with a bit for each element of each tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nki_sim.dtypes import PACKED_DTYPES
from nki_sim.flow.regions import make_element_marks
from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Bools, Ints, Program
from remote.judge.tiles import Box
from targets.nki.judge.identity.instruction_operations import InstructionOperation
from targets.nki.judge.identity.operand_elements import (
    OperandElements,
    all_elements,
    box_offsets,
    element_offsets,
    make_grid,
    operand_bits,
)
from targets.nki.judge.identity.operations import select_operation

MAX_STEPS = 20_000
"""Limit on the instructions that parts of the outputs need."""

MAX_ELEMENTS = 1 << 30
"""Limit on the elements of all tensors in use at a time; each gets a bit."""


class NotEvaluableError(Exception):
    """A program, or a reference, that cannot be evaluated over a domain; the text says why."""


@dataclass(frozen=True, slots=True)
class DemandedStep:
    """An instruction and the part of its result to compute; `dead` tensors can be dropped afterwards."""

    number: int
    operation: InstructionOperation
    part: OperandElements
    dead: tuple[int, ...] = ()


def find_demanded_steps(program: Program, wanted: Mapping[int, Sequence[Box]]) -> list[DemandedStep]:
    """Return the steps needed for boxes of outputs, by the outputs' positions, in program order.

    Raises:
        NotEvaluableError: only a run shows which instructions these are.
    """
    _require_static_program(program)
    if len(program) > MAX_STEPS:
        raise NotEvaluableError(
            f"parts of its outputs need {len(program)} instructions, at most {MAX_STEPS} are followed"
        )
    return _DemandWalk(program, wanted).collect_steps()


def count_work(found: Sequence[DemandedStep]) -> int:
    """Return the approximate number of computed elements."""
    return sum(step.part.rows.size * step.part.columns.size * step.operation.depth for step in found)


def _require_static_program(program: Program) -> None:
    if program.loop_partners:
        raise NotEvaluableError("data decide how often its loops run")
    if any(item.index_step for item in program.operands):
        raise NotEvaluableError("data decide which elements it moves")
    if program.reinterpreted_tensors:
        raise NotEvaluableError("it reads the bits of one type as another")
    if any(program.site(tensor).dtype in PACKED_DTYPES for tensor in (*program.inputs, *program.constants)):
        raise NotEvaluableError("it is given numbers that are packed already")


class _DemandWalk:
    def __init__(self, program: Program, wanted: Mapping[int, Sequence[Box]]) -> None:
        self._program = program
        self._bits: dict[int, Bools] = {}
        self._left = MAX_ELEMENTS
        changed = program.cells.tensor[program.cells.writes].tolist()
        self._given = {*program.inputs, *program.constants}.difference(changed)
        tensors, cells = np.unique(program.cells.tensor, return_index=True)
        self._born: dict[int, list[int]] = {}
        for tensor, number in zip(tensors.tolist(), program.cells.instruction[cells].tolist(), strict=True):
            self._born.setdefault(number, []).append(tensor)
        for position, boxes in wanted.items():
            tensor = program.outputs[position]
            for box in boxes:
                self._tensor_bits(tensor)[box_offsets(program.site(tensor).shape, box)] = True

    def collect_steps(self) -> list[DemandedStep]:
        program = self._program
        first = program.cells.first.tolist()
        tensors, offsets = program.tensors.tolist(), program.offsets.tolist()
        seen: set[int] = {*program.outputs}
        found = []
        for number in range(len(program) - 1, -1, -1):
            cells = slice(first[number], first[number + 1])
            form = program.forms[program.form_ids[number]]
            one = select_operation(form)
            part = self._demand_step(form, one, tensors[cells], offsets=offsets[cells])
            if part is not None:
                dead = {*tensors[cells]} - seen - self._given
                seen |= dead
                found.append(DemandedStep(number, one, part, tuple(dead)))
            for tensor in self._born.get(number, ()):
                self._left += self._bits.pop(tensor, np.zeros(0, bool)).size
        return found[::-1]

    def _demand_step(
        self, form: Form, one: InstructionOperation, tensors: Sequence[int], *, offsets: Sequence[int]
    ) -> OperandElements | None:
        """Return the needed part of an instruction's result, and mark what that part needs in turn."""
        effects = [OPERATORS[form.op].effect(form, item.role) for item in form.operands]
        operands = list(zip(form.operands, tensors, offsets, effects, strict=True))
        asked = {
            item.role: operand_bits(self._bits[tensor], item, offset).reshape(item.partitions, item.free)
            for item, tensor, offset, (writes, _) in operands
            if writes and tensor in self._bits
        }
        part = _demanded_part(form, one, asked)
        if part is None:
            return None
        for item, tensor, offset, effect in operands:
            if effect == (True, False) and tensor in self._bits:
                operand_bits(self._bits[tensor], item, offset)[...] = False
        reach = one.reach(form, part)
        for item, tensor, offset, (_, reads) in operands:
            if reads and tensor not in self._given:
                self._tensor_bits(tensor)[element_offsets(reach[item.role], item, offset)] = True
        return part

    def _tensor_bits(self, tensor: int) -> Bools:
        if tensor not in self._bits:
            size = self._program.site(tensor).size
            self._left -= size
            if self._left < 0:
                raise NotEvaluableError(f"it uses tensors of more than {MAX_ELEMENTS} elements at a time")
            self._bits[tensor] = make_element_marks(size)
        return self._bits[tensor]


def _demanded_part(
    form: Form, one: InstructionOperation, asked: Mapping[str, Bools]
) -> OperandElements | None:
    """The rows and columns of the result that hold everything needed."""
    if not any(bits.any() for bits in asked.values()):
        return None
    if one.extent == "whole":
        return all_elements(form.operands[0])
    if one.demanded is not None:
        asked = {"dst": one.demanded(form, asked)}
    dst = form["dst"]
    rows: Bools = np.zeros(dst.partitions, bool)
    columns: Bools = np.zeros(dst.free, bool)
    for role, bits in asked.items():
        rows |= bits.any(axis=1)
        columns |= bits.any(axis=0) if role == "dst" else bits.any()
    return make_grid(np.flatnonzero(rows), _demanded_columns(columns, one))


def _demanded_columns(asked: Bools, one: InstructionOperation) -> Ints:
    found: Ints = np.flatnonzero(asked)
    return np.arange(found[-1] + 1) if one.extent == "prefix" else found
