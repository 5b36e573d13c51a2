"""Predicts many kernels at once from their programs alone, for a search that ranks rewrites before judging.

The kernels of a batch are rewrites of one parent. Predictions are only numbers, and the judge checks the
kernels that matter. So one jail traces half of them, one after the other in one process; if a kernel ends it,
another jail traces the rest. A hostile kernel can mislead the search about those after it, but not the judge.
Predictions are cached by source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydantic import TypeAdapter

from remote.concurrency import gather_to_end
from remote.errors import InfrastructureError
from remote.evaluator import PredictionRequest
from remote.judge.job import LintJob, PredictJob
from remote.judge_service import JudgeService
from remote.tracing import Tracer
from seeds import Problem
from state.model import Digest, ErrorInfo, PredictedLatency, digest_of
from state.step_keeper import STEP_KEEPER

MAX_CACHED_PREDICTIONS = 8192
"""Number of cached predictions, a few hundred bytes each."""
MAX_ENDED_JAILS = 4
"""Kernels of one part that may end their jail, each after at most its limit of time."""
NOT_TRACED = PredictedLatency(
    error=ErrorInfo(code="not_traced", message="tracing the kernel used up its time or ended the tracer")
)
NO_TURN = PredictedLatency(
    error=ErrorInfo(code="no_turn", message=f"{MAX_ENDED_JAILS} kernels before this one ended their tracer")
)

PredictionKey = tuple[Digest, tuple[tuple[str, int], ...], str, Digest, bool]
"""Problem, dimensions, target, source, and whether the canonical form is wanted."""

_READINGS: TypeAdapter[tuple[PredictedLatency, ...]] = TypeAdapter(tuple[PredictedLatency, ...])

PredictPart = Callable[[Sequence[PredictionKey]], Awaitable[Sequence[PredictedLatency]]]
"""Predicts kernels in as many jails as needed, one after the other."""


class KernelPredictor:
    """Predicts kernels with the jail and the workers of a judge service."""

    def __init__(self, judge: JudgeService) -> None:
        self._judge = judge
        self._known: OrderedDict[PredictionKey, PredictedLatency] = OrderedDict()

    async def predict(
        self, request: PredictionRequest, problem: Problem, tracer: Tracer
    ) -> list[PredictedLatency]:
        """Return a prediction for each source, in order.

        Raises:
            InfrastructureError: the jail or the worker failed.
        """
        dims = request.dims or problem.spec.dims(request.size)
        shown = tuple(sorted(dims.items()))
        places = [
            (problem.digest, shown, request.target, digest_of(source.encode()), request.canonical)
            for source in request.sources
        ]
        fresh = dict(zip(places, request.sources, strict=True))
        found = {place: self._known[place] for place in fresh if place in self._known}
        read = await self._read_sources(
            {place: fresh[place] for place in fresh if place not in found}, request
        )
        found |= read
        asked = [place for place, one in read.items() if one.error is None]

        async def predict_part(part: Sequence[PredictionKey]) -> Sequence[PredictedLatency]:
            sources = [fresh[place] for place in part]
            made = await self._trace_and_predict(sources, request, problem, dims=dims, tracer=tracer)
            told = [
                one.model_copy(update={"code": read[place].code})
                for place, one in zip(part, made, strict=True)
            ]
            self._cache_predictions(dict(zip(part, told, strict=True)))  # whatever becomes of other parts
            return told

        made = await self._predict_in_halves(asked, predict_part)
        found |= zip(asked, made, strict=True)
        self._cache_predictions(found)
        return [found[place] for place in places]

    async def _read_sources(
        self, fresh: Mapping[PredictionKey, str], request: PredictionRequest
    ) -> dict[PredictionKey, PredictedLatency]:
        """Read the texts in a worker: many take long, and a thread of this process must not do it.

        CPython 3.11 keeps the depth of the tree it builds in a variable that all threads share, and fails
        (`SystemError: AST constructor recursion depth mismatch`) when another thread parses meanwhile.
        """
        if not fresh:
            return {}
        job = LintJob(sources=tuple(fresh.values()), target=request.target)

        async def read() -> str:
            async with self._judge.slots:
                return _READINGS.dump_json(await self._judge.workers.read_sources(job)).decode()

        keeper = STEP_KEEPER.get()
        asked = f"{request.toolchain}\n{job.model_dump_json()}"
        told = _READINGS.validate_json(await (read() if keeper is None else keeper.recall(asked, read)))
        return dict(zip(fresh, told, strict=True))

    async def _predict_in_halves(
        self, places: Sequence[PredictionKey], predict: PredictPart
    ) -> list[PredictedLatency]:
        """Predict the kernels in two jails, on any machine alike, each as soon as a slot is free."""
        middle = (len(places) + 1) // 2

        async def predicted(part: Sequence[PredictionKey]) -> Sequence[PredictedLatency]:
            if not part:
                return ()
            async with self._judge.slots:
                return await predict(part)

        halves = await gather_to_end([predicted(places[:middle]), predicted(places[middle:])])
        return [one for half in halves for one in half]

    async def _trace_and_predict(
        self,
        sources: Sequence[str],
        request: PredictionRequest,
        problem: Problem,
        *,
        dims: Mapping[str, int],
        tracer: Tracer,
    ) -> Sequence[PredictedLatency]:
        """Predict in as many jails as needed; a kernel that ends or fills one affects no other kernel.

        So the answer for a kernel depends on itself, not on the rest of the request. The exception is a
        kernel whose turn did not come (`NO_TURN`), which is requested again.
        """
        size = request.size if request.dims is None else None
        made: list[PredictedLatency] = []
        ended = 0
        while len(made) < len(sources) and ended < MAX_ENDED_JAILS:
            rest = sources[len(made) :]
            lines = [tracer.request(source, problem, dims, target=request.target) for source in rest]
            result = await self._judge.recall_trace(tracer, b"\n".join(lines), "--batch")
            if result.was_killed:
                raise InfrastructureError("jail_killed", "the jail was killed from outside (out of memory?)")
            if result.was_starved:
                text = f"the tracer was cut off: {result.describe_end()}"
                raise InfrastructureError("jail_starved", text)
            job = PredictJob(
                spec=problem.spec,
                size=size,
                target=request.target,
                count=len(rest),
                sources=tuple(rest) if request.canonical else (),
                constants=self._judge.constants_of(request.target),
            )
            told = _until_memory_limit(await self._judge.workers.predict_latencies(job, result.answer))
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
    """The answers up to the point where memory ran out, which earlier kernels may have used up.

    The first kernel had a jail to itself, so its answer always counts.
    """
    short = (n for n, one in enumerate(told) if n and one.error and one.error.code == "limit_memory")
    return list(told[: next(short, len(told))])
