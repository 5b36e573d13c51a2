"""Runs and judges kernels: evaluator protocol, jail, judge service, evaluators.

A kernel's Python runs once, in the jail (`sandbox`), and only a program comes out of it. A trusted worker
process (`worker`, `judge`) does everything else from that program. Search decisions, the event log and
budgets live elsewhere. Open `evaluator.py` first, then `judge_service.py`.

Names are imported when they are asked for: jails and workers are parts of this package, and start without the
rest of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remote.bounds import compute_bounds
    from remote.cache import cache_key, code_digest
    from remote.errors import InfrastructureError, NoTimelineError, RemoteError, UnknownEvaluatorError
    from remote.evaluator import BlobReader, EvaluationAnswer, Evaluator
    from remote.registry import create_evaluator, evaluator_names

__all__ = [
    "BlobReader",
    "EvaluationAnswer",
    "Evaluator",
    "InfrastructureError",
    "NoTimelineError",
    "RemoteError",
    "UnknownEvaluatorError",
    "cache_key",
    "code_digest",
    "compute_bounds",
    "create_evaluator",
    "evaluator_names",
]

_MODULES = {
    "bounds": ("compute_bounds",),
    "cache": ("cache_key", "code_digest"),
    "errors": ("InfrastructureError", "NoTimelineError", "RemoteError", "UnknownEvaluatorError"),
    "evaluator": ("BlobReader", "EvaluationAnswer", "Evaluator"),
    "registry": ("create_evaluator", "evaluator_names"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"remote.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
