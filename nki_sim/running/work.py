"""Counts the work of running instructions on NumPy, so that limits on it do not depend on a clock.

One unit is an element of an operand of a simple instruction, about a nanosecond on the machines that the
figures here were measured on. They only need to be right within a factor of a few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nki_sim.errors import LimitError
from nki_sim.forms import Form
from nki_sim.program.ir import Program

INSTRUCTION_UNITS = 1 << 14
"""Fixed cost of an instruction, in units."""

_SLOW_OPERATORS = {"dropout": 32, "tensor_tensor_scan": 8}
_SLOW_FUNCTIONS = frozenset({"power", "erf", "gelu", "gelu_dx", "mish", "softplus"})
_SLOW = 8


@dataclass(slots=True)
class WorkAllowance:
    """Units of work that one run, or several together, may still use."""

    left: int

    def take(self, units: int) -> None:
        """Use up some of the allowance.

        Raises:
            LimitError: not enough is left.
        """
        if units > self.left:
            raise LimitError(
                "limit_work", f"running it takes at least {units} units of work, {self.left} are left",
                hint="does every loop end, and is nothing computed over and over?",
            )  # fmt: skip
        self.left -= units


def form_work(form: Form) -> int:
    """Units of work of one instruction."""
    slow = any(value in _SLOW_FUNCTIONS for _, value in form.params if isinstance(value, str))
    weight = _SLOW_OPERATORS.get(form.op, _SLOW if slow else 1)
    return INSTRUCTION_UNITS + weight * sum(item.elements for item in form.operands)


def program_work(program: Program) -> int:
    """Units of work of a program whose loops run once."""
    uses = np.bincount(program.form_ids, minlength=len(program.forms)).tolist()
    return sum(count * form_work(form) for count, form in zip(uses, program.forms, strict=True))
