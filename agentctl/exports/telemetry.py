"""A run as OpenTelemetry spans: the run, its rounds, their effects, and each question to a model.

The attributes of questions follow the GenAI semantic conventions. Ids are derived from the log, so every
export of a run gives the same spans. Prompts and answers are included only if you ask for them. Keys,
addresses of endpoints, hosts and paths are never included. `otlp.py` sends the spans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from daemon.calls.request_rendering import load_request
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
from state.records import ProgressCallback, RecordedEvent

AttributeValue = str | bool | int | float | tuple[str, ...]

SCOPE = "nki-kernel-agent"
PREFIX = "nki_agent"
"""The prefix of attributes that no convention names."""

CHAT = "chat"

SPAN_EVENT_TYPES = (
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
"""The span name of each role."""


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span. Times are ns since 1970; `error` is why it failed. A question to a model is a client span."""

    id: int
    trace: int
    parent: int | None
    name: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, AttributeValue]
    client: bool = False
    error: str | None = None


def iterate_spans(
    reader: LogReader, run: str, *, prompts: bool = False, progress: ProgressCallback | None = None
) -> Iterator[TraceSpan]:
    """Yield the spans of a run's own events, each when it has ended, and the run's own span last.

    A span that has not ended gets the time of the run's latest event. With `prompts`, questions include
    the texts of prompts and answers.

    Raises:
        StreamUnknown: there is no such run.
    """
    walk = _SpanWalk(run, reader.get_blob, prompts=prompts)
    for item in reader.iterate_events(run, SPAN_EVENT_TYPES, progress=progress):
        if item.stream == run:
            yield from walk.add_event(item)
    yield from walk.finish_spans()


def derive_id(*parts: object, bits: int) -> int:
    """Return an id derived from `parts`; never 0, which would mean no id."""
    digest = sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[: bits // 8]) or 1


@dataclass(slots=True)
class _OpenSpan:
    """A span that has not ended."""

    begin_ns: int
    parent: int
    attributes: dict[str, AttributeValue]


@dataclass(slots=True)
class _SpanWalk:
    """One pass over a run's events."""

    run: str
    blob: Callable[[str], bytes]
    prompts: bool
    root: _OpenSpan | None = None
    ended: str | None = None
    latest_ns: int = 0
    round: int = 0
    rounds: dict[int, _OpenSpan] = field(default_factory=dict)
    effects: dict[str, _OpenSpan] = field(default_factory=dict)
    calls: dict[str, tuple[_OpenSpan, CallStarted]] = field(default_factory=dict)

    def add_event(self, item: RecordedEvent) -> Iterator[TraceSpan]:
        """Process the next event; yield the spans that it ends."""
        now = self.latest_ns = max(self.latest_ns, item.ts_us * 1000)
        match item.event:
            case RunCreated() | RunForked() as event:
                self.root = _OpenSpan(now, 0, _run_attributes(self.run, event))
            case RunCompleted(reason=reason) | RunCancelled(reason=reason):
                self.ended = str(reason)
            case RoundStarted(round=round_):
                self.rounds[round_] = _OpenSpan(now, self._root_id, {f"{PREFIX}.round": round_})
            case RoundCompleted(round=round_) if round_ in self.rounds:
                yield self._build_span(f"round {round_}", self.rounds.pop(round_), ("round", round_), now)
            case EffectStarted() as event:
                self._begin_effect(event, now)
            case CallStarted() as event:
                self.calls[_call_name(event)] = (_OpenSpan(now, self._effect_id(event.key), {}), event)
            case CallEnded() as event if _call_name(event) in self.calls:
                begun, started = self.calls.pop(_call_name(event))
                yield self._call_span(begun, started, event, now=now)
            case EffectEnded() as event:
                yield from self._end_effect(event, now)

    def finish_spans(self) -> Iterator[TraceSpan]:
        """Yield the spans that have not ended, then the run's."""
        for key, begun in self.effects.items():
            yield self._build_span(_effect_name(key), begun, ("effect", key), self.latest_ns, unended=True)
        for round_, begun in self.rounds.items():
            name = f"round {round_}"
            yield self._build_span(name, begun, ("round", round_), self.latest_ns, unended=True)
        if self.root is not None:
            self.root.attributes[f"{PREFIX}.ended"] = self.ended or "not yet"
            yield self._build_span(f"run {self.run}", self.root, ("run",), self.latest_ns)

    @property
    def _root_id(self) -> int:
        return derive_id(self.run, "run", bits=64)

    def _effect_id(self, key: str) -> int:
        return derive_id(self.run, "effect", key, bits=64)

    def _build_span(
        self,
        name: str,
        begun: _OpenSpan,
        of: tuple[object, ...],
        end_ns: int,
        *,
        error: str | None = None,
        unended: bool = False,
    ) -> TraceSpan:
        return TraceSpan(
            id=derive_id(self.run, *of, bits=64),
            trace=derive_id(self.run, bits=128),
            parent=begun.parent or None,
            name=name,
            begin_ns=begun.begin_ns,
            end_ns=end_ns,
            attributes={**begun.attributes, **({f"{PREFIX}.unended": True} if unended else {})},
            error=error,
        )

    def _begin_effect(self, event: EffectStarted, now: int) -> None:
        at = effect_key(event)
        parent = derive_id(self.run, "round", at.round, bits=64) if at.round in self.rounds else self._root_id
        told: dict[str, AttributeValue] = {
            f"{PREFIX}.candidate": at.candidate_id,
            f"{PREFIX}.role": at.role.value,
            f"{PREFIX}.round": at.round,
            f"{PREFIX}.delivery": event.delivery,
        }
        self.effects[event.key] = _OpenSpan(now, parent, told)

    def _end_effect(self, event: EffectEnded, now: int) -> Iterator[TraceSpan]:
        begun = self.effects.pop(event.key, None)
        if begun is None:  # a person's kernel, which no effect produced
            return
        told, error = _outcome_attributes(event)
        begun.attributes |= told
        yield self._build_span(_effect_name(event.key), begun, ("effect", event.key), now, error=error)

    def _call_span(self, begun: _OpenSpan, started: CallStarted, event: CallEnded, *, now: int) -> TraceSpan:
        endpoint, _, model = started.model.partition("/")
        told: dict[str, AttributeValue] = {
            "gen_ai.operation.name": CHAT,
            "gen_ai.provider.name": endpoint,
            "gen_ai.request.model": model,
            "gen_ai.agent.name": started.role,
            "gen_ai.conversation.id": f"{self.run} {started.key}",
            f"{PREFIX}.call": started.call,
            f"{PREFIX}.attempt": started.attempt,
            **_usage_attributes(event),
            **_response_attributes(event),
            **self._request_attributes(started),
            **self._answer_attributes(event),
        }
        error = None
        if isinstance(event, CallFailed):
            told["error.type"] = event.kind
            error = event.kind
        elif isinstance(event, CallLost):
            told["error.type"] = error = "lost"
        return TraceSpan(
            id=derive_id(self.run, "call", _call_name(event), bits=64),
            trace=derive_id(self.run, bits=128),
            parent=begun.parent,
            name=f"{CHAT} {model}",
            begin_ns=begun.begin_ns,
            end_ns=now,
            attributes=told,
            client=True,
            error=error,
        )

    def _request_attributes(self, started: CallStarted) -> dict[str, AttributeValue]:
        """Return the attributes of a request, with its texts if they were asked for."""
        try:
            asked = load_request(self.blob(started.request), self.blob)
        except (BlobMissing, ValueError, KeyError):
            return {}
        told: dict[str, AttributeValue] = {"gen_ai.request.max_tokens": asked.max_output_tokens}
        if self.prompts:
            told["gen_ai.system_instructions"] = _text_parts([part.text for part in asked.guide])
            content = [{"type": "text", "content": part.text} for part in asked.case]
            told["gen_ai.input.messages"] = json.dumps([{"role": "user", "parts": content}])
        return told

    def _answer_attributes(self, event: CallEnded) -> dict[str, AttributeValue]:
        if not self.prompts or not isinstance(event, CallCompleted):
            return {}
        try:
            text = self.blob(event.answer).decode(errors="replace")
        except BlobMissing:
            return {}
        parts = [{"type": "text", "content": text}]
        message = {"role": "assistant", "parts": parts, "finish_reason": event.stop_reason}
        return {"gen_ai.output.messages": json.dumps([message])}


def _text_parts(texts: list[str]) -> str:
    return json.dumps([{"type": "text", "content": text} for text in texts])


def _call_name(event: CallStarted | CallEnded) -> str:
    return f"{event.key}#{event.call}.{event.attempt}"


def _effect_name(key: str) -> str:
    at = EffectKey.parse(key)
    return f"{_VERBS.get(at.role.value, at.role.value)} {at.candidate_id}"


def _run_attributes(run: str, event: Event) -> dict[str, AttributeValue]:
    told: dict[str, AttributeValue] = {f"{PREFIX}.run": run}
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


def _usage_attributes(event: CallEnded) -> dict[str, AttributeValue]:
    told: dict[str, AttributeValue] = {}
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


def _response_attributes(event: CallEnded) -> dict[str, AttributeValue]:
    told: dict[str, AttributeValue] = {}
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


def _outcome_attributes(event: EffectEnded) -> tuple[dict[str, AttributeValue], str | None]:
    """Return the outcome of an effect, and why it failed; a wrong kernel is an outcome, not a failure."""
    match event:
        case PlanProposed(plan=plan):
            return {
                f"{PREFIX}.technique": plan.technique,
                f"{PREFIX}.expected_speedup": plan.prediction.speedup,
            }, None
        case KernelProposed(author=author):
            return {f"{PREFIX}.author": author}, None
        case EvaluationCompleted(evaluation=said):
            told: dict[str, AttributeValue] = {
                f"{PREFIX}.verdict": said.verdict.value,
                f"{PREFIX}.stage": said.stage,
            }
            if said.benchmark is not None:
                told |= {
                    f"{PREFIX}.latency_ms": said.benchmark.latency_ms,
                    f"{PREFIX}.predicted": said.benchmark.predicted,
                }
            return told, None
        case PlanFailed(error=error) | ExecutionFailed(error=error) | EvaluationFailed(error=error):
            return {"error.type": error.code}, error.code
    return {}, None
