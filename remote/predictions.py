"""Predictions of many kernels at once, by their programs alone: what a search looks at before any is judged.

The kernels of a batch are rewrites of one parent, and nothing comes of them but numbers that the judge checks
for those that matter: so one jail traces them, one after the other in one process, and where a kernel ends it
another jail traces those after it. A kernel that is hostile to those after it can mislead the search, not the
judge. What was predicted is remembered by source.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from remote.concurrency import gather_or_cancel
from remote.errors import InfrastructureError
from remote.evaluator import PredictionRequest
from remote.judge.job import LintJob, PredictJob
from remote.pool import WorkerPool
from remote.sandbox import JailResult
from remote.tracing import Tracer
from seeds import Problem
from state.model import Digest, ErrorInfo, PredictedLatency, digest_of

MAX_CACHED_PREDICTIONS = 8192
"""Predictions kept, of some hundred bytes each."""
MIN_SPLIT_KERNELS = 8
"""Kernels from which on the two halves of a request are predicted side by side, on any machine alike."""
MAX_ENDED_JAILS = 4
"""Kernels of one part that may end their jail, each after up to its limit of time."""
NOT_TRACED = PredictedLatency(
    error=ErrorInfo(code="not_traced", message="tracing the kernel used up its time or ended the tracer")
)
NO_TURN = PredictedLatency(
    error=ErrorInfo(code="no_turn", message=f"{MAX_ENDED_JAILS} kernels before this one ended their tracer")
)

PredictionKey = tuple[Digest, tuple[tuple[str, int], ...], str, Digest]
"""Problem, dimensions, target and source."""

PredictSources = Callable[[Sequence[str]], Awaitable[Sequence[PredictedLatency]]]
"""Predicts kernels in as many jails as it takes, one after the other."""


class TracerRunner(Protocol):
    def __call__(self, request: bytes, *flags: str) -> Awaitable[JailResult]:
        """Run the tracer in a jail, with flags of its command line."""


class KernelPredictor:
    """Predicts kernels by the workers of an evaluator."""

    def __init__(self, workers: WorkerPool, slots: asyncio.Semaphore) -> None:
        """`slots` bound how many jails and workers are at work at a time."""
        self._workers = workers
        self._slots = slots
        self._known: OrderedDict[PredictionKey, PredictedLatency] = OrderedDict()

    async def predict(
        self, request: PredictionRequest, problem: Problem, tracer: Tracer, jailed: TracerRunner
    ) -> list[PredictedLatency]:
        """Return a prediction for each source, in order.

        Raises:
            InfrastructureError: the jail or the worker failed.
        """
        dims = request.dims or problem.spec.dims(request.size)
        places = [
            (problem.digest, tuple(sorted(dims.items())), request.target, digest_of(source.encode()))
            for source in request.sources
        ]
        fresh = dict(zip(places, request.sources, strict=True))
        found = {place: self._known[place] for place in fresh if place in self._known}
        read = await self._read_sources(
            {place: fresh[place] for place in fresh if place not in found}, request.target
        )
        found |= read
        asked = [place for place, one in read.items() if one.error is None]
        made = await self._predict_in_halves(
            [fresh[place] for place in asked],
            lambda part: self._trace_and_predict(part, request, problem, dims, tracer, jailed),
        )
        for place, one in zip(asked, made, strict=True):
            found[place] = one.model_copy(update={"code": read[place].code})
        self._cache_predictions(found)
        return [found[place] for place in places]

    async def _read_sources(
        self, fresh: Mapping[PredictionKey, str], target: str
    ) -> dict[PredictionKey, PredictedLatency]:
        """Read the texts in a worker: of many it takes long, and a thread of this process must not do it.

        CPython 3.11 counts the depth of a tree that it builds once for all threads, and fails
        (`SystemError: AST constructor recursion depth mismatch`) when another parses meanwhile.
        """
        if not fresh:
            return {}
        async with self._slots:
            told = await self._workers.read_sources(LintJob(sources=tuple(fresh.values()), target=target))
        return dict(zip(fresh, told, strict=True))

    async def _predict_in_halves(
        self, sources: Sequence[str], traced: PredictSources
    ) -> list[PredictedLatency]:
        """Predict many in two jails, each when there is a slot for it."""
        middle = len(sources) // 2 if len(sources) >= MIN_SPLIT_KERNELS else len(sources)

        async def predicted(part: Sequence[str]) -> Sequence[PredictedLatency]:
            if not part:
                return ()
            async with self._slots:
                return await traced(part)

        halves = await gather_or_cancel([predicted(sources[:middle]), predicted(sources[middle:])])
        return [one for half in halves for one in half]

    async def _trace_and_predict(  # noqa: PLR0917
        self,
        sources: Sequence[str],
        request: PredictionRequest,
        problem: Problem,
        dims: Mapping[str, int],
        tracer: Tracer,
        jailed: TracerRunner,
    ) -> Sequence[PredictedLatency]:
        """Predict in as many jails as it takes: one that a kernel ends, or fills, is not held against others.

        So what is said of a kernel depends on itself, not on which others were asked for with it, but for one
        whose turn did not come (`NO_TURN`), which is asked for again.
        """
        size = request.size if request.dims is None else None
        made: list[PredictedLatency] = []
        ended = 0
        while len(made) < len(sources) and ended < MAX_ENDED_JAILS:
            rest = sources[len(made) :]
            lines = [tracer.request(source, problem, dims, request.target) for source in rest]
            result = await jailed(b"\n".join(lines), "--batch")
            if result.was_killed:
                raise InfrastructureError("jail_killed", "the jail was killed from outside (out of memory?)")
            job = PredictJob(spec=problem.spec, size=size, target=request.target, count=len(rest))
            told = _until_memory_limit(await self._workers.predict_latencies(job, result.answer))
            ended += not told
            made += told or [NOT_TRACED]
        return [*made, *[NO_TURN] * (len(sources) - len(made))]

    def _cache_predictions(self, found: dict[PredictionKey, PredictedLatency]) -> None:
        told = {place: one for place, one in found.items() if one.error != NO_TURN.error}
        self._known |= told
        for place in told:
            self._known.move_to_end(place)
        while len(self._known) > MAX_CACHED_PREDICTIONS:
            self._known.popitem(last=False)


def _until_memory_limit(told: Sequence[PredictedLatency]) -> list[PredictedLatency]:
    """The answers up to where memory ran out that others may have used: the first had a jail to itself."""
    short = (n for n, one in enumerate(told) if n and one.error and one.error.code == "limit_memory")
    return list(told[: next(short, len(told))])
