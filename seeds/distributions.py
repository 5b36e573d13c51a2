"""The distributions that a problem's inputs may have, as `problem.toml` names them.

Needs no NumPy, because specifications are read where it is not loaded; `inputs` draws from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

OFFSET = 100.0
"""How far from zero `shifted` numbers lie, in units of their spread."""

LEAST_POSITIVE = 0.0625
"""No `positive` number is smaller, before the input's scale."""

_LIMIT = 2**31
_INTEGERS = re.compile(r"integers:(-?\d+):(-?\d+)")
_SPREAD = 4.0  # hardly any normal number is further from its mean

RANGES: Mapping[str, tuple[float, float]] = {
    "normal": (-_SPREAD, _SPREAD),
    "abs_normal": (0.0, _SPREAD),
    "positive": (LEAST_POSITIVE, _SPREAD),
    "zero_one": (0.0, 1.0),
    "shifted": (OFFSET - _SPREAD, OFFSET + _SPREAD),
}
"""The distributions without parameters, and between which numbers hardly any draw is not."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution with scale one: its kind, and between which numbers its draws lie."""

    kind: str
    low: float
    high: float


def parse_distribution(text: str) -> Distribution:
    """Return the distribution that a text names.

    Raises:
        ValueError: it names none; the message lists them.
    """
    if text in RANGES:
        return Distribution(text, *RANGES[text])
    found = _INTEGERS.fullmatch(text)
    if found is None:
        names = ", ".join((*RANGES, "integers:FIRST:END"))
        raise ValueError(f"there is no distribution {text!r}; there are {names}")
    low, end = int(found[1]), int(found[2])
    if not -_LIMIT <= low < end <= _LIMIT:
        raise ValueError(f"{text!r} allows no number: FIRST must be below END, and both within 32 bits")
    return Distribution("integers", float(low), float(end - 1))
