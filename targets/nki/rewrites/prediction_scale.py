"""Chooses the size at which look-ahead predicts kernels, and the problem fields for the rewrite engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from agent_core.effects import LookAheadRequest, SimplifyRequest
from agent_core.roles import Predict, RoleError
from state.model import Candidate, ErrorInfo, PredictedLatency

if TYPE_CHECKING:
    from seeds import ProblemSpec

MIN_FULL_SIZE_PREDICTIONS = 800
"""Predictions that must be affordable at the problem's own size; else they are made at a smaller one.

This is more than are made. Many predictions of a small kernel find more than few of a large one, although the
large one's times are closer to the truth.
"""

RunEngineJob = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Runs a job in the rewrite engine's pool; raises RoleError."""

Dimensions = tuple[tuple[int, int, int], ...]
"""Dimensions of arguments along which a kernel is shortened: argument, axis, and how many times."""


def problem_job_fields(spec: ProblemSpec, size: str, target: str) -> dict[str, Any]:
    """The problem's fields of a rewrite engine job: arguments at the size, target, what may be rounded."""
    dims = spec.dims(size)
    arrays = [[list(item.resolve_kernel_shape(dims)), item.dtype] for item in spec.inputs]
    arguments = spec.call_arguments(arrays, lambda value: value)
    return {"arguments": arguments, "target": target, "mx": spec.mx, "rel_l2": spec.rel_l2}


@dataclass(frozen=True, slots=True)
class _ShortKernel:
    """A kernel with fewer iterations along dimensions; `code` is that of the kernel with all of them."""

    source: str
    dimensions: Dimensions
    code: str


@dataclass(frozen=True, slots=True)
class LoopShortener:
    """Predicts kernels with fewer iterations of their loops, relative to the parent with as few.

    `dims` are the problem's dimensions. They are said with every prediction, because a kernel with fewer
    iterations does less than the problem demands, which no prediction at a problem's size may do.
    """

    at: Predict
    ask: RunEngineJob
    job: Mapping[str, Any]
    dims: Mapping[str, int]
    parent: str
    parents: dict[Dimensions, PredictedLatency | None] = field(default_factory=dict)
    """The parent's predictions, None if it cannot be shortened in that way."""

    async def shorten(self, source: str, dimensions: Dimensions | None = None) -> _ShortKernel | None:
        """A kernel with fewer iterations, as far as can be, along these dimensions or those of the job."""
        job = self.job if dimensions is None else {**self.job, "dimensions": dimensions}
        answer = await self.ask({**job, "job": "shorten", "source": source})
        made = answer["shortened"]
        if made is None:
            return None
        told = tuple((one["argument"], one["axis"], one["divisor"]) for one in made["dimensions"])
        return _ShortKernel(made["source"], told, answer["code"])

    async def predict_parent(self, dimensions: Dimensions) -> PredictedLatency | None:
        """The parent's prediction with fewer iterations along just these dimensions; None if it has none."""
        if dimensions not in self.parents:
            made = await self.shorten(self.parent, dimensions)
            self.parents[dimensions] = None
            if made is not None and made.dimensions == dimensions:
                (found,) = await self.at([made.source], dict(self.dims))
                self.parents[dimensions] = found if found.latency_ms is not None else None
        return self.parents[dimensions]

    async def predict(self, sources: Sequence[str], parent_ms: float) -> list[PredictedLatency]:
        """Latencies of kernels with all iterations, if the parent takes `parent_ms` with all of them.

        A kernel that cannot be shortened, or that breaks a rule when it is, is predicted as it is.
        """
        made = await asyncio.gather(*map(self.shorten, sources))
        for dimensions in sorted({one.dimensions for one in made if one is not None}):
            await self.predict_parent(dimensions)
        short = {n: one for n, one in enumerate(made) if one and self.parents[one.dimensions]}
        answers = await self.at([one.source for one in short.values()], dict(self.dims)) if short else []
        told: dict[int, PredictedLatency] = {}
        for (number, one), answer in zip(short.items(), answers, strict=True):
            parent = self.parents[one.dimensions]
            if parent is not None and answer.latency_ms is not None:
                scaled = _scale_latency(answer, parent_ms, parent)
                told[number] = scaled.model_copy(update={"code": one.code})
        whole = [number for number in range(len(sources)) if number not in told]
        others = await self.at([sources[number] for number in whole], None) if whole else []
        told |= zip(whole, others, strict=True)
        return [told[number] for number in range(len(sources))]


def _scale_latency(one: PredictedLatency, parent_ms: float, parent: PredictedLatency) -> PredictedLatency:
    """A prediction at another scale, where the parent's is `parent`, as one at the problem's size."""
    if one.latency_ms is None:
        return one
    assert parent.latency_ms is not None
    return one.model_copy(update={"latency_ms": parent_ms * one.latency_ms / parent.latency_ms})


@dataclass(frozen=True, slots=True)
class PredictionScale:
    """The dimensions of predictions, and how to convert them to the problem's size.

    If `shortener` is set, kernels are predicted at the problem's dimensions, but with fewer iterations.
    `parent` is the parent's prediction at this scale. At the problem's size the parent takes `parent_ms` and
    has `counted` instructions, as far as the reader can count them.
    """

    at: Predict
    dims: dict[str, int] | None
    parent: PredictedLatency
    parent_ms: float
    counted: int
    shortener: LoopShortener | None = None

    @property
    def is_full_size(self) -> bool:
        """Whether kernels are predicted as they are."""
        return self.dims is None and self.shortener is None

    async def predict(self, sources: Sequence[str]) -> Sequence[PredictedLatency]:
        """Predict at the scale; return latencies converted to the problem's size."""
        if self.shortener is not None:
            return await self.shortener.predict(sources, self.parent_ms)
        found = await self.at(sources, self.dims)
        return [_scale_latency(one, self.parent_ms, self.parent) for one in found]

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
    dims, shortener = found["dims"], None
    if found["shortened"]:
        fields = problem_job_fields(spec, request.size, request.target) | {"dimensions": found["shortened"]}
        shortener = LoopShortener(predict, ask, fields, spec.dims(request.size), source)
        there = await shortener.predict_parent(tuple(map(tuple, found["shortened"])))
        if there is not None:
            return PredictionScale(predict, None, there, parent_ms, found["instructions"], shortener)
    (there,) = await predict([source], dims)
    if there.latency_ms is None and dims:
        # At a smaller size a kernel may break a rule that it keeps at its own size, where it was judged.
        dims = None
        (there,) = await predict([source], dims)
    if there.latency_ms is None:
        told = there.error or ErrorInfo(code="not_predicted", message="no reason given")
        text = f"the parent {parent.id} cannot be predicted: {told.code}: {told.message}"
        raise RoleError(ErrorInfo(code="not_predicted", message=text))
    return PredictionScale(predict, dims, there, parent_ms, found["instructions"])
