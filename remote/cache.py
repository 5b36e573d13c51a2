"""When two evaluations are the same one: the key under which an answer may be used again."""

from __future__ import annotations

from remote.judge.normalise import code_digest
from state.model import Digest, EvaluationRequest, canonical_json, digest_of

__all__ = ["cache_key", "code_digest"]


def cache_key(request: EvaluationRequest, *, code: Digest, evaluator: str, toolchain: str) -> Digest:
    """Return the digest of all that an answer depends on.

    `code` is the kernel's `code_digest`; `toolchain` that of the evaluator which answers, since it is the
    one that decides, whatever was current when the request was written.
    """
    # What the gain is measured from bears on the answer only where it can raise the level.
    depth = (request.level, None if request.level == "whole" else request.base_ms)
    parts = (code, request.problem.digest, request.size, request.target, evaluator, toolchain, *depth)
    return digest_of(canonical_json(parts))
