"""Chooses the size at which look-ahead predicts kernels, and the problem fields for the rewrite engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from agent_core.effects import LookAheadRequest, SimplifyRequest
from agent_core.roles import Predict, RoleError
from state.model import Candidate, ErrorInfo, PredictedLatency

if TYPE_CHECKING:
    from seeds import ProblemSpec

MIN_FULL_SIZE_PREDICTIONS = 400
"""Predictions that must be affordable at the problem's own size; else they are made at a smaller one.

This is more than are made. Many predictions of a small kernel find more than few of a large one, although the
large one's times are closer to the truth.
"""

RunEngineJob = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Runs a job in the rewrite engine's pool; raises RoleError."""

Shorten = Callable[[str], Awaitable[str | None]]
"""Returns a kernel with fewer iterations of its loops, None if it cannot be shortened."""


def problem_job_fields(spec: ProblemSpec, size: str, target: str) -> dict[str, Any]:
    """The problem's fields of a rewrite engine job: arguments at the size, target, what may be rounded."""
    dims = spec.dims(size)
    arrays = [[list(item.resolve_kernel_shape(dims)), item.dtype] for item in spec.inputs]
    arguments = spec.call_arguments(arrays, lambda value: value)
    return {"arguments": arguments, "target": target, "mx": spec.mx, "rel_l2": spec.rel_l2}


@dataclass(frozen=True, slots=True)
class PredictionScale:
    """The dimensions of predictions, and how to convert them to the problem's size.

    If `shorten` is set, kernels are predicted at the problem's dimensions, but with fewer iterations; it
    returns None for a kernel that cannot be shortened. `parent` is the parent's prediction at this scale. At
    the problem's size the parent takes `parent_ms` and has `counted` instructions, as far as the reader can
    count them.
    """

    at: Predict
    dims: dict[str, int] | None
    parent: PredictedLatency
    parent_ms: float
    counted: int
    shorten: Shorten | None = None

    @property
    def is_full_size(self) -> bool:
        """Whether kernels are predicted as they are."""
        return self.dims is None and self.shorten is None

    async def predict(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> Sequence[PredictedLatency]:
        """Predict at the scale; return latencies converted to the problem's size."""
        if self.shorten is None:
            return [self._scale_to_full_size(one) for one in await self.at(sources, dims or self.dims)]
        shortened = await asyncio.gather(*map(self.shorten, sources))
        smaller = [short or source for short, source in zip(shortened, sources, strict=True)]
        answers = await self.at(smaller, dims)
        pairs = zip(shortened, answers, strict=True)
        return [self._scale_to_full_size(answer) if short else answer for short, answer in pairs]

    def _scale_to_full_size(self, one: PredictedLatency) -> PredictedLatency:
        if one.latency_ms is None:
            return one
        assert self.parent.latency_ms is not None
        latency_ms = self.parent_ms * one.latency_ms / self.parent.latency_ms
        return one.model_copy(update={"latency_ms": latency_ms})

    def scale_instructions(self, counted: int) -> int:
        """Convert an instruction count of the reader at full size to the scale's dimensions."""
        if not (counted and self.counted):
            return self.parent.instructions
        return ceil(self.parent.instructions * counted / self.counted)


async def select_scale(
    request: LookAheadRequest | SimplifyRequest,
    parent: Candidate,
    source: str,
    *,
    parent_ms: float,
    predict: Predict,
    spec: ProblemSpec,
    ask: RunEngineJob,
) -> PredictionScale:
    """Return the problem's own size, or a smaller one if its kernels are too large to predict enough of them.

    `source` stands for the parent, and takes `parent_ms` at the problem's size.

    Raises:
        RoleError: not_predicted, if the parent has no latency at either size.
    """
    job = {
        "job": "proxy",
        "source": source,
        "spec": spec.model_dump(mode="json"),
        "dims": spec.dims(request.size),
        "most": request.instructions // MIN_FULL_SIZE_PREDICTIONS,
        "target": request.target,
    }
    found = await ask(job)
    dims, shorten = found["dims"], None
    if found["shortened"]:
        shorten = _make_shortener(
            found["shortened"], ask, problem_job_fields(spec, request.size, request.target)
        )
    smaller = await shorten(source) if shorten else None
    if smaller is None:  # the parent is what others are compared with
        shorten = None
    (there,) = await predict([smaller or source], dims)
    if there.latency_ms is None and (dims or shorten):
        # At a smaller size a kernel may break a rule that it keeps at its own size, where it was judged.
        dims = shorten = None
        (there,) = await predict([source], dims)
    if there.latency_ms is None:
        told = there.error or ErrorInfo(code="not_predicted", message="no reason given")
        text = f"the parent {parent.id} cannot be predicted: {told.code}: {told.message}"
        raise RoleError(ErrorInfo(code="not_predicted", message=text))
    return PredictionScale(predict, dims, there, parent_ms, found["instructions"], shorten)


def _make_shortener(dimensions: object, ask: RunEngineJob, fields: Mapping[str, Any]) -> Shorten:
    """Return what shortens kernels along the dimensions that an engine job found."""

    async def shorten(source: str) -> str | None:
        made = await ask({**fields, "job": "shorten", "source": source, "dimensions": dimensions})
        found: str | None = made["source"]
        return found

    return shorten
