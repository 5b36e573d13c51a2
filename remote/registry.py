"""Evaluators by name, as a configuration names them. Adding a kind is one entry in the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote.errors import UnknownEvaluatorError
from remote.evaluator import Evaluator


def _sim(home: Path, **options: Any) -> Evaluator:
    from remote.local import LocalEvaluator

    return LocalEvaluator(home=home, **options)


_EVALUATORS: dict[str, Callable[..., Evaluator]] = {"sim": _sim}


def evaluators() -> tuple[str, ...]:
    """Return the names that `create` knows, sorted."""
    return tuple(sorted(_EVALUATORS))


def create(name: str, *, home: Path, **options: Any) -> Evaluator:
    """Return an evaluator of the kind `name`; `options` are those of its class.

    Raises:
        UnknownEvaluatorError: no such kind.
    """
    if name not in _EVALUATORS:
        raise UnknownEvaluatorError(name, _EVALUATORS)
    return _EVALUATORS[name](home, **options)
