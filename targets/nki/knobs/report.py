"""A failed check: what is wrong, with which buffer, and which knobs to turn to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from targets.nki.knobs.ir import KernelIR, Knob, Scope

KnobFix = tuple[tuple[Knob, Any], ...]
"""Knobs and their new values; all of them are needed."""


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """One failed check. `buffer` is empty if it is not about one; `at` is a loop, dimension or memory."""

    check: str
    buffer: str
    at: str
    detail: str
    fix: KnobFix

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the same failure in two reports."""
        return self.check, self.buffer, self.at

    @property
    def hint(self) -> str:
        """The fix in words."""
        if not self.fix:
            return "no knob mends it: the workload is too large for the target"
        return "set " + ", ".join(describe_turn(knob, value) for knob, value in self.fix)

    def __str__(self) -> str:
        return f"{self.check}: {self.detail}; {self.hint}"


def follow_hint(ir: KernelIR, failure: CheckFailure) -> KernelIR:
    """Return the IR after following a failure's hint."""
    for knob, value in failure.fix:
        ir = ir.with_knob(knob, value)
    return ir


def describe_turn(knob: Knob, value: Any) -> str:
    """Describe a knob and its new value in words."""
    return f"{_knob_name(knob)} to {_value_name(value)}"


def _knob_name(knob: Knob) -> str:
    return knob[0] + "".join(f"[{part}]" for part in knob[1:])


def _value_name(value: object) -> str:
    match value:
        case Scope():
            return value.name
        case None:
            return "nothing"
        case tuple():
            return " ".join(str(part) for part in value)
    return str(value)
