"""One instruction at work over a domain: the values of its operands, and what all instructions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nki_sim.forms import Form, Operand, ParamValue
from nki_sim.functions import ALU_UNARY
from nki_sim.operators import OPERATORS
from nki_sim.semantics.common import IDENTITIES, number
from remote.judge.identity.domain import Array, Domain, Planes
from targets.nki.judge.identity.places import Where

_FOLDS = frozenset({"add", "multiply", "maximum", "minimum"})
REDUCED = _FOLDS | {"average", "subtract"}
"""Reductions that are more than a function of which nothing is known."""

Results = dict[str, Planes]
"""By role; shapes broadcast to that of the part, or to one column where the role has one."""


@dataclass(frozen=True, eq=False)
class Call:
    """A part of an instruction; `given` are the elements that it reads, by role."""

    domain: Domain
    target: str
    form: Form
    part: Where
    given: Mapping[str, Planes]

    def value(self, name: str, default: ParamValue | None = None) -> ParamValue | None:
        """The parameter of that name."""
        return self.form.param(name, default)

    def number(self, value: float | Array) -> Planes:
        """A constant, or an array of them."""
        return self.domain.constant(np.atleast_2d(np.asarray(value, np.float64)))

    def operand(self, role: str) -> Planes:
        """A tile or the constant in that role; 0 where an operator of one operand has no other."""
        if role in self.given:
            return self.given[role]
        found = self.value(role, 0.0)
        assert found is not None
        return self.number(number(found))

    def apply(self, op: ParamValue | None, left: Planes, right: Planes, reverse: object = False) -> Planes:
        """An arithmetic operator by its name in the instruction."""
        first, second = (right, left) if reverse else (left, right)
        name = str(op)
        return (
            self.domain.unary(name, first) if name in ALU_UNARY else self.domain.binary(name, first, second)
        )

    def negated(self, value: Planes, wanted: object) -> Planes:
        return self.domain.unary("negative", value) if wanted else value

    def reduced(self, op: str, value: Planes, axis: int) -> Planes:
        """A reduction of an axis, which stays with size one."""
        if op in _FOLDS:
            return self.domain.reduce(op, value, (axis,))
        total = self.domain.reduce("add", value, (axis,))
        if op == "average":
            return self.domain.binary("divide", total, self.number(float(value.shape[axis])))
        if op == "subtract":
            first = value.move(lambda array: array.take([0], axis))
            twice = self.domain.binary("add", first, first)
            return self.domain.binary("subtract", twice, total)
        return self.domain.unary(f"reduce {op}", total)

    def accumulated(self, result: Planes, op: str) -> Results:
        """What the engine's registers, and who reads them out, get of a result of whole rows."""
        if self.form.operand("reduce_regs") is None:
            return {}
        command = str(self.value("reduce_cmd", "reset_reduce"))
        if command == "reset":
            total = self.number(np.full((len(self.part.rows), 1), IDENTITIES[op]))
        elif command == "idle":
            total = self.given["reduce_regs"]
        else:
            total = self._added(command, self.reduced(op, result, 1), op)
        out = self.negated(total, self.value("reduce_res_negate"))
        return {"reduce_regs": total, "reduce_res": out}

    def _added(self, command: str, part: Planes, op: str) -> Planes:
        if command == "reset_reduce":
            return part
        before = self.operand("reduce_init") if command == "load_reduce" else self.given["reduce_regs"]
        return self.domain.binary(op, before, part)


Compute = Callable[[Call], Results]
Reach = Callable[[Form, Where], Mapping[str, Where]]
"""The elements that an instruction reads for a part of its result, by role."""


@dataclass(frozen=True, slots=True)
class Operation:
    """How an instruction is evaluated.

    `extent` says how much of the result must be computed for a part of it: just that, all columns up to its
    last one, or all of it. `depth` is about how many operations an element takes.
    """

    compute: Compute
    reach: Reach
    extent: Literal["part", "prefix", "whole"] = "part"
    depth: int = 1


def read(form: Form) -> list[Operand]:
    """The operands whose elements the instruction reads."""
    return [item for item in form.operands if OPERATORS[form.op].effect(form, item.role)[1]]


def written(form: Form) -> list[Operand]:
    """The operands that the instruction writes."""
    return [item for item in form.operands if OPERATORS[form.op].effect(form, item.role)[0]]


def along(form: Form, part: Where) -> dict[str, Where]:
    """The elements at the same places; the only one of the row in operands with one column."""
    first = np.zeros((1, 1), np.int64)
    return {item.role: Where(part.rows, part.columns if item.free > 1 else first) for item in read(form)}


def rows_of(form: Form, part: Where) -> dict[str, Where]:
    """All elements of the same rows."""
    return {item.role: Where(part.rows, np.arange(item.free)[None, :]) for item in read(form)}
