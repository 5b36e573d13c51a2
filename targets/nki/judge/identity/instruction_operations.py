"""Evaluates one instruction over a domain: operand values, and what all instructions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nki_sim.forms import Form, Operand, ParamValue
from nki_sim.functions import ALU_UNARY
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Bools
from nki_sim.semantics.common import IDENTITIES, as_float
from remote.judge.identity.domain import Array, Planes, ValueDomain
from targets.nki.judge.identity.operand_elements import OperandElements

_FOLDS = frozenset({"add", "multiply", "maximum", "minimum"})
KNOWN_REDUCTIONS = _FOLDS | {"average", "subtract"}
"""Reductions that are more than opaque functions."""

RoleResults = dict[str, Planes]
"""Results by role; shapes broadcast to that of the part, or to one column where the role has one."""


@dataclass(frozen=True, eq=False)
class OperationCall:
    """A part of an instruction; `given` are the elements that it reads, by role."""

    domain: ValueDomain
    target: str
    form: Form
    part: OperandElements
    given: Mapping[str, Planes]

    def parameter(self, name: str, default: ParamValue | None = None) -> ParamValue | None:
        """The parameter of that name."""
        return self.form.param(name, default)

    def make_constant(self, value: float | Array) -> Planes:
        """Return a constant, or an array of them."""
        return self.domain.constant(np.atleast_2d(np.asarray(value, np.float64)))

    def operand(self, role: str) -> Planes:
        """Return the tile or constant in that role; 0 where an operator takes no second operand."""
        if role in self.given:
            return self.given[role]
        found = self.parameter(role, 0.0)
        assert found is not None
        return self.make_constant(as_float(found))

    def apply_operator(
        self, op: ParamValue | None, left: Planes, right: Planes, reverse: object = False
    ) -> Planes:
        """Apply an arithmetic operator by its name in the instruction."""
        first, second = (right, left) if reverse else (left, right)
        name = str(op)
        return (
            self.domain.apply_unary(name, first)
            if name in ALU_UNARY
            else self.domain.apply_binary(name, first, second)
        )

    def negate_if(self, value: Planes, wanted: object) -> Planes:
        return self.domain.apply_unary("negative", value) if wanted else value

    def reduce_axis(self, op: str, value: Planes, axis: int) -> Planes:
        """Reduce an axis, which stays with size one."""
        if op in _FOLDS:
            return self.domain.reduce(op, value, (axis,))
        total = self.domain.reduce("add", value, (axis,))
        if op == "average":
            return self.domain.apply_binary("divide", total, self.make_constant(float(value.shape[axis])))
        if op == "subtract":
            first = value.move(lambda array: array.take([0], axis))
            twice = self.domain.apply_binary("add", first, first)
            return self.domain.apply_binary("subtract", twice, total)
        return self.domain.apply_unary(f"reduce {op}", total)

    def accumulate_registers(self, result: Planes, op: str) -> RoleResults:
        """Return what the engine's registers get from a result of whole rows, and what reads them out."""
        if self.form.operand("reduce_regs") is None:
            return {}
        command = str(self.parameter("reduce_cmd", "reset_reduce"))
        if command == "reset":
            total = self.make_constant(np.full((len(self.part.rows), 1), IDENTITIES[op]))
        elif command == "idle":
            total = self.given["reduce_regs"]
        else:
            total = self._add_to_registers(command, self.reduce_axis(op, result, 1), op)
        out = self.negate_if(total, self.parameter("reduce_res_negate"))
        return {"reduce_regs": total, "reduce_res": out}

    def _add_to_registers(self, command: str, part: Planes, op: str) -> Planes:
        if command == "reset_reduce":
            return part
        before = self.operand("reduce_init") if command == "load_reduce" else self.given["reduce_regs"]
        return self.domain.apply_binary(op, before, part)


ComputeFunction = Callable[[OperationCall], RoleResults]
ReachFunction = Callable[[Form, OperandElements], Mapping[str, OperandElements]]
"""Returns the elements that an instruction reads for a part of its result, by role."""


DemandFunction = Callable[[Form, Mapping[str, Bools]], Bools]
"""Returns the elements of `dst` to compute, from those needed of each result."""


@dataclass(frozen=True, slots=True)
class InstructionOperation:
    """How an instruction is evaluated.

    `extent` says how much of the result must be computed for a part of it: only that part, all columns up to
    its last one, or everything. `depth` is the approximate number of operations per element.

    Results besides `dst` have one column, of which each row belongs to the row of `dst`. If not, `demanded`
    says which part of `dst` they need, and `written` where in each result the elements of a part go.
    """

    compute: ComputeFunction
    reach: ReachFunction
    extent: Literal["part", "prefix", "whole"] = "part"
    depth: int = 1
    demanded: DemandFunction | None = None
    written: ReachFunction | None = None


def operands_read(form: Form) -> list[Operand]:
    """The operands whose elements the instruction reads."""
    return [item for item in form.operands if OPERATORS[form.op].effect(form, item.role)[1]]


def operands_written(form: Form) -> list[Operand]:
    """The operands that the instruction writes."""
    return [item for item in form.operands if OPERATORS[form.op].effect(form, item.role)[0]]


def reach_same_elements(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    """The elements at the same positions; in operands with one column, the row's only element."""
    first = np.zeros((1, 1), np.int64)
    return {
        item.role: OperandElements(part.rows, part.columns if item.free > 1 else first)
        for item in operands_read(form)
    }


def reach_same_rows(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    """All elements of the same rows."""
    return {
        item.role: OperandElements(part.rows, np.arange(item.free)[None, :]) for item in operands_read(form)
    }
