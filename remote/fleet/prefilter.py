"""Uses the simulator as a pre-filter: only the better half of kernels goes to hosts.

The simulator looks at each kernel first. A kernel that it finds wrong goes nowhere. For the others it
predicts a latency, and holds back a kernel that is slower than the median of recent ones. Predictions are
corrected first by what earlier measurements of hosts, of this run and of those before it, say about them
(`residual_model`). A kernel that the
simulator cannot run goes to the hosts, because that says nothing about the device. Kernels that a run depends
on are never held back: the starting kernel, and kernels that are compared more closely. To check the filter,
one in `AUDIT_INTERVAL` kernels that would be held back is measured anyway; which ones follows from their
code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from remote.evaluator import BlobReader, EvaluationAnswer, Evaluator, PredictionRequest
from remote.fleet.residual_model import MAX_PAIRS, MeasuredPair, ResidualModel, fit_residuals
from state.errors import StateError
from state.events import EvaluationCompleted
from state.model import (
    INITIAL_KEY,
    PREFILTER_STAGE,
    PREFILTERED,
    Digest,
    ErrorInfo,
    Evaluation,
    EvaluationRequest,
    Level,
    PredictedLatency,
    Verdict,
)

WINDOW = 32
"""Number of recent kernels of the same problem, size and target that a kernel is compared with."""

MIN_PREDICTIONS = 4
"""Kernels that are let through before the comparison starts."""

AUDIT_INTERVAL = 8

LOOK_BACK = 4096
"""Verdicts of the log, the newest ones, in which measurements are looked for."""

FINAL_VERDICTS = frozenset({Verdict.INCORRECT, Verdict.LINT_ERROR})
"""Simulator verdicts that a host would not change."""


BoundPrediction = tuple[str, float]
"""The kind of a kernel (its target and what bounds it), and the predicted latency in ms."""


def read_measured_pairs(home: Path) -> list[MeasuredPair]:
    """Return the measurements of earlier runs that have a prediction, oldest first."""
    from state.reader import LogReader

    try:
        with LogReader.open(home) as reader:
            found = reader.read(types=("EvaluationCompleted",), limit=LOOK_BACK, newest=True)
    except StateError:
        return []  # no log yet, or one that its owner repairs: nothing is known
    pairs = []
    for item in found:
        event = item.event
        if not isinstance(event, EvaluationCompleted) or event.predicted_ms is None:
            continue
        timed = event.evaluation.benchmark
        if timed is not None and not timed.predicted:
            kind = _kernel_kind(event.evaluation.target, event.predicted_bound)
            pairs.append(MeasuredPair(kind, event.predicted_ms, timed.latency_ms))
    return pairs


def _kernel_kind(target: str, bound: str | None) -> str:
    return f"{target} {bound or 'unknown'}"


@dataclass(slots=True)
class PredictionWindow:
    """The recent predictions for one problem, size and target, by code digest."""

    seen: deque[tuple[Digest, BoundPrediction]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, code: Digest, found: BoundPrediction) -> None:
        if all(code != known for known, _ in self.seen):
            self.seen.append((code, found))

    def median_ms(self, model: ResidualModel) -> float | None:
        """Return the median of the corrected predictions; None while there are too few."""
        if len(self.seen) <= MIN_PREDICTIONS:
            return None
        return median(model.correct(*found) for _, found in self.seen)


class PrefilteredEvaluator:
    """Judges with `first`, a simulator; `then` judges what passes and has the last word."""

    def __init__(self, first: Evaluator, then: Evaluator, *, measured: Sequence[MeasuredPair] = ()) -> None:
        """`measured` are measurements of hosts and the predictions of the same kernels, oldest first."""
        self._first = first
        self._then = then
        self._measured = deque(measured, maxlen=MAX_PAIRS)
        self._model = fit_residuals(self._measured)
        self._shelves: dict[tuple[Digest, str, str], PredictionWindow] = {}

    @property
    def name(self) -> str:
        """The kind; not that of `then`, because a verdict may be the simulator's."""
        return f"{self._then.name} after {self._first.name}"

    @property
    def slots(self) -> int:
        """Number of evaluations at a time where kernels are measured."""
        return int(getattr(self._then, "slots", 0))

    def toolchain(self) -> str:
        """Return what compiles and times where kernels are measured."""
        return self._then.toolchain()

    async def prepare(self) -> None:
        """Prepare both evaluators."""
        await self._first.prepare()
        await self._then.prepare()

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate with the simulator, then on a host if it passes the filter.

        Raises:
            InfrastructureError: no verdict could be reached.
        """
        if request.level is not Level.SLICES or request.candidate == INITIAL_KEY.candidate_id:
            return await self._then.evaluate(request, blobs)
        looked = await self._first.evaluate(request, blobs)
        found = looked.evaluation
        stage_ms = {f"{PREFILTER_STAGE}{stage}": took for stage, took in looked.stage_ms.items()}
        if found.verdict in FINAL_VERDICTS:
            judged = self._stamp_toolchain(found)
            return replace(looked, evaluation=judged, stage_ms=stage_ms, device_seconds=0.0)
        predicted_ms = found.benchmark.latency_ms if found.is_correct and found.benchmark else None
        bound = None if predicted_ms is None else found.bottleneck
        kind = _kernel_kind(request.target, bound)
        if predicted_ms is not None:
            why = self._skip_reason(request, found.code, (kind, predicted_ms))
            if why is not None:
                kept = self._skipped_evaluation(found, why)
                return EvaluationAnswer(kept, {}, stage_ms, predicted_ms, bound, device_seconds=0.0)
        answer = await self._then.evaluate(request, blobs)
        timed = answer.evaluation.benchmark
        if predicted_ms is not None and timed is not None and not timed.predicted:
            self._measured.append(MeasuredPair(kind, predicted_ms, timed.latency_ms))
            self._model = fit_residuals(self._measured)
        stage_ms |= answer.stage_ms
        return replace(answer, stage_ms=stage_ms, predicted_ms=predicted_ms, predicted_bound=bound)

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> Sequence[PredictedLatency]:
        """Predict kernels with the simulator."""
        return await self._first.predict(request, blobs)

    async def aclose(self) -> None:
        """Close both evaluators."""
        await self._first.aclose()
        await self._then.aclose()

    def _skip_reason(self, request: EvaluationRequest, code: Digest, found: BoundPrediction) -> str | None:
        """Return why a kernel is not measured; None if it is."""
        key = (request.problem.digest, request.size, request.target)
        shelf = self._shelves.setdefault(key, PredictionWindow())
        shelf.add(code, found)
        middle_ms, expected_ms = shelf.median_ms(self._model), self._model.correct(*found)
        if middle_ms is None or expected_ms <= middle_ms or int(code[:8], 16) % AUDIT_INTERVAL == 0:
            return None
        return f"{expected_ms:.4g} ms predicted, half of the last kernels have {middle_ms:.4g} ms or less"

    def _stamp_toolchain(self, found: Evaluation) -> Evaluation:
        return found.model_copy(update={"benchmark": None, "profile": None, "toolchain": self.toolchain()})

    def _skipped_evaluation(self, found: Evaluation, why: str) -> Evaluation:
        error = ErrorInfo(code=PREFILTERED, message=f"not run on a host: {why}")
        update = {"stage": "prefilter", "error": error, "bottleneck": None}
        return self._stamp_toolchain(found).model_copy(update=update)
