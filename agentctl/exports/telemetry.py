"""A run as OpenTelemetry spans: the run, its rounds, what was done in them, and each question to a model.

Names of attributes of questions are those of the GenAI semantic conventions. Ids follow from the log, so
that the same run gives the same spans however often it is exported. Prompts and answers are in none unless
asked for; keys, addresses of endpoints, hosts and paths are in none at all. `otlp.py` sends them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from daemon.calls.rendering import restored
from state.errors import BlobMissing
from state.events import (
    CallCompleted,
    CallEnded,
    CallFailed,
    CallLost,
    CallStarted,
    EffectEnded,
    EffectStarted,
    EvaluationCompleted,
    EvaluationFailed,
    Event,
    ExecutionFailed,
    KernelProposed,
    PlanFailed,
    PlanProposed,
    RoundCompleted,
    RoundStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunForked,
    effect_key,
)
from state.model import EffectKey
from state.reader import LogReader
from state.records import Progress, Recorded

Value = str | bool | int | float | tuple[str, ...]

SCOPE = "nki-kernel-agent"
PREFIX = "nki_agent"
"""Of attributes that no convention names."""

CHAT = "chat"

TYPES = (
    "RunCreated", "RunForked", "RunCompleted", "RunCancelled", "RoundStarted", "RoundCompleted",
    "PredictionStarted", "PredictionBatch", "PlanStarted", "PlanProposed", "PlanFailed", "ExecutionStarted",
    "KernelProposed", "ExecutionFailed", "EvaluationStarted", "EvaluationCompleted", "EvaluationFailed",
    "SummaryStarted", "ExperienceRecorded", "ReflectionStarted", "ReflectionRecorded",
    "CallStarted", "CallCompleted", "CallFailed", "CallLost",
)  # fmt: skip

_VERBS = {
    "predictor": "look ahead",
    "planner": "plan",
    "executor": "implement",
    "evaluator": "evaluate",
    "verifier": "verify",
    "auditor": "audit",
    "summarizer": "summarize",
    "reflector": "reflect",
}
"""What each role does."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span. Times are ns since 1970; `error` is why it failed. A question to a model is a client's span."""

    id: int
    trace: int
    parent: int | None
    name: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, Value]
    client: bool = False
    error: str | None = None


def spans(
    reader: LogReader, run: str, *, prompts: bool = False, progress: Progress | None = None
) -> Iterator[Span]:
    """Yield the spans of a run's own events, each when it has ended, the run's own last.

    What has not ended yet ends with the run's latest event. With `prompts`, questions have the words of
    prompts and answers.

    Raises:
        StreamUnknown: there is no such run.
    """
    walk = _Walk(run, reader.blob, prompts=prompts)
    for item in reader.history(run, TYPES, progress=progress):
        if item.stream == run:
            yield from walk.take(item)
    yield from walk.rest()


def number(*parts: object, bits: int) -> int:
    """Return an id that follows from what it is of; never 0, which would be none."""
    digest = sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[: bits // 8]) or 1


@dataclass(slots=True)
class _Begun:
    """A span that has not ended."""

    begin_ns: int
    parent: int
    attributes: dict[str, Value]


@dataclass(slots=True)
class _Walk:
    """One pass over a run's events."""

    run: str
    blob: Callable[[str], bytes]
    prompts: bool
    root: _Begun | None = None
    ended: str | None = None
    latest_ns: int = 0
    round: int = 0
    rounds: dict[int, _Begun] = field(default_factory=dict)
    effects: dict[str, _Begun] = field(default_factory=dict)
    calls: dict[str, tuple[_Begun, CallStarted]] = field(default_factory=dict)

    def take(self, item: Recorded) -> Iterator[Span]:
        """Take the next event in; yield what it ends."""
        now = self.latest_ns = max(self.latest_ns, item.ts_us * 1000)
        match item.event:
            case RunCreated() | RunForked() as event:
                self.root = _Begun(now, 0, _run(self.run, event))
            case RunCompleted(reason=reason) | RunCancelled(reason=reason):
                self.ended = str(reason)
            case RoundStarted(round=round_):
                self.rounds[round_] = _Begun(now, self._root, {f"{PREFIX}.round": round_})
            case RoundCompleted(round=round_) if round_ in self.rounds:
                yield self._span(f"round {round_}", self.rounds.pop(round_), ("round", round_), now)
            case EffectStarted() as event:
                self._begin_effect(event, now)
            case CallStarted() as event:
                self.calls[_call(event)] = (_Begun(now, self._effect(event.key), {}), event)
            case CallEnded() as event if _call(event) in self.calls:
                begun, started = self.calls.pop(_call(event))
                yield self._asked(begun, started, event, now)
            case EffectEnded() as event:
                yield from self._end_effect(event, now)

    def rest(self) -> Iterator[Span]:
        """Yield what has not ended, and the run."""
        for key, begun in self.effects.items():
            yield self._span(_named(key), begun, ("effect", key), self.latest_ns, unended=True)
        for round_, begun in self.rounds.items():
            name = f"round {round_}"
            yield self._span(name, begun, ("round", round_), self.latest_ns, unended=True)
        if self.root is not None:
            self.root.attributes[f"{PREFIX}.ended"] = self.ended or "not yet"
            yield self._span(f"run {self.run}", self.root, ("run",), self.latest_ns)

    @property
    def _root(self) -> int:
        return number(self.run, "run", bits=64)

    def _effect(self, key: str) -> int:
        return number(self.run, "effect", key, bits=64)

    def _span(
        self,
        name: str,
        begun: _Begun,
        of: tuple[object, ...],
        end_ns: int,
        *,
        error: str | None = None,
        unended: bool = False,
    ) -> Span:
        return Span(
            id=number(self.run, *of, bits=64),
            trace=number(self.run, bits=128),
            parent=begun.parent or None,
            name=name,
            begin_ns=begun.begin_ns,
            end_ns=end_ns,
            attributes={**begun.attributes, **({f"{PREFIX}.unended": True} if unended else {})},
            error=error,
        )

    def _begin_effect(self, event: EffectStarted, now: int) -> None:
        at = effect_key(event)
        parent = number(self.run, "round", at.round, bits=64) if at.round in self.rounds else self._root
        told: dict[str, Value] = {
            f"{PREFIX}.candidate": at.candidate,
            f"{PREFIX}.role": at.role.value,
            f"{PREFIX}.round": at.round,
            f"{PREFIX}.delivery": event.delivery,
        }
        self.effects[event.key] = _Begun(now, parent, told)

    def _end_effect(self, event: EffectEnded, now: int) -> Iterator[Span]:
        begun = self.effects.pop(event.key, None)
        if begun is None:  # a person's kernel, which nothing of ours made
            return
        told, error = _outcome(event)
        begun.attributes |= told
        yield self._span(_named(event.key), begun, ("effect", event.key), now, error=error)

    def _asked(self, begun: _Begun, started: CallStarted, event: CallEnded, now: int) -> Span:
        endpoint, _, model = started.model.partition("/")
        told: dict[str, Value] = {
            "gen_ai.operation.name": CHAT,
            "gen_ai.provider.name": endpoint,
            "gen_ai.request.model": model,
            "gen_ai.agent.name": started.role,
            "gen_ai.conversation.id": f"{self.run} {started.key}",
            f"{PREFIX}.call": started.call,
            f"{PREFIX}.attempt": started.attempt,
            **_spent(event),
            **_answered(event),
            **self._request(started),
            **self._answer(event),
        }
        error = None
        if isinstance(event, CallFailed):
            told["error.type"] = event.kind
            error = event.kind
        elif isinstance(event, CallLost):
            told["error.type"] = error = "lost"
        return Span(
            id=number(self.run, "call", _call(event), bits=64),
            trace=number(self.run, bits=128),
            parent=begun.parent,
            name=f"{CHAT} {model}",
            begin_ns=begun.begin_ns,
            end_ns=now,
            attributes=told,
            client=True,
            error=error,
        )

    def _request(self, started: CallStarted) -> dict[str, Value]:
        """Return what the request says of itself, and its words if these were asked for."""
        try:
            asked = restored(self.blob(started.request), self.blob)
        except (BlobMissing, ValueError, KeyError):
            return {}
        told: dict[str, Value] = {"gen_ai.request.max_tokens": asked.max_output_tokens}
        if self.prompts:
            told["gen_ai.system_instructions"] = _words([part.text for part in asked.guide])
            content = [{"type": "text", "content": part.text} for part in asked.case]
            told["gen_ai.input.messages"] = json.dumps([{"role": "user", "parts": content}])
        return told

    def _answer(self, event: CallEnded) -> dict[str, Value]:
        if not self.prompts or not isinstance(event, CallCompleted):
            return {}
        try:
            text = self.blob(event.answer).decode(errors="replace")
        except BlobMissing:
            return {}
        parts = [{"type": "text", "content": text}]
        message = {"role": "assistant", "parts": parts, "finish_reason": event.stop_reason}
        return {"gen_ai.output.messages": json.dumps([message])}


def _words(texts: list[str]) -> str:
    return json.dumps([{"type": "text", "content": text} for text in texts])


def _call(event: CallStarted | CallEnded) -> str:
    return f"{event.key}#{event.call}.{event.attempt}"


def _named(key: str) -> str:
    at = EffectKey.parse(key)
    return f"{_VERBS.get(at.role.value, at.role.value)} {at.candidate}"


def _run(run: str, event: Event) -> dict[str, Value]:
    told: dict[str, Value] = {f"{PREFIX}.run": run}
    if isinstance(event, RunCreated):
        config = event.config
        told |= {
            f"{PREFIX}.problem": event.problem.name,
            f"{PREFIX}.size": config.size,
            f"{PREFIX}.target": config.target,
            f"{PREFIX}.seed": config.seed,
            f"{PREFIX}.toolchain": event.toolchain,
            f"{PREFIX}.planners": config.planner,
        }
    elif isinstance(event, RunForked):
        told[f"{PREFIX}.parent"] = f"{event.parent}@{event.parent_seq}"
    return told


def _spent(event: CallEnded) -> dict[str, Value]:
    told: dict[str, Value] = {}
    if event.tokens is not None:
        told |= {
            "gen_ai.usage.input_tokens": event.tokens.input,
            "gen_ai.usage.output_tokens": event.tokens.output,
            "gen_ai.usage.cache_read.input_tokens": event.tokens.cached,
            "gen_ai.usage.cache_creation.input_tokens": event.tokens.written,
        }
    if event.cost_usd is not None:
        told[f"{PREFIX}.cost_usd"] = event.cost_usd
    return told


def _answered(event: CallEnded) -> dict[str, Value]:
    told: dict[str, Value] = {}
    if isinstance(event, CallCompleted):
        told |= {
            "gen_ai.response.model": event.answered_by,
            "gen_ai.response.finish_reasons": (event.stop_reason,),
        }
    if isinstance(event, CallFailed) and event.status is not None:
        told["http.response.status_code"] = event.status
    if isinstance(event, (CallCompleted, CallFailed)) and event.request_id:
        told[f"{PREFIX}.request_id"] = event.request_id
    return told


def _outcome(event: EffectEnded) -> tuple[dict[str, Value], str | None]:
    """Return what an effect came to, and why it failed; a wrong kernel is an outcome, no failure."""
    match event:
        case PlanProposed(plan=plan):
            return {
                f"{PREFIX}.technique": plan.technique,
                f"{PREFIX}.expected_speedup": plan.prediction.speedup,
            }, None
        case KernelProposed(author=author):
            return {f"{PREFIX}.author": author}, None
        case EvaluationCompleted(evaluation=said):
            told: dict[str, Value] = {f"{PREFIX}.verdict": said.verdict.value, f"{PREFIX}.stage": said.stage}
            if said.benchmark is not None:
                told |= {
                    f"{PREFIX}.latency_ms": said.benchmark.latency_ms,
                    f"{PREFIX}.predicted": said.benchmark.predicted,
                }
            return told, None
        case PlanFailed(error=error) | ExecutionFailed(error=error) | EvaluationFailed(error=error):
            return {"error.type": error.code}, error.code
    return {}, None
