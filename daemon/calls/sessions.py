"""Durable sessions: the turns and tool calls of an effect's dialogue, each in the log once.

Turns are the effect's calls (`durable_calls`). A tool call is logged before it runs and when it has answered.
A kernel that a tool has judged is logged with its verdict as soon as there is one. After a crash the session
runs again: it takes from the log what is there, and carries out the rest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_core.ensemble import model_of
from agent_core.prompting import PromptSet
from agent_core.providers.completion import DialogueStep, ModelTurn, ToolCall, ToolDefinition
from agent_core.requests import make_evaluation_request
from agent_core.roles import RoleError
from agent_core.roles.ask_protocol import FillPrompt
from agent_core.roles.session_protocol import PastCall, PastVerdict
from agent_core.tools.rewriting import Rewriter
from agent_core.tools.workbench import LabVerdict, RefusedKernel
from daemon.calls.durable_calls import DurableCalls
from daemon.calls.errors import EffectDeferred
from daemon.outcomes import FoundVerdict, InfrastructureFailure
from remote.evaluator import ExplanationRequest
from remote.judge.job import JudgeOutcome
from state.crash import crash_point
from state.events import (
    CallCompleted,
    KernelTried,
    SessionEnded,
    SessionStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from state.events.session import tool_call_name
from state.fold import RunState
from state.log import EventLog
from state.model import (
    Amount,
    EffectKey,
    EvaluationRequest,
    KernelExplanation,
    Level,
    SessionEndReason,
    SessionProgress,
    ToolStep,
    digest_of,
)
from state.records import NewEvent

if TYPE_CHECKING:
    from daemon.runner import EffectRunner


@dataclass(frozen=True, slots=True)
class SourceBlobs:
    """The log's blobs, and one kernel that it does not have yet."""

    log: EventLog
    digest: str
    source: bytes

    def get_blob(self, digest: str, /) -> bytes:
        """Return a blob by its digest."""
        return self.source if digest == self.digest else self.log.get_blob(digest)


class DurableSession:
    """One effect's session; implements `SessionHost`, and `KernelLab` for the tools of the call under way."""

    def __init__(
        self,
        run: str,
        key: EffectKey,
        *,
        calls: DurableCalls | None,
        event_log: EventLog,
        runner: EffectRunner,
    ) -> None:
        self._run = run
        self._key = key
        self._calls = calls
        self._log = event_log
        self._runner = runner
        self._step: tuple[int, int] = (0, 0)
        self._began = 0.0

    # --- the session -------------------------------------------------------------------------------

    @property
    def lab(self) -> DurableSession:
        """Where tools have kernels judged: here, beside the call under way."""
        return self

    @property
    def rewriter(self) -> Rewriter | None:
        """The rewrite engine of the run's target."""
        return self._runner.workers.get_rewriter(self._state().config.target)

    @property
    def prompts(self) -> PromptSet:
        """The prompts of the run's round."""
        assert self._calls is not None
        return self._calls.prompts

    def find_stop(self, turn: int, share: Amount) -> tuple[SessionEndReason, str] | None:
        """Return why a turn that is not in the log must not be taken: ended, late, or its share is spent."""
        progress = self._progress()
        calls = self._state().open[str(self._key)].calls
        if turn < len(calls) and calls[turn].answer is not None:
            return None
        if progress is not None and progress.ended is not None:
            ended = self._log.event_by_key(self._run, f"{self._key}#session#end")
            detail = ended.event.detail if ended and isinstance(ended.event, SessionEnded) else ""
            return progress.ended, detail
        if self._state().is_round_over(self._key):
            return SessionEndReason.DEADLINE, "its round closed meanwhile"
        turns = [self._charged(number, calls[number].attempts) for number in range(turn)]
        spent, last = sum(turns, Amount()), turns[-1] if turns else Amount()
        if share.usd and spent.usd + last.usd > share.usd:
            return SessionEndReason.BUDGET, f"its share of US$ {share.usd:.2f} has no room for another turn"
        if share.tokens and spent.tokens + last.tokens > share.tokens:
            return SessionEndReason.BUDGET, f"its share of {share.tokens} tokens has no room for another turn"
        return None

    def _charged(self, turn: int, attempt: int) -> Amount:
        """Return what a turn's answer cost; lost attempts are left out, so that a crash ends no session."""
        found = self._log.event_by_key(self._run, f"{self._key}#call{turn}.{attempt}#outcome")
        return found.event.charged_amount if found and isinstance(found.event, CallCompleted) else Amount()

    async def begin(self, role: str, tools: Sequence[str], turns: int) -> None:
        """Log that the session begins, if it is not logged yet."""
        if self._progress() is None:
            model = model_of(self._state(), self._key) or ""
            started = SessionStarted(
                key=str(self._key), role=role, model=model, tools=tuple(tools), turns=turns
            )
            await self._append(started)

    async def converse(
        self, role: str, fill: FillPrompt, tools: Sequence[ToolDefinition], dialogue: Sequence[DialogueStep]
    ) -> ModelTurn:
        """Return the next answer, bought or found in the log."""
        assert self._calls is not None
        return await self._calls.converse(role, fill, tools, dialogue)

    async def end(self, reason: SessionEndReason, detail: str, submitted: str | None) -> None:
        """Log that the session is over, if it is not logged yet."""
        progress = self._progress()
        if progress is None or progress.ended is not None:
            return
        effect = self._state().open[str(self._key)]
        turns = len(progress.steps) if progress.by_agent else len(effect.calls)
        source = submitted.encode() if submitted is not None else None
        ended = SessionEnded(
            key=str(self._key),
            reason=reason,
            detail=detail,
            turns=turns,
            submitted=digest_of(source) if source is not None else None,
        )
        await self._append(ended, blobs=(source,) if source is not None else ())

    # --- tool calls --------------------------------------------------------------------------------

    def find_past_call(self, turn: int, number: int) -> PastCall | None:
        """Return a call that is in the log with its outcome."""
        step = self._find_step(turn, number)
        name = tool_call_name(str(self._key), turn, number)
        ended = self._log.event_by_key(self._run, f"{name}#outcome")
        if step is None or step.result is None or ended is None:
            return None
        event = ended.event
        assert isinstance(event, ToolCallCompleted)
        tried = self._log.event_by_key(self._run, f"{name}#tried")
        return PastCall(
            text=self._log.get_blob(event.result).decode(),
            code=event.code,
            sources=tuple(self._log.get_blob(digest).decode() for digest in event.sources),
            judged=self._past_verdict(tried.event) if tried is not None else None,
        )

    def _find_step(self, turn: int, number: int) -> ToolStep | None:
        """Return a tool call of this run's session; one that a fork has abandoned is none."""
        progress = self._progress()
        steps = progress.steps if progress is not None else ()
        return next((step for step in steps if (step.turn, step.number) == (turn, number)), None)

    def _past_verdict(self, event: object) -> PastVerdict | None:
        if not isinstance(event, KernelTried):
            return None
        return PastVerdict(self._log.get_blob(event.source).decode(), event.evaluation, event.cache_key)

    async def start_call(self, turn: int, number: int, call: ToolCall) -> None:
        """Log that a tool call begins, again if a crash cut it off."""
        progress = self._progress()
        last = progress.steps[-1] if progress is not None and progress.steps else None
        again = last is not None and (last.turn, last.number, last.result) == (turn, number, None)
        arguments = call.arguments.encode()
        self._step, self._began = (turn, number), time.monotonic()
        started = ToolCallStarted(
            key=str(self._key),
            turn=turn,
            number=number,
            tool=call.name,
            arguments=digest_of(arguments),
            delivery=last.delivery + 1 if again and last is not None else 1,
        )
        await self._append(started, blobs=(arguments,))

    async def complete_call(self, turn: int, number: int, call: ToolCall, made: PastCall) -> None:
        """Log what came of a tool call."""
        crash_point("tool.answered")
        text = made.text.encode()
        kernels = [source.encode() for source in made.sources]
        completed = ToolCallCompleted(
            key=str(self._key),
            turn=turn,
            number=number,
            tool=call.name,
            result=digest_of(text),
            code=made.code,
            sources=tuple(map(digest_of, kernels)),
            ms=round((time.monotonic() - self._began) * 1000, 3),
        )
        await self._append(completed, blobs=(text, *kernels))

    # --- kernels -----------------------------------------------------------------------------------

    async def explain(self, source: str, topics: Sequence[str]) -> KernelExplanation | RefusedKernel:
        """Check a kernel's program and explain its predicted latency."""
        state = self._state()
        data = source.encode()
        request = ExplanationRequest(
            author=self._author(state),
            source=digest_of(data),
            problem=state.problem,
            size=state.config.size,
            target=state.config.target,
            topics=tuple(topics),
        )
        blobs = SourceBlobs(self._log, digest_of(data), data)
        found = await self._runner.explain_kernel(self._run, self._key, request, blobs)
        if isinstance(found, JudgeOutcome):
            return RefusedKernel(verdict=found.verdict, stage=found.stage, error=found.error)
        return found

    async def evaluate(self, source: str) -> LabVerdict:
        """Judge a kernel as the run judges proposals, or reuse the verdict that the log has."""
        data, state = source.encode(), self._state()
        if (known := self._known_here(digest_of(data))) is not None:
            return self._lab_verdict(known, {})
        found: list[FoundVerdict] = []

        async def record(verdict: FoundVerdict, beside: Iterable[NewEvent]) -> None:
            found.append(verdict)
            await self._record_verdict(data, verdict, beside)

        request = self._request(state, data)
        blobs = SourceBlobs(self._log, digest_of(data), data)
        await self._runner.find_verdict(self._run, self._key, request, record, blobs=blobs)
        (verdict,) = found
        if isinstance(verdict.end, InfrastructureFailure):
            raise RoleError(verdict.end.error)
        return self._lab_verdict(
            PastVerdict(source, verdict.end.evaluation, verdict.cache_key), verdict.end.artefacts
        )

    def _request(self, state: RunState, data: bytes) -> EvaluationRequest:
        """Return the request with which the kernel would be judged if it were submitted."""
        place = state.slot_of(self._key)
        parents = {**state.parents}
        parent = parents.get(place.parent) if place is not None else None
        return make_evaluation_request(
            state,
            self._key,
            digest_of(data),
            self._author(state),
            level=Level.SLICES,
            parent=parent,
        )

    def _author(self, state: RunState) -> str:
        return model_of(state, self._key) or ""

    def _known_here(self, source: str) -> PastVerdict | None:
        """Return the verdict that the call under way has logged before a crash."""
        step = self._find_step(*self._step)
        if step is None or step.tried is None or step.tried.source != source:
            return None
        name = tool_call_name(str(self._key), *self._step)
        tried = self._log.event_by_key(self._run, f"{name}#tried")
        return self._past_verdict(tried.event) if tried is not None else None

    def _lab_verdict(self, known: PastVerdict, artefacts: Mapping[str, bytes]) -> LabVerdict:
        digest = known.evaluation.profile
        profile: Any = {}
        if digest is not None:
            profile = json.loads(artefacts[digest] if digest in artefacts else self._log.get_blob(digest))
        return LabVerdict(known.evaluation, profile, known.cache_key)

    async def _record_verdict(self, source: bytes, found: FoundVerdict, beside: Iterable[NewEvent]) -> None:
        if isinstance(found.end, InfrastructureFailure):
            if events := [*beside]:
                await self._log.append(events)
            return
        turn, number = self._step
        tried = KernelTried(
            key=str(self._key),
            turn=turn,
            number=number,
            source=digest_of(source),
            evaluation=found.end.evaluation,
            cache_key=found.cache_key,
            cached_from=found.cached_from,
            stage_ms=dict(found.end.stage_ms),
            device_seconds=found.end.device_seconds,
            where=found.end.where,
        )
        await self._append(tried, beside=beside, blobs=(source, *found.end.artefacts.values()))

    # --- the log -----------------------------------------------------------------------------------

    def _state(self) -> RunState:
        return self._log.run_state(self._run)

    def _progress(self) -> SessionProgress | None:
        effect = self._state().open.get(str(self._key))
        if effect is None:
            raise EffectDeferred  # the run is over
        return effect.session

    async def _append(
        self, event: Any, *, beside: Iterable[NewEvent] = (), blobs: Sequence[bytes] = ()
    ) -> None:
        self._progress()
        await self._log.append([NewEvent(self._run, event), *beside], blobs=blobs)
