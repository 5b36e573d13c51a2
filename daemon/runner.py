"""Performs one effect: from its key and logged request to its outcome in the log.

The request is read from the blob that was stored when the effect was admitted. It is never built again,
so an effect that is delivered again after a crash sends exactly the same request. Every failure of a
role has an outcome. An effect stays open only if the log fails or the effect is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from agent_core.decide import decide
from agent_core.effects import Effect, LookAheadRequest, SimplifyRequest, TranslateRequest, request_type
from agent_core.ensemble import planner_of
from agent_core.proposers import AGENT, is_llm_proposer
from agent_core.roles import RoleError
from agent_core.roles.session_protocol import SessionHost
from agent_core.roles.worker_pool import WORKER_DIED
from daemon.calls.budget_ledger import BudgetLedger, lost_work
from daemon.calls.device_time import DeviceLease, lease_device
from daemon.calls.durable_calls import DurableCalls
from daemon.calls.errors import EffectDeferred
from daemon.calls.llm_roles import RoleFactory
from daemon.effect_steps import EffectSteps, poisoned_error, poisoned_event
from daemon.evaluation_retries import EvaluationRetryPolicy, call_with_retries
from daemon.explanation_cache import ExplanationCache
from daemon.host_watch import pause_without_host
from daemon.optimistic_append import append_if_current
from daemon.outcomes import (
    EffectOutcome,
    EvaluationEnd,
    FoundVerdict,
    InfrastructureFailure,
    internal_error,
    machine_failure,
    proposed_kernels,
    proposed_plans,
    role_failure,
    verdict_outcome,
)
from daemon.predicting_roles import PredictingRoles, PredictionFailed, prepare_evaluator
from daemon.structured_log import structlog
from daemon.workers import Workers
from remote.cache import cache_key as evaluation_key
from remote.cache import code_digest, find_cached
from remote.errors import InfrastructureError, NoHostError
from remote.evaluator import (
    BlobReader,
    EvaluationAnswer,
    Evaluator,
    Explainer,
    ExplanationRequest,
)
from remote.judge.job import JudgeOutcome
from remote.registry import SIMULATED_KINDS
from state.errors import StateError
from state.events import (
    EffectEnded,
    EvaluationCompleted,
    EvaluationFailed,
    Event,
    ExecutionFailed,
    ExperienceRecorded,
    KernelProposed,
    KernelTried,
    ReflectionRecorded,
    RunPaused,
    effect_key,
)
from state.fold import RunState, apply_event
from state.log import EventLog
from state.model import (
    INITIAL_KEY,
    JUDGES,
    EffectKey,
    EvaluationRequest,
    KernelExplanation,
    PauseCause,
    Role,
    RunStatus,
    Usage,
)
from state.records import NewEvent
from state.run_state import evolve
from state.step_keeper import STEP_KEEPER

T = TypeVar("T")

RecordVerdict = Callable[[FoundVerdict, Iterable[NewEvent]], Awaitable[None]]
"""Logs a verdict, with the events that belong beside it."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("runner")


class EffectRunner:
    """Performs effects of any run: one call per effect, any number of calls at a time."""

    def __init__(
        self,
        event_log: EventLog,
        workers: Workers,
        *,
        roles: RoleFactory | None = None,
        retry: EvaluationRetryPolicy | None = None,
    ) -> None:
        """`roles` creates the LLM roles; None if no run has a planner that asks models."""
        self._log = event_log
        self._workers = workers
        self._role_factory = roles
        self.retry = retry or EvaluationRetryPolicy()
        self.allow_weak_jail = False
        """Whether coding agents may work where nothing confines them."""
        self._predicting = PredictingRoles(event_log, workers, lambda: self.retry)
        self._explanations = ExplanationCache()
        self._judging: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._turns = asyncio.Lock()
        self._roles: dict[Role, Callable[[str, EffectKey, Any], Awaitable[EffectOutcome]]] = {
            Role.PLANNER: self._propose_plan,
            Role.EXECUTOR: self._implement_plan,
            Role.SUMMARIZER: self._summarize,
            Role.REFLECTOR: self._reflect,
        }

    @property
    def ledger(self) -> BudgetLedger:
        """The budgets of what costs money."""
        assert self._role_factory is not None, "a process that hosts coding agents has budgets"
        return self._role_factory.ledger

    @property
    def workers(self) -> Workers:
        """The evaluators, proposers and rewrite engines."""
        return self._workers

    async def perform(self, run: str, key: EffectKey, request: str) -> None:
        """Perform the effect whose request is the blob `request`, and record its outcome.

        Raises:
            state.errors.StateError: the log failed; the effect stays open.
            EffectDeferred: the run waits, or has ended; the effect stays open.
        """
        asked: Any = request_type(key).model_validate_json(self._log.get_blob(request))
        steps = EffectSteps(self._log, run, key, turns=self._turns)
        if steps.is_poisoned:
            await self._end_poisoned(run, key, asked, steps.deliveries)
        else:
            STEP_KEEPER.set(steps)
            async with steps.take_turn(), steps.count_seconds():
                await self._perform_steps(run, key, asked, steps)
        steps.discard()

    async def _perform_steps(self, run: str, key: EffectKey, asked: Any, steps: EffectSteps) -> None:
        if key.role in JUDGES:
            await self._evaluate(run, key, asked)
        else:
            await self._record_outcome(run, await self._perform_role(run, key, asked, steps))

    async def _end_poisoned(self, run: str, key: EffectKey, asked: Any, deliveries: int) -> None:
        """End an effect that may be what ends this process.

        Raises:
            EffectDeferred: the run cannot go on without this verdict; it is paused until a person resumes it.
        """
        error = poisoned_error(deliveries)
        log.error("effect_poisoned", run=run, key=str(key), deliveries=deliveries)
        beside = [poisoned_event(run, key, deliveries)]
        if key.role not in JUDGES:
            await self._record_outcome(run, role_failure(key, asked, error, Usage()), beside=beside)
            return
        end = InfrastructureFailure(error, retryable=True, tries=deliveries)
        if self._is_needed(run, key):
            await self._pause_for_verdict(run, _VerdictNeeded(key, end))
            raise EffectDeferred
        failed = EvaluationFailed(key=str(key), error=error, tries=deliveries)
        await self._record_outcome(run, EffectOutcome((failed,)), beside=beside)

    async def _record_outcome(
        self, run: str, outcome: EffectOutcome, *, beside: Iterable[NewEvent] = ()
    ) -> None:
        """Log the outcome of an effect, and the settlements that belong to it.

        Calls and agents that the effect left under way (only a bug does that) are ended with it.
        """
        outcome = replace(
            outcome, events=tuple(self._with_tried(run, one, outcome) for one in outcome.events)
        )
        ended = [event.key for event in outcome.events if isinstance(event, EffectEnded)]
        gone, settled = lost_work(
            run, self._log.run_state(run), ended, reason="its effect ended before it had an outcome"
        )
        events = [NewEvent(run, event) for event in (*gone, *outcome.events)]
        await self._log.append([*events, *settled, *beside], blobs=outcome.blobs)

    def _with_tried(self, run: str, event: Event, outcome: EffectOutcome) -> Event:
        """Return an executor's outcome with the other kernels that its session had judged."""
        effect = self._log.run_state(run).open.get(getattr(event, "key", ""))
        if effect is None or effect.session is None:
            return event
        if not isinstance(event, KernelProposed | ExecutionFailed):
            return event
        competing = {one.source for one in outcome.events if isinstance(one, KernelProposed)}
        tried = {one.code: one for one in effect.session.tried if one.source not in competing}
        return event.model_copy(update={"tried": tuple(tried.values())})

    async def _perform_role(self, run: str, key: EffectKey, asked: Any, steps: EffectSteps) -> EffectOutcome:
        """Have a role answer; what the machine lacks is waited for, as for evaluations.

        Raises:
            EffectDeferred: the machine still lacks it, or the round has no other hope; the run is paused.
        """
        tried, done = 1, 0
        while True:
            try:
                return await self._ask_role(run, key, asked, steps)
            except PredictionFailed as error:  # it was tried often enough
                end, usage = error.end, error.usage
            except RoleError as error:
                if error.info.code != WORKER_DIED:
                    return role_failure(key, asked, error.info, error.usage)
                end, usage = InfrastructureFailure(error.info, retryable=True, tries=tried), error.usage
            except (StateError, EffectDeferred):
                raise
            except (OSError, MemoryError) as error:
                end, usage = replace(machine_failure(error), tries=tried), Usage()
            except Exception as error:
                log.exception("role_failed", run=run, key=str(key))
                return role_failure(key, asked, internal_error(error), Usage())
            has_moved = steps.done > done  # then this try is not counted
            if end.tries > tried or (not has_moved and self.retry.is_last(tried, end)):
                break
            log.warning("role_retried", key=str(key), code=end.error.code, tried=tried)
            await asyncio.sleep(self.retry.pause_seconds(tried))
            tried, done = 1 if has_moved else tried + 1, steps.done
        failed = role_failure(key, asked, end.error, usage)
        if end.retryable and (end.of_machine or self._is_last_hope(run, key, failed)):
            await self._pause_for_verdict(run, _VerdictNeeded(key, end))
            raise EffectDeferred
        return failed

    async def _ask_role(self, run: str, key: EffectKey, asked: Any, steps: EffectSteps) -> EffectOutcome:
        match asked:
            case LookAheadRequest():
                proposer = self._select_proposer(run, key)
                return await self._predicting.look_ahead(run, key, asked, steps, proposer)
            case TranslateRequest():
                return await self._predicting.translate_reference(run, key, asked)
            case SimplifyRequest():
                return await self._predicting.simplify_winner(run, key, asked, steps)
        return await self._roles[key.role](run, key, asked)

    def _is_last_hope(self, run: str, key: EffectKey, failed: EffectOutcome) -> bool:
        """Return whether the round would end without a verdict if this effect failed."""
        state = evolve(self._log.run_state(run), status=RunStatus.RUNNING)
        if not state.in_round or state.selected or state.open.keys() - {str(key)}:
            return False
        for event in failed.events:
            state = apply_event(state, event)
        judged = (one for one in state.outcomes.values() if isinstance(one, EvaluationCompleted))
        return not any(effect_key(one).round == state.round for one in judged) and not any(
            isinstance(item, Effect) for item in decide(state)
        )

    def _select_proposer(self, run: str, key: EffectKey) -> Any:
        """Return the proposer that answers for the effect's slot."""
        planner = planner_of(self._log.run_state(run), key)
        if is_llm_proposer(planner) and self._role_factory is not None:
            from daemon.calls.sessions import DurableSession  # not at the top: only runs with models need it

            def open_session(calls: DurableCalls) -> SessionHost:
                return DurableSession(run, key, calls=calls, event_log=self._log, runner=self)

            return self._role_factory.create_roles(run, key, open_session)
        if planner == AGENT:
            from daemon.agents.proposer import AgentProposer  # only runs with coding agents need it

            return AgentProposer(run, key, event_log=self._log, runner=self)
        return self._workers.get_proposer(planner)

    async def _propose_plan(self, run: str, key: EffectKey, asked: Any) -> EffectOutcome:
        answer = await self._select_proposer(run, key).plan(asked, self._log.get_blob)
        return proposed_plans(key, answer)

    async def _implement_plan(self, run: str, key: EffectKey, asked: Any) -> EffectOutcome:
        proposer = self._select_proposer(run, key)
        answer = await proposer.implement(asked, self._log.get_blob)
        return proposed_kernels(self._log.run_state(run), key, answer, proposer.name)

    async def _summarize(self, run: str, key: EffectKey, asked: Any) -> EffectOutcome:
        answer = await self._select_proposer(run, key).summarize(asked, self._log.get_blob)
        return EffectOutcome(
            (ExperienceRecorded(key=str(key), experience=answer.experience, usage=answer.usage),)
        )

    async def _reflect(self, run: str, key: EffectKey, asked: Any) -> EffectOutcome:
        answer = await self._select_proposer(run, key).reflect(asked, self._log.get_blob)
        return EffectOutcome(
            (ReflectionRecorded(key=str(key), reflection=answer.reflection, usage=answer.usage),)
        )

    # --- evaluation --------------------------------------------------------------------------------

    async def _evaluate(self, run: str, key: EffectKey, request: EvaluationRequest) -> None:
        """Record a verdict. Equal kernels are judged once, even if they are requested at the same time.

        Raises:
            EffectDeferred: no host is left to judge the kernel, and the run is paused until a host answers;
                or the run cannot go on without this verdict, and is paused until a person resumes it.
        """
        try:
            await self._evaluate_or_reuse(run, key, request)
        except NoHostError as error:
            await pause_without_host(self._log, run, error)
            raise EffectDeferred from error
        except _VerdictNeeded as error:
            await self._pause_for_verdict(run, error)
            raise EffectDeferred from error

    async def _pause_for_verdict(self, run: str, needed: _VerdictNeeded) -> None:
        """Pause a run that has no other kernel to go on with, instead of ending it."""
        reason = f"{needed}; resume the run to have it tried again"

        def pause(state: RunState) -> RunPaused:
            """Keep an approval that the run waits for already, and who paused it."""
            cause = PauseCause.MACHINE if state.status is RunStatus.RUNNING else state.pause_cause
            return RunPaused(reason=reason, cause=cause, needs_approval=state.needs_approval)

        await append_if_current(self._log, [run], pause)
        log.warning("run_paused", run=run, reason=reason)

    async def _evaluate_or_reuse(self, run: str, key: EffectKey, request: EvaluationRequest) -> None:
        async def record(found: FoundVerdict, beside: Iterable[NewEvent]) -> None:
            outcome = verdict_outcome(key, found, self._log.get_blob)
            await self._record_outcome(run, outcome, beside=beside)

        await self.find_verdict(run, key, request, record, decisive=True)

    async def find_verdict(
        self,
        run: str,
        key: EffectKey,
        request: EvaluationRequest,
        record: RecordVerdict,
        *,
        blobs: BlobReader | None = None,
        decisive: bool = False,
    ) -> None:
        """Judge a kernel, or reuse a verdict, and have `record` log it before an equal kernel is judged.

        `blobs` has what the request names; None: the log has it. `decisive`: the verdict is an effect's, and
        the run may not be able to go on without it.

        Raises:
            NoHostError: no host is left to judge it.
            _VerdictNeeded: as `_judge_kernel`, for a decisive verdict.
        """
        with self._workers.hold_evaluator(self._log.run_state(run).config) as evaluator:
            await prepare_evaluator(evaluator)
            blobs = blobs or self._log
            cache_key = self._cache_key(evaluator, request, blobs)
            lock = self._judging.setdefault(cache_key, asyncio.Lock())
            async with lock:
                reused = self._find_known_verdict(request, cache_key)
                if reused is not None:
                    await record(reused, ())
                    return
                try:
                    async with self._lease_device(run, key, evaluator) as use:
                        judging = self._judge_kernel(
                            run, key, evaluator, request, blobs=blobs, decisive=decisive
                        )
                        end = await use.run_within(judging)
                        await record(FoundVerdict(cache_key, end), use.settlement_events(end))
                except RoleError as error:  # no device time is left
                    await record(FoundVerdict(cache_key, InfrastructureFailure.of_role(error)), ())

    async def explain_kernel(
        self, run: str, key: EffectKey, request: ExplanationRequest, blobs: BlobReader
    ) -> KernelExplanation | JudgeOutcome:
        """Check and explain a kernel by its program, on this machine, also where devices judge.

        Raises:
            RoleError: the infrastructure failed.
        """
        config = self._log.run_state(run).config
        with self._workers.hold_evaluator(config) as own:
            if hasattr(own, "explain"):
                return await self._explain(key, own, request, blobs)
        with self._workers.hold_evaluator(config.model_copy(update={"evaluator": "sim"})) as simulated:
            return await self._explain(key, simulated, request, blobs)

    async def _explain(
        self, key: EffectKey, evaluator: Evaluator, request: ExplanationRequest, blobs: BlobReader
    ) -> KernelExplanation | JudgeOutcome:
        explainer = cast("Explainer", evaluator)

        async def compute() -> KernelExplanation | JudgeOutcome:
            answer = await call_with_retries(self.retry, key, lambda: explainer.explain(request, blobs))
            if isinstance(answer, InfrastructureFailure):
                raise RoleError(answer.error)
            return answer

        return await self._explanations.find(evaluator.toolchain(), request, compute)

    def _lease_device(
        self, run: str, key: EffectKey, evaluator: Evaluator
    ) -> AbstractAsyncContextManager[DeviceLease]:
        """Reserve device time for an evaluation, for all its tries together."""
        ledger = None if self._role_factory is None else self._role_factory.ledger
        charged = None if evaluator.name in SIMULATED_KINDS else ledger
        return lease_device(charged, run, str(key), self.retry.tries * self.retry.deadline_seconds)

    def _cache_key(self, evaluator: Evaluator, request: EvaluationRequest, blobs: BlobReader) -> str:
        code = code_digest(blobs.get_blob(request.source), request.target)
        return evaluation_key(request, code=code, evaluator=evaluator.name, toolchain=evaluator.toolchain())

    def _find_known_verdict(self, request: EvaluationRequest, cache_key: str) -> FoundVerdict | None:
        known = self._log.known_evaluations(cache_key)
        events = [item.event for item in known]
        judged = [one.evaluation for one in events if isinstance(one, EvaluationCompleted | KernelTried)]
        found = find_cached(judged, request)
        if found is None:
            return None
        place, evaluation = found
        answer = EvaluationAnswer(evaluation, {}, {})
        return FoundVerdict(cache_key, answer, cached_from=known[place].event_id)

    def _is_needed(self, run: str, key: EffectKey) -> bool:
        """Return whether the run has no kernel yet that it can go on with, and needs this one."""
        state = self._log.run_state(run)
        is_first = key == INITIAL_KEY or "kernel" not in state.starts
        return (state.initial is None and is_first) or bool(state.rejudge)

    async def _judge_kernel(
        self,
        run: str,
        key: EffectKey,
        evaluator: Evaluator,
        request: EvaluationRequest,
        *,
        blobs: BlobReader,
        decisive: bool,
    ) -> EvaluationEnd:
        """Evaluate, with as many tries as the retry policy allows.

        Raises:
            _VerdictNeeded: all tries failed in a way that may pass, and the run cannot go on without it, or
                what is missing is missing for every kernel.
        """

        async def ask() -> EvaluationAnswer:
            return _at_requested_level(await evaluator.evaluate(request, blobs), request)

        end = await call_with_retries(self.retry, key, ask)
        if decisive and isinstance(end, InfrastructureFailure) and end.retryable:
            failed = EvaluationFailed(key=str(key), error=end.error, tries=end.tries)
            if (
                end.of_machine
                or self._is_needed(run, key)
                or self._is_last_hope(run, key, EffectOutcome((failed,)))
            ):
                raise _VerdictNeeded(key, end)
        return end


class _VerdictNeeded(Exception):  # noqa: N818 - named for what the run lacks
    def __init__(self, key: EffectKey, end: InfrastructureFailure) -> None:
        what = "judged" if key.role in JUDGES else "answered"
        text = f"{key} was not {what} in {end.tries} tries: {end.error.code}: {end.error.message}"
        super().__init__(text)


def _at_requested_level(answer: EvaluationAnswer, request: EvaluationRequest) -> EvaluationAnswer:
    """Return the answer at the requested level, as if it came from the log.

    Raises:
        InfrastructureError: the evaluator compared at a lower level.
    """
    found = find_cached([answer.evaluation], request)
    if found is None:
        level = answer.evaluation.level
        text = f"the evaluator answered at the level {level}, {request.level} or more was asked for"
        raise InfrastructureError("level_too_low", text, retryable=False)
    return replace(answer, evaluation=found[1])
