"""Evaluates one kernel, as a run would ask for it."""

from __future__ import annotations

from collections.abc import Mapping

from remote.evaluator import EvaluationAnswer, Evaluator
from seeds import Problem
from state.model import PERSON, EvaluationRequest, Level, digest_of


async def evaluate_kernel(
    evaluator: Evaluator,
    source: str,
    problem: Problem,
    *,
    target: str,
    base_ms: float | None = None,
    base: str | None = None,
    toolchain: str = "",
) -> EvaluationAnswer:
    """Return what an evaluator answers on a kernel, and close the evaluator."""
    sources = [text.encode() for text in (source, base) if text is not None]
    blobs = {digest_of(data): data for data in (*problem.files.values(), *sources)}
    request = EvaluationRequest(
        candidate="r1.b0.p0.k0.f0", author=PERSON, source=digest_of(source.encode()),
        problem=problem.make_ref(), size="reduced",
        target=target, toolchain=toolchain, level=Level.SLICES, base_ms=base_ms,
        base=None if base is None else digest_of(base.encode()),
    )  # fmt: skip
    try:
        return await evaluator.evaluate(request, _Blobs(blobs))
    finally:
        await evaluator.aclose()


class _Blobs:
    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = blobs

    def get_blob(self, digest: str, /) -> bytes:
        return self._blobs[digest]
