"""When two evaluations are the same one, and when the answer to one of them serves the other.

Evaluations of the same code under the same judge differ in how much of the outputs they compare. A rejection
serves all of them: what is wrong is wrong. A pass serves those that compare as much, or less.
"""

from __future__ import annotations

from collections.abc import Iterable

from state.model import Benchmark, Digest, Evaluation, EvaluationRequest, Level, canonical_json, digest_of

__all__ = ["cache_key", "code_digest", "find_cached", "required_level"]

SUSPICIOUS_SPEEDUP = 3.0
"""A kernel more times faster than the one it was made from is judged at the level `whole`."""


def code_digest(source: bytes, target: str) -> Digest:
    """Return the digest by which duplicates of a kernel for a target are known."""
    from targets.registry import load_target  # not at the top: jails that run references have no targets

    return load_target(target).language.code_digest(source)


def cache_key(request: EvaluationRequest, *, code: Digest, evaluator: str, toolchain: str) -> Digest:
    """Return the digest of all that an answer depends on, but for how much is compared.

    `code` is the kernel's `code_digest`; `toolchain` that of the evaluator which answers, since it is the
    one that decides, whatever was current when the request was written.
    """
    parts = (code, request.problem.digest, request.size, request.target, evaluator, toolchain)
    return digest_of(canonical_json(parts))


def required_level(request: EvaluationRequest, benchmark: Benchmark | None) -> Level:
    """Return the level that a pass of a kernel with this latency must have to answer `request`."""
    if (
        benchmark is None
        or request.base_ms is None
        or request.base_ms <= SUSPICIOUS_SPEEDUP * benchmark.latency_ms
    ):
        return request.level
    return Level.WHOLE


def find_cached(known: Iterable[Evaluation], request: EvaluationRequest) -> tuple[int, Evaluation] | None:
    """Return the place in `known` of an answer to `request`, and the answer; None when there is none.

    `known` are evaluations under the request's cache key. A pass is given the level that was needed, as it
    would have had without a cache: what was compared before changes what a run costs, not how it goes.
    """
    numbered = sorted(enumerate(known), key=lambda item: item[1].is_correct)
    for place, one in numbered:
        wanted = required_level(request, one.benchmark)
        if not one.is_correct:
            return place, one
        if one.level.covers(wanted):
            return place, one.model_copy(update={"level": wanted})
    return None
