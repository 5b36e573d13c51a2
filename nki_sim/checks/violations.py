"""The `Violation` that every check of a whole program reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nki_sim.errors import RuleError


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: the tensor's name, the limit, the value found, the kernel's line, the usual fix."""

    code: str
    message: str
    tensor: str
    limit: int | str
    value: int | str
    line: int
    hint: str


def raise_violations(found: Sequence[Violation]) -> None:
    """Raise an error for the rules that a program breaks, if there are any.

    Raises:
        RuleError: for the first violation; it holds all of them.
    """
    if found:
        first = found[0]
        error = RuleError(first.code, first.message, first.line, first.hint)
        error.broken = tuple(found)
        raise error
