"""Performs one effect: from its key and logged request to its outcome in the log.

The request is read back from the blob that the effect was admitted with, never made anew, so an effect
that is delivered again after a crash asks exactly what it asked before. Every way in which a role can
fail has an outcome; only a failing log, or being cancelled, leaves an effect open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog

from agent_core.effects import (
    REQUESTS,
    LookAheadRequest,
)
from agent_core.ensemble import planner_of
from agent_core.proposers import asks_models
from agent_core.roles import RoleError
from daemon.calls.desk import Desk
from daemon.calls.devices import Use, on_device
from daemon.calls.errors import Held
from daemon.calls.till import all_lost, settled
from daemon.hosts import pause
from daemon.outcomes import Outcome, failed, internal, judged, profile_of, unjudged
from daemon.workers import Workers
from remote.cache import cache_key as evaluation_key
from remote.cache import code_digest, serving
from remote.errors import InfrastructureError, NoHostError, NotReadyError
from remote.evaluator import EvaluationAnswer, Evaluator, PredictionRequest
from remote.registry import SIMULATED
from state.errors import StateError
from state.events import (
    EffectEnded,
    EvaluationCompleted,
    EvaluationFailed,
    ExperienceRecorded,
    KernelProposed,
    PlanProposed,
    PredictionBatch,
    ReflectionRecorded,
)
from state.log import EventLog
from state.model import (
    JUDGES,
    EffectKey,
    ErrorInfo,
    EvaluationRequest,
    Predicted,
    Role,
    Usage,
    canonical_json,
    digest_of,
)
from state.records import NewEvent

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger("runner")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often an evaluation is tried when the infrastructure fails, and the pauses between (seconds).

    A try that takes longer than `deadline_seconds` is one that failed.
    """

    tries: int = 3
    deadline_seconds: float = 600.0
    first_pause: float = 0.5
    factor: float = 4.0

    def pause(self, tried: int) -> float:
        """Return the pause after the try number `tried`, counted from 1."""
        return self.first_pause * self.factor ** (tried - 1)


class Runner:
    """Performs effects of any run; one call per effect, any number at a time."""

    def __init__(
        self,
        event_log: EventLog,
        workers: Workers,
        *,
        desk: Desk | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """`desk` is where planners ask models; None: no run has any that does."""
        self._log = event_log
        self._workers = workers
        self._desk = desk
        self.retry = retry or RetryPolicy()
        self._judging: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._roles: dict[Role, Callable[[str, EffectKey, Any], Awaitable[Outcome]]] = {
            Role.PREDICTOR: self._look_ahead,
            Role.PLANNER: self._plan,
            Role.EXECUTOR: self._implement,
            Role.SUMMARIZER: self._summarize,
            Role.REFLECTOR: self._reflect,
        }

    async def perform(self, run: str, key: EffectKey, request: str) -> None:
        """Perform the effect whose request is the blob `request`, and record its outcome.

        Raises:
            state.errors.StateError: the log failed; the effect stays open.
            Held: its run waits, or is over; the effect stays open.
        """
        asked: Any = REQUESTS[key.role].model_validate_json(self._log.get_blob(request))
        if key.role in JUDGES:
            await self._evaluate(run, key, asked)
        else:
            await self._record(run, await self._guarded(run, key, asked))

    async def _record(self, run: str, outcome: Outcome, *, beside: Iterable[NewEvent] = ()) -> None:
        """Log how an effect ended, and what is settled with it.

        Calls that it left under way, which only a bug does, end with it.
        """
        ended = [event.key for event in outcome.events if isinstance(event, EffectEnded)]
        gone = all_lost(self._log.state(run), ended, reason="its effect ended before it had an outcome")
        events = [NewEvent(run, event) for event in (*gone, *outcome.events)]
        await self._log.append([*events, *(settled(run, one) for one in gone), *beside], blobs=outcome.blobs)

    async def _guarded(self, run: str, key: EffectKey, asked: Any) -> Outcome:
        try:
            return await self._roles[key.role](run, key, asked)
        except RoleError as error:
            return failed(key, asked, error.info, error.usage)
        except (StateError, Held):
            raise
        except Exception as error:
            log.exception("role_failed", run=run, key=str(key))
            return failed(key, asked, internal(error), Usage())

    def _proposer(self, run: str, key: EffectKey) -> Any:
        """Return who answers for the effect's slot."""
        planner = planner_of(self._log.state(run), key)
        if asks_models(planner) and self._desk is not None:
            return self._desk.roles(run, key)
        return self._workers.proposer(planner)

    async def _plan(self, run: str, key: EffectKey, asked: Any) -> Outcome:
        answer = await self._proposer(run, key).plan(asked, self._log.get_blob)
        return Outcome((PlanProposed(key=str(key), plan=answer.plan, usage=answer.usage),))

    async def _implement(self, run: str, key: EffectKey, asked: Any) -> Outcome:
        proposer = self._proposer(run, key)
        answer = await proposer.implement(asked, self._log.get_blob)
        source = answer.source.encode()
        proposed = KernelProposed(
            key=str(key), source=digest_of(source), note=answer.note, author=proposer.name, usage=answer.usage
        )
        return Outcome((proposed,), (source,))

    async def _summarize(self, run: str, key: EffectKey, asked: Any) -> Outcome:
        answer = await self._proposer(run, key).summarize(asked, self._log.get_blob)
        return Outcome((ExperienceRecorded(key=str(key), experience=answer.experience, usage=answer.usage),))

    async def _reflect(self, run: str, key: EffectKey, asked: Any) -> Outcome:
        answer = await self._proposer(run, key).reflect(asked, self._log.get_blob)
        return Outcome((ReflectionRecorded(key=str(key), reflection=answer.reflection, usage=answer.usage),))

    # --- looking ahead -----------------------------------------------------------------------------

    async def _look_ahead(self, run: str, key: EffectKey, asked: LookAheadRequest) -> Outcome:
        """Let a planner search by predictions; of all that it looks at, only what it found is logged.

        What it would find after its round has closed leads nowhere: it is asked to predict no more.
        """
        proposer = self._proposer(run, key)
        with self._workers.judging(self._log.state(run).config) as evaluator:

            async def predict(
                sources: Sequence[str], dims: Mapping[str, int] | None = None
            ) -> Sequence[Predicted]:
                if self._log.state(run).over(key):
                    raise RoleError(ErrorInfo(code="round_over", message="its round closed meanwhile"))
                wanted = _prediction(asked, proposer.name, sources, dims)
                return await self._predicted(key, evaluator, wanted)

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
        return Outcome((batch,), (variants, *(answer.sources[one.source] for one in found)))

    async def _predicted(
        self, key: EffectKey, evaluator: Evaluator, request: PredictionRequest
    ) -> Sequence[Predicted]:
        answer, _ = await self._persist(key, lambda: evaluator.predict(request, self._log))
        if isinstance(answer, Trouble):
            raise RoleError(answer.error)
        found = sum(one.latency_ms is not None for one in answer)
        log.info("kernels_predicted", key=str(key), predicted=found, failed=len(answer) - found)
        return answer

    # --- evaluation --------------------------------------------------------------------------------

    async def _evaluate(self, run: str, key: EffectKey, request: EvaluationRequest) -> None:
        """Record a verdict; equal kernels are judged once, also when they are asked for at the same time.

        Raises:
            Held: no host is left to judge it; its run is paused until one answers.
        """
        try:
            await self._evaluated(run, key, request)
        except NoHostError as error:
            await pause(self._log, run, error)
            raise Held from error

    async def _evaluated(self, run: str, key: EffectKey, request: EvaluationRequest) -> None:
        with self._workers.judging(self._log.state(run).config) as evaluator:
            await self._ready(evaluator)
            cache_key = self._cache_key(evaluator, request)
            lock = self._judging.setdefault(cache_key, asyncio.Lock())
            async with lock:
                reused = self._reuse(key, request, cache_key)
                if reused is not None:
                    await self._record(run, reused)
                    return
                try:
                    async with self._on_device(run, key, evaluator) as use:
                        judging = self._judge(key, evaluator, request, cache_key)
                        outcome = await use.within(judging, lambda error: unjudged(key, error))
                        told = Outcome(use.told(outcome.events), outcome.blobs)
                        await self._record(run, told, beside=use.ending(told.events))
                except RoleError as error:  # no time on devices is left
                    await self._record(run, unjudged(key, error))

    def _on_device(self, run: str, key: EffectKey, evaluator: Evaluator) -> AbstractAsyncContextManager[Use]:
        """Hold what an evaluation may take of a device: all its tries together."""
        till = self._desk.till if self._desk is not None and evaluator.name not in SIMULATED else None
        return on_device(till, run, str(key), self.retry.tries * self.retry.deadline_seconds)

    async def _ready(self, evaluator: Evaluator) -> None:
        """Prepare an evaluator that does not know yet what it is: this process was only just started.

        Raises:
            NoHostError: nothing that it needs can be reached.
        """
        try:
            evaluator.toolchain()
        except NotReadyError:
            await evaluator.prepare()

    def _cache_key(self, evaluator: Evaluator, request: EvaluationRequest) -> str:
        code = code_digest(self._log.get_blob(request.source), request.target)
        return evaluation_key(request, code=code, evaluator=evaluator.name, toolchain=evaluator.toolchain())

    def _reuse(self, key: EffectKey, request: EvaluationRequest, cache_key: str) -> Outcome | None:
        known = self._log.known_evaluations(cache_key)
        events = [item.event for item in known]
        found = serving([one.evaluation for one in events if isinstance(one, EvaluationCompleted)], request)
        if found is None:
            return None
        place, evaluation = found
        completed = EvaluationCompleted(
            key=str(key), evaluation=evaluation, cache_key=cache_key, cached_from=known[place].place
        )
        return Outcome((*profile_of(key, evaluation, self._log.get_blob), completed))

    async def _judge(
        self, key: EffectKey, evaluator: Evaluator, request: EvaluationRequest, cache_key: str
    ) -> Outcome:
        """Evaluate, with as many tries as it may take."""

        async def ask() -> EvaluationAnswer:
            return _as_asked(await evaluator.evaluate(request, self._log), request)

        answer, tries = await self._persist(key, ask)
        if isinstance(answer, Trouble):
            return Outcome((EvaluationFailed(key=str(key), error=answer.error, tries=tries),))
        return judged(key, cache_key, answer)

    async def _persist(self, key: EffectKey, ask: Callable[[], Awaitable[T]]) -> tuple[T | Trouble, int]:
        """Ask an evaluator, again when the infrastructure failed in a way that may pass; with the tries."""
        tried = 1
        while isinstance(answer := await self._try(key, ask), Trouble):
            if tried == self.retry.tries or not answer.retryable:
                break
            log.warning("evaluation_retried", key=str(key), code=answer.error.code, tried=tried)
            await asyncio.sleep(self.retry.pause(tried))
            tried += 1
        return answer, tried

    async def _try(self, key: EffectKey, ask: Callable[[], Awaitable[T]]) -> T | Trouble:
        try:
            async with asyncio.timeout(self.retry.deadline_seconds):
                return await ask()
        except TimeoutError:
            text = f"no verdict within {self.retry.deadline_seconds:g} s"
            return Trouble(ErrorInfo(code="evaluation_deadline", message=text), retryable=True)
        except NoHostError:
            raise
        except InfrastructureError as error:
            return Trouble(ErrorInfo(code=error.code, message=error.message), retryable=error.retryable)
        except StateError:
            raise
        except Exception as error:
            log.exception("evaluator_failed", key=str(key))
            return Trouble(internal(error), retryable=False)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an evaluation reached no verdict, and whether another try may."""

    error: ErrorInfo
    retryable: bool


def _prediction(
    asked: LookAheadRequest, author: str, sources: Sequence[str], dims: Mapping[str, int] | None
) -> PredictionRequest:
    return PredictionRequest(
        author=author,
        sources=tuple(sources),
        problem=asked.problem,
        size=asked.size,
        target=asked.target,
        toolchain=asked.toolchain,
        dims=dims,
    )


def _as_asked(answer: EvaluationAnswer, request: EvaluationRequest) -> EvaluationAnswer:
    """Return the answer at the level that was needed, as if it had come out of the log.

    Raises:
        InfrastructureError: the evaluator compared less than that.
    """
    found = serving([answer.evaluation], request)
    if found is None:
        level = answer.evaluation.level
        text = f"the evaluator answered at the level {level}, {request.level} or more was asked for"
        raise InfrastructureError("level_too_low", text, retryable=False)
    return replace(answer, evaluation=found[1])
