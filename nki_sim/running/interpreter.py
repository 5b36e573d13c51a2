"""Runs recorded instructions one after another; loops repeat as often as their registers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nki_sim.errors import KernelError, RuleError
from nki_sim.running.machine import Machine, PreparedForm
from nki_sim.running.work import WorkAllowance


@dataclass(slots=True, eq=False)
class InstructionColumns:
    """Instructions: form, line and first cell of each (and one past the last). Cells: tensor and offset."""

    forms: Sequence[int]
    lines: Sequence[int]
    first: Sequence[int]
    tensors: Sequence[int]
    offsets: Sequence[int]


class ProgramInterpreter:
    """Executes stretches of a program on a machine, with one work allowance for all of them."""

    def __init__(self, machine: Machine, actions: Sequence[PreparedForm], allowance: WorkAllowance) -> None:
        self._machine = machine
        self._actions = actions
        self._allowance = allowance

    def run(self, columns: InstructionColumns, start: int, end: int, partners: Mapping[int, int]) -> None:
        """Execute instructions start..end (exclusive); `partners` matches the loop markers among them.

        Raises:
            KernelError: data breaks a rule; the line is the instruction's.
            LimitError: the allowance is used up.
        """
        number = start
        while number < end:
            act = self._actions[columns.forms[number]]
            cells = slice(columns.first[number], columns.first[number + 1])
            tensors = columns.tensors[cells]
            try:
                self._allowance.take(act.work)
                self._machine.execute(act, tensors, columns.offsets[cells], act.views, columns.lines[number])
            except KernelError as error:
                raise locate_error(error, columns.lines[number]) from error
            if number in partners:
                goes_on = self._continues_loop(tensors, columns.lines[number])
                at_end = partners[number] < number
                number = partners[number] if goes_on == at_end else number
            number += 1

    def _continues_loop(self, conditions: Sequence[int], line: int) -> bool:
        """Whether a loop goes on, by the condition registers of the cores that run it."""
        first, *others = [bool(self._machine.tensor_array(register)[0]) for register in conditions]
        if any(other != first for other in others):
            raise RuleError(
                "core_sync_mismatch", "one core leaves a loop in which it meets the other one, which waits "
                "for ever", line, "give the loop as many rounds on both cores",
            )  # fmt: skip
        return first


def locate_error(error: KernelError, line: int) -> KernelError:
    """Return the error with the line of the instruction that raised it."""
    return type(error)(error.code, error.message, error.line or line, error.hint)
