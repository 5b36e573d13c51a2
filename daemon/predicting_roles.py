"""The roles that work by predictions: looking ahead, translating a reference, simplifying a winner.

Each asks a run's evaluator for predicted latencies, many times for one answer. Predictions of a look-ahead
and of a simplification are kept in the log as they come (`effect_steps`), so a delivery goes on where the one
before it was cut off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from agent_core.effects import LookAheadRequest, SimplifyRequest, TranslateRequest
from agent_core.proposers import find_simplifier
from agent_core.roles import Predict, PredictionsEndedError, RoleError, WinnerSimplifier
from agent_core.sequences import HISTORY_EVENTS, trace_rewrites
from daemon.calls.clock import run_age_seconds
from daemon.effect_steps import EffectSteps, batched, name_prediction, prediction_request
from daemon.evaluation_retries import EvaluationRetryPolicy, call_with_retries
from daemon.outcomes import EffectOutcome, InfrastructureFailure
from daemon.structured_log import structlog
from daemon.transfer_events import read_history
from daemon.translation import TRANSLATOR, choose_by_verdict
from daemon.workers import Workers
from remote.errors import InfrastructureError, NotReadyError
from remote.evaluation_context import read_problem
from remote.evaluator import Evaluator, PredictionRequest
from state.events import KernelProposed, PredictionBatch
from state.log import EventLog
from state.model import (
    EffectKey,
    ErrorInfo,
    Evaluation,
    EvaluationRequest,
    Level,
    PredictedLatency,
    canonical_json,
    digest_of,
)
from targets.base import UntranslatableError
from targets.registry import load_target

LOOK_AHEAD_SHARE = 0.6
"""The share of a run's remaining time that a look-ahead may take, so that what it finds can be judged."""
LAST_PREDICTIONS = 16
"""Kernels that it may still ask for when that share is used up, to complete what it has found."""
SIMPLIFY_SECONDS = 600.0
"""How long a simplification may take; the winner then stays as it is."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("runner")


class PredictionFailed(RoleError):  # noqa: N818 - the infrastructure failed, not a kernel
    """The infrastructure failed to predict, as often as it may."""

    def __init__(self, end: InfrastructureFailure) -> None:
        super().__init__(end.error)
        self.end = end


class PredictingRoles:
    """Answers requests that need predictions; a failure is a RoleError."""

    def __init__(
        self, event_log: EventLog, workers: Workers, retry: Callable[[], EvaluationRetryPolicy]
    ) -> None:
        self._log = event_log
        self._workers = workers
        self._retry = retry

    async def look_ahead(
        self, run: str, key: EffectKey, asked: LookAheadRequest, steps: EffectSteps, proposer: Any
    ) -> EffectOutcome:
        """Let a planner search by predicted latencies; only the variants that it found are logged."""
        left = None if asked.drawn else self._remaining_seconds(run)
        until = None if left is None else time.monotonic() + LOOK_AHEAD_SHARE * left
        limit = None if until is None else _TimeLimit(until, LAST_PREDICTIONS)
        with self._keep_predictions(
            run, key, asked, steps=steps, author=proposer.name, limit=limit
        ) as predict:
            answer = await proposer.look_ahead(asked, self._log.get_blob, predict)
        variants = canonical_json(answer.variants.model_dump(mode="json"))
        found = answer.variants.found
        batch = PredictionBatch(
            key=str(key),
            variants=digest_of(variants),
            best_ms=min((one.latency_ms for one in found if one.latency_ms is not None), default=None),
            count=len(found),
            predicted=answer.predicted,
            failed=answer.failed,
            instructions=answer.instructions,
            usage=answer.usage,
        )
        return EffectOutcome((batch,), (variants, *answer.sources.values()))

    def _remaining_seconds(self, run: str) -> float | None:
        """The seconds that a run has left; None if its time is not limited."""
        state = self._log.run_state(run)
        cap = (state.pending_config or state.config).cap_seconds
        return None if cap is None else max(0.0, cap - run_age_seconds(self._log, run, time.time()))

    async def simplify_winner(
        self, run: str, key: EffectKey, asked: SimplifyRequest, steps: EffectSteps
    ) -> EffectOutcome:
        """Let the target's simplifier propose a simpler kernel; its rewrites are read from the log.

        Raises:
            RoleError: there is none, or it took too long; the winner stays as it is.
        """
        name = find_simplifier(asked.target, self._log.run_state(run).config.planner)
        if name is None:
            raise RoleError(
                ErrorInfo(code="no_simplifier", message="no proposer simplifies this run's kernels")
            )
        proposer = cast("WinnerSimplifier", self._workers.get_proposer(name))
        menu = load_target(asked.target).menu()
        leg = trace_rewrites(read_history(self._log, run, HISTORY_EVENTS), asked.best, menu)
        try:
            with self._keep_predictions(run, key, asked, steps=steps, author=name) as predict:
                async with asyncio.timeout(SIMPLIFY_SECONDS):
                    answer = await proposer.simplify(asked, leg, self._log.get_blob, predict)
        except TimeoutError as error:
            text = f"no simpler kernel was found in {SIMPLIFY_SECONDS:.0f} s"
            raise RoleError(ErrorInfo(code="deadline", message=text)) from error
        source = answer.source.encode()
        proposed = KernelProposed(
            key=str(key), source=digest_of(source), note=answer.note, author=name, usage=answer.usage
        )
        return EffectOutcome((proposed,), (source,))

    async def translate_reference(self, run: str, key: EffectKey, asked: TranslateRequest) -> EffectOutcome:
        """Write the kernel that a run begins from; a reference without a translation is no fault of a run."""
        translator = self._workers.translator
        with self._workers.hold_evaluator(self._log.run_state(run).config) as evaluator:
            await prepare_evaluator(evaluator)

            async def predict(sources: Sequence[str]) -> Sequence[PredictedLatency]:
                request = prediction_request(asked, TRANSLATOR, sources, None)
                return await self._predict_kernels(key, evaluator, request)

            if translator is None:
                raise RoleError(ErrorInfo(code="no_translator", message="this process has no translator"))
            try:
                problem = read_problem(self._log, asked.problem)
                found = await translator.translate(
                    problem, asked.size, asked.target, predict=predict, toolchain=asked.toolchain
                )
                judge = partial(self._judge_translation, key, evaluator, asked)
                judged = await choose_by_verdict(found, judge)
            except (UntranslatableError, InfrastructureError) as error:
                raise RoleError(ErrorInfo(code=error.code, message=str(error))) from error
        source = judged.kernel.kernel.encode()
        reasons = ", ".join(judged.passed_over)
        note = "the reference, translated" + (f"; passed over faster layouts: {reasons}" if reasons else "")
        if judged.left_out:
            note += f"; layouts were left out by faults of this program: {', '.join(judged.left_out)}"
        proposed = KernelProposed(key=str(key), source=digest_of(source), note=note, author=TRANSLATOR)
        return EffectOutcome((proposed,), (source,))

    async def _judge_translation(
        self, key: EffectKey, evaluator: Evaluator, asked: TranslateRequest, kernel: str
    ) -> Evaluation:
        """Judge a layout as the run would judge its start."""
        source = kernel.encode()
        request = EvaluationRequest(
            candidate=key.candidate_id,
            author=TRANSLATOR,
            source=digest_of(source),
            problem=asked.problem,
            size=asked.size,
            target=asked.target,
            toolchain=asked.toolchain,
            level=Level.SLICES,
        )
        blobs = _BlobsWithKernel(self._log, source)
        answer = await call_with_retries(self._retry(), key, lambda: evaluator.evaluate(request, blobs))
        if isinstance(answer, InfrastructureFailure):
            raise PredictionFailed(answer)
        return answer.evaluation

    @contextmanager
    def _keep_predictions(
        self,
        run: str,
        key: EffectKey,
        asked: LookAheadRequest | SimplifyRequest,
        *,
        steps: EffectSteps,
        author: str,
        limit: _TimeLimit | None = None,
    ) -> Iterator[Predict]:
        """Predict with the run's evaluator for an effect, and record the answers in batches.

        Answers after the effect's round has closed are useless, so it then raises instead of answering. When
        `limit` is reached, it raises PredictionsEndedError.
        """
        with self._workers.hold_evaluator(self._log.run_state(run).config) as evaluator:

            async def predict(
                sources: Sequence[str], dims: Mapping[str, int] | None = None, *, canonical: bool = False
            ) -> Sequence[PredictedLatency]:
                wanted = prediction_request(asked, author, sources, dims)
                wanted = replace(wanted, canonical=canonical)
                names = [name_prediction(wanted, source) for source in sources]
                fresh = {
                    name: source
                    for name, source in zip(names, sources, strict=True)
                    if steps.find_answer(name) is None
                }
                for batch in batched(fresh.items(), steps.batch_size):
                    if self._log.run_state(run).is_round_over(key):
                        raise RoleError(ErrorInfo(code="round_over", message="its round closed meanwhile"))
                    if limit is not None:
                        limit.spend(len(batch))
                    part = replace(wanted, sources=tuple(source for _, source in batch))
                    told = await self._predict_kernels(key, evaluator, part)
                    await steps.record_answers(
                        {
                            name: one.model_dump(mode="json", exclude_defaults=True)
                            for (name, _), one in zip(batch, told, strict=True)
                        }
                    )
                return [PredictedLatency.model_validate(steps.find_answer(name)) for name in names]

            yield predict

    async def _predict_kernels(
        self, key: EffectKey, evaluator: Evaluator, request: PredictionRequest
    ) -> Sequence[PredictedLatency]:
        answer = await call_with_retries(self._retry(), key, lambda: evaluator.predict(request, self._log))
        if isinstance(answer, InfrastructureFailure):
            raise PredictionFailed(answer)
        found = sum(one.latency_ms is not None for one in answer)
        log.info("kernels_predicted", key=str(key), predicted=found, failed=len(answer) - found)
        return answer


@dataclass(slots=True)
class _TimeLimit:
    """Ends an effect's predictions at `until`, by the monotonic clock, except for the last few."""

    until: float
    left: int
    ended: bool = False

    def spend(self, count: int) -> None:
        """Allow `count` predictions.

        Raises:
            PredictionsEndedError: the time is up. It is raised once before the last predictions are allowed,
                and again when fewer than `count` are left.
        """
        if time.monotonic() <= self.until:
            return
        if not self.ended or count > self.left:
            self.ended = True
            raise PredictionsEndedError
        self.left -= count


@dataclass(frozen=True, slots=True)
class _BlobsWithKernel:
    """The blobs of a log, and a kernel that is not in it."""

    log: EventLog
    kernel: bytes

    def get_blob(self, digest: str, /) -> bytes:
        return self.kernel if digest == digest_of(self.kernel) else self.log.get_blob(digest)


async def prepare_evaluator(evaluator: Evaluator) -> None:
    """Prepare an evaluator that this process has not used yet, so that it knows its toolchain.

    Raises:
        NoHostError: none of its hosts can be reached.
    """
    try:
        evaluator.toolchain()
    except NotReadyError:
        await evaluator.prepare()
