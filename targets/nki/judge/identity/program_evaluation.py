"""Evaluates parts of a program's outputs over a domain: the simulator's machine with other numbers.

Tensors are flat, one array per component of a number, and are created at their first write. Elements that
were never written are unknown numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nki_sim.dtypes import PACKED_DTYPES, PACKED_ELEMENTS
from nki_sim.forms import Form, Operand
from nki_sim.program.ir import Bools, Ints, Program
from nki_sim.semantics.arrays import NUMPY
from remote.judge.identity.domain import Array, Planes, ValueDomain
from remote.judge.tiles import OutputTile
from targets.nki.judge.identity.demand_analysis import DemandedStep
from targets.nki.judge.identity.instruction_operations import OperationCall, operands_read, operands_written
from targets.nki.judge.identity.operand_elements import OperandElements, box_offsets, element_offsets
from targets.nki.judge.identity.operations import evaluate_operation


def evaluate_program(
    program: Program, steps: Sequence[DemandedStep], domain: ValueDomain, tiles: Sequence[OutputTile]
) -> list[Planes]:
    """Return the elements of the tiles, each in its own shape; `steps` are those that the tiles need."""
    machine = _DomainMachine(program, domain)
    for step in steps:
        machine.execute(step)
    return [
        machine.read(
            program.outputs[tile.output],
            box_offsets(program.site(program.outputs[tile.output]).shape, tile.box),
        )
        for tile in tiles
    ]


@dataclass(eq=False)
class _TensorState:
    """The components of a tensor's elements, flat, and which elements were written.

    Packed elements have their numbers along a second axis.
    """

    arrays: tuple[Array, ...]
    written: Bools


@dataclass(eq=False)
class _DomainMachine:
    program: Program
    domain: ValueDomain
    tensors: dict[int, _TensorState] = field(default_factory=dict)

    def execute(self, step: DemandedStep) -> None:
        """Run the needed part of one instruction."""
        program = self.program
        form = program.forms[program.form_ids[step.number]]
        start = int(program.cells.first[step.number])
        at = {
            item.role: (int(program.tensors[start + i]), int(program.offsets[start + i]))
            for i, item in enumerate(form.operands)
        }
        reach = step.operation.reach(form, step.part)
        given = {
            item.role: self.read(at[item.role][0], element_offsets(reach[item.role], item, at[item.role][1]))
            for item in operands_read(form)
            if item.role in reach
        }
        found = evaluate_operation(
            step.operation, OperationCall(self.domain, program.target, form, step.part, given)
        )
        for item in operands_written(form):
            if item.role in found:
                self._write(*at[item.role], item, _written_part(step, form, item), found[item.role])
        for tensor in step.dead:
            self.tensors.pop(tensor, None)

    def read(self, tensor: int, where: Ints) -> Planes:
        """Return elements of a tensor by their positions."""
        program = self.program
        if tensor in program.inputs:
            return self.domain.input_symbols(program.inputs.index(tensor), where)
        held = self.tensors.get(tensor)
        if held is None and tensor in program.constants:
            return self.domain.constant(self._constant_values(tensor)[where])
        shape = (*where.shape, *self._element_shape(tensor))
        if held is None:
            return self.domain.unknown_values(shape)
        found = Planes(tuple(array[where] for array in held.arrays))
        there = held.written[where]
        if there.all():
            return found
        there = there.reshape(*where.shape, *(1 for _ in shape[there.ndim :]))
        return found.join([self.domain.unknown_values(shape)], lambda both: np.where(there, *both))

    def _write(self, tensor: int, offset: int, item: Operand, part: OperandElements, value: Planes) -> None:
        held = self.tensors.get(tensor)
        if held is None:
            held = self.tensors[tensor] = self._make_tensor(tensor, value)
        where = element_offsets(part, item, offset)
        for held_array, array in zip(held.arrays, value.arrays, strict=True):
            # What fills a tile has no axis for the numbers of a packed element.
            missing = held_array.ndim - 1 if array.ndim == where.ndim else 0
            held_array[where] = array.reshape(*array.shape, *(1,) * missing)
        held.written[where] = True

    def _make_tensor(self, tensor: int, like: Planes) -> _TensorState:
        """A tensor that is about to be written for the first time."""
        if tensor in self.program.constants:
            held = self.domain.constant(self._constant_values(tensor)).move(np.array).arrays
            return _TensorState(held, np.ones(held[0].size, bool))
        size = self.program.site(tensor).size
        shape = (size, *self._element_shape(tensor))
        arrays = tuple(np.empty(shape, array.dtype) for array in like.arrays)
        return _TensorState(arrays, np.zeros(size, bool))

    def _element_shape(self, tensor: int) -> tuple[int, ...]:
        """The numbers in an element: four along an axis of their own if it is packed."""
        return (PACKED_ELEMENTS,) if self.program.site(tensor).dtype in PACKED_DTYPES else ()

    def _constant_values(self, tensor: int) -> Array:
        return np.frombuffer(self.program.constants[tensor], NUMPY[self.program.site(tensor).dtype])


def _written_part(step: DemandedStep, form: Form, item: Operand) -> OperandElements:
    """The positions in an operand where the part's results go."""
    if step.operation.written is not None:
        return step.operation.written(form, step.part)[item.role]
    if step.operation.extent == "whole":
        return OperandElements(np.arange(item.partitions)[:, None], np.arange(item.free)[None, :])
    return OperandElements(
        step.part.rows, step.part.columns if item.role == "dst" else np.zeros((1, 1), np.int64)
    )
