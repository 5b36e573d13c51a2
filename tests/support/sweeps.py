"""Sweeps: tests of many cases or examples, of which a quick run tries a few."""

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
    """
    is_single = len(names.split(",") if isinstance(names, str) else names) == 1
    known_ids = None if ids is None else [*ids]
    params = []
    for place, case in enumerate(cases):
        name = known_ids[place] if known_ids else None
        is_quick = place < quick if isinstance(quick, int) else name in quick or case in quick
        values = (case,) if is_single else case
        params.append(pytest.param(*values, id=name, marks=() if is_quick else pytest.mark.slow))
    return pytest.mark.parametrize(names, params, indirect=indirect)


def sample_sweep(cases: Iterable[_T], count: int, *, seed: int) -> list[_T]:
    """Return so many of the cases, drawn by a seed, in their order; all of them with `SWEEP=all`."""
    known = [*cases]
    if os.environ.get("SWEEP") == "all" or count >= len(known):
        return known
    places = random.Random(seed).sample(range(len(known)), count)
    return [known[place] for place in sorted(places)]


def scale_examples(full: int) -> int:
    """Return with how many examples to try a property that a full run tries with `full`."""
    scaled = full * hypothesis.settings().max_examples // FULL_EXAMPLES
    return max(scaled, min(full, LEAST_EXAMPLES))
