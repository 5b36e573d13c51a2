"""What every check of a whole program reports."""

from __future__ import annotations

from dataclasses import dataclass


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
