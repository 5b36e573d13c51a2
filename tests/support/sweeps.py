"""Sweeps: tests of many cases or examples, of which a quick run tries a few.

A full run tries all of them, or a sample where all take minutes: `SWEEP=all` then runs the rest.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import hypothesis
import pytest

_T = TypeVar("_T")
LEAST_EXAMPLES = 3

QUICK_PROBLEMS = ("silu", "rmsnorm_matmul", "bmm_softmax")
"""The built-in problems that a quick run tries where a full run tries all."""

FULL_EXAMPLES = 100
"""Hypothesis's own number of examples, which full profiles leave as it is."""


def parametrize_sweep(
    names: str | tuple[str, ...],
    cases: Iterable[Any],
    *,
    quick: int | Collection[Any] = 1,
    ids: Iterable[str] | None = None,
    indirect: bool = False,
) -> pytest.MarkDecorator:
    """Parametrize a test as `pytest.mark.parametrize` does, with all cases slow but a few.

    `quick` says which run in a quick run too: how many of the first, or their ids, or the cases themselves.
    A full run tries all cases; see `sample_sweep` and `is_exhaustive` where that takes minutes.
    """
    is_single = len(names.split(",") if isinstance(names, str) else names) == 1
    known_ids = None if ids is None else [*ids]
    known = [*cases]
    wanted = [] if isinstance(quick, int) else quick
    if unknown := [one for one in wanted if one not in known and one not in (known_ids or ())]:
        raise ValueError(f"quick cases that are no cases of the sweep: {unknown}")
    params = []
    for place, case in enumerate(known):
        name = known_ids[place] if known_ids else None
        is_quick = place < quick if isinstance(quick, int) else name in quick or case in quick
        values = (case,) if is_single else case
        params.append(pytest.param(*values, id=name, marks=() if is_quick else pytest.mark.slow))
    return pytest.mark.parametrize(names, params, indirect=indirect)


def is_exhaustive() -> bool:
    """Return whether even the cases are wanted that a full run leaves out."""
    return os.environ.get("SWEEP") == "all"


def sample_sweep(cases: Iterable[_T], count: int, *, seed: int) -> list[_T]:
    """Return so many of the cases, drawn by a seed, in their order; all of them with `SWEEP=all`."""
    known = [*cases]
    if is_exhaustive() or count >= len(known):
        return known
    places = random.Random(seed).sample(range(len(known)), count)
    return [known[place] for place in sorted(places)]


def scale_examples(full: int) -> int:
    """Return with how many examples to try a property that a full run tries with `full`."""
    scaled = full * hypothesis.settings().max_examples // FULL_EXAMPLES
    return max(scaled, min(full, LEAST_EXAMPLES))
