"""How much work it is to run instructions on NumPy, counted, so that limits on it depend on no clock.

One unit is an element of an operand of a simple instruction, around a nanosecond on the machines that the
figures here were measured on; they need only be right within a factor of a few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nki_sim.errors import LimitError
from nki_sim.forms import Form
from nki_sim.program.ir import Program

INSTRUCTION_UNITS = 1 << 14
"""What an instruction costs before its first element."""

_SLOW_OPERATORS = {"dropout": 32, "tensor_tensor_scan": 8}
_SLOW_FUNCTIONS = frozenset({"power", "erf", "gelu", "gelu_dx", "mish", "softplus"})
_SLOW = 8


@dataclass(slots=True)
class WorkAllowance:
    """Units of work that one run, or several together, may still take."""

    left: int

    def take(self, units: int) -> None:
        """Take some of it.

        Raises:
            LimitError: there is not that much left.
        """
        if units > self.left:
            raise LimitError(
                "limit_work", f"running it takes at least {units} units of work, {self.left} are left",
                hint="does every loop end, and is nothing computed over and over?",
            )  # fmt: skip
        self.left -= units


def form_work(form: Form) -> int:
    """Units that one instruction takes."""
    slow = any(value in _SLOW_FUNCTIONS for _, value in form.params if isinstance(value, str))
    weight = _SLOW_OPERATORS.get(form.op, _SLOW if slow else 1)
    return INSTRUCTION_UNITS + weight * sum(item.elements for item in form.operands)


def program_work(program: Program) -> int:
    """Units that a program takes whose loops run once."""
    uses = np.bincount(program.form_ids, minlength=len(program.forms)).tolist()
    return sum(count * form_work(form) for count, form in zip(uses, program.forms, strict=True))
