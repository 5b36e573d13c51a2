"""Sweeps: tests of many cases or examples, of which a quick run tries a few."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import hypothesis
import pytest

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


def scale_examples(full: int) -> int:
    """Return with how many examples to try a property that a full run tries with `full`."""
    scaled = full * hypothesis.settings().max_examples // FULL_EXAMPLES
    return max(scaled, min(full, LEAST_EXAMPLES))
