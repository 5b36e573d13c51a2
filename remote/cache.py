"""Decides when a cached evaluation answers a new request.

Evaluations of the same code under the same judge differ in how much of the outputs they compare. A rejection
answers every level: what is wrong is wrong. A pass answers requests that compare as much or less.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from state.model import Benchmark, Digest, Evaluation, EvaluationRequest, Level, canonical_json, digest_of

__all__ = ["cache_key", "code_digest", "find_cached", "required_level"]

SUSPICIOUS_SPEEDUP = 3.0
"""A kernel that is faster than its parent by more than this factor is judged at the level `whole`."""


@lru_cache(maxsize=64)
def code_digest(source: bytes, target: str) -> Digest:
    """Return the digest that identifies duplicates of a kernel for a target.

    It is remembered: whoever looks an evaluation up and whoever makes it need the same one.
    """
    from targets.registry import load_target  # not at the top: jails that run references have no targets

    return load_target(target).language.code_digest(source)


def cache_key(request: EvaluationRequest, *, code: Digest, evaluator: str, toolchain: str) -> Digest:
    """Return the digest of everything an answer depends on, except how much is compared.

    `code` is the kernel's `code_digest`. `toolchain` is that of the evaluator that answers, not the one that
    was current when the request was written.
    """
    parts = (code, request.problem.digest, request.size, request.target, evaluator, toolchain)
    return digest_of(canonical_json(parts))


def required_level(request: EvaluationRequest, benchmark: Benchmark | None) -> Level:
    """Return the level that a kernel of this latency must pass to answer `request`."""
    if (
        benchmark is None
        or request.base_ms is None
        or request.base_ms <= SUSPICIOUS_SPEEDUP * benchmark.latency_ms
    ):
        return request.level
    return Level.WHOLE


def find_cached(known: Iterable[Evaluation], request: EvaluationRequest) -> tuple[int, Evaluation] | None:
    """Return the index in `known` of an answer to `request`, and the answer; None when there is none.

    `known` holds evaluations under the request's cache key. A cached pass gets the level that was needed, as
    without a cache: earlier comparisons change what a run costs, not how it goes.
    """
    numbered = sorted(enumerate(known), key=lambda item: item[1].is_correct)
    for place, one in numbered:
        wanted = required_level(request, one.benchmark)
        if not one.is_correct:
            return place, one
        if one.level.covers(wanted):
            return place, one.model_copy(update={"level": wanted})
    return None
