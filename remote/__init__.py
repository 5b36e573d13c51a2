"""Runs and judges kernels: evaluator protocol, jail, judge service, evaluators.

A kernel's Python runs once, in the jail (`sandbox`), and only a program comes out of it. A trusted worker
process (`worker`, `judge`) does everything else from that program. Search decisions, the event log and
budgets live elsewhere. Open `evaluator.py` first, then `judge_service.py`.
"""

from __future__ import annotations

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
