"""The prompts that models received for a kernel, and their answers, exactly as sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from state.errors import BlobMissing
from state.events import (
    CallCompleted,
    CallEnded,
    CallFailed,
    CallLost,
    CallStarted,
    KernelProposed,
    PlanProposed,
)
from state.model import EffectKey, Role
from state.reader import LogReader
from state.records import RecordedEvent

SESSION_ROLES = ("session", "planner_session")
"""The prompts of sessions; their answers are turns."""

MODEL_ROLES = (Role.PLANNER, Role.EXECUTOR, Role.SUMMARIZER, Role.REFLECTOR)
"""The roles whose effects may ask models, in order."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One attempt at an answer. `role` names the prompt; `attempt` counts from 1, `question` from 0.

    `guide` is the general part of the prompt and `case` the specific part; None if they are no longer in
    this log. `text` is the prose of an answer, which in a session has tool calls besides. `outcome` is
    answered, lost, waits or a kind of failure; `said` is the error of a failure. Tokens are `estimated` where
    the endpoint counted none. `cost_usd` is None if the price is unknown. `place` is the attempt's first
    event, as RUN@SEQ.
    """

    role: str
    model: str
    question: int
    attempt: int
    place: str
    time: str
    guide: str | None
    case: str | None
    outcome: str
    answer: str | None
    text: str | None
    said: str | None
    ms: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    estimated: bool
    cost_usd: float | None


def load_exchanges(
    reader: LogReader, run: str, candidate: str, *, at: int | None = None
) -> tuple[Exchange, ...]:
    """Return the exchanges for a candidate of a run, its plan first; empty if no model was asked.

    With `at`, return those that had begun by that event of the run.
    """
    place = EffectKey.parse(f"{candidate}.{Role.EXECUTOR}")
    plan = place._replace(implementation=0, repair=0)
    found: list[Exchange] = []
    for role in MODEL_ROLES:
        key = (plan if role is Role.PLANNER else place).for_role(role)
        if role in (Role.PLANNER, Role.EXECUTOR):
            key = find_asked_key(reader, run, key, at=at)
        found += (_build_exchange(reader, *pair) for pair in _call_attempts(reader, run, key, at=at))
    return tuple(found)


def executor_key(reader: LogReader, run: str, candidate: str, *, at: int | None = None) -> EffectKey:
    """Return the effect that wrote a kernel: its own, or the session that submitted it besides another."""
    return find_asked_key(reader, run, EffectKey.parse(f"{candidate}.{Role.EXECUTOR}"), at=at)


def planner_key(reader: LogReader, run: str, candidate: str, *, at: int | None = None) -> EffectKey:
    """Return the effect that planned a kernel: its plan's own, or the session that submitted that besides."""
    place = EffectKey.parse(f"{candidate}.{Role.PLANNER}")._replace(implementation=0, repair=0)
    return find_asked_key(reader, run, place, at=at)


def find_asked_key(reader: LogReader, run: str, own: EffectKey, *, at: int | None = None) -> EffectKey:
    """Return the effect that asked a model for an outcome: its own, or that of a session beside it."""
    item = reader.event_by_key(run, f"{own}#outcome", at)
    found = item.event if item is not None else None
    beside = found.beside if isinstance(found, KernelProposed | PlanProposed) else None
    return own if beside is None else EffectKey.parse(beside)


def _call_attempts(
    reader: LogReader, run: str, key: EffectKey, *, at: int | None
) -> Iterator[tuple[RecordedEvent, RecordedEvent | None]]:
    """Yield the attempts of an effect, question by question, each with its outcome if it has one."""
    question = 0
    while reader.event_by_key(run, f"{key}#call{question}.1", at) is not None:
        attempt = 1
        while (item := reader.event_by_key(run, f"{key}#call{question}.{attempt}", at)) is not None:
            yield item, reader.event_by_key(run, f"{key}#call{question}.{attempt}#outcome", at)
            attempt += 1
        question += 1


def _build_exchange(reader: LogReader, item: RecordedEvent, ended: RecordedEvent | None) -> Exchange:
    begun = item.event
    assert isinstance(begun, CallStarted)
    event = ended.event if ended else None
    guide, case = _request_texts(reader, begun.request)
    tokens = event.tokens if isinstance(event, CallEnded) else None
    answer = _load_text(reader, event.answer) if isinstance(event, CallCompleted) else None
    return Exchange(
        role=begun.role,
        model=begun.model,
        question=begun.call,
        attempt=begun.attempt,
        place=f"{item.stream}@{item.run_seq}",
        time=item.time.isoformat(timespec="seconds"),
        guide=guide,
        case=case,
        outcome=_call_outcome(event),
        answer=answer,
        text=_answer_prose(answer, in_session=begun.role in SESSION_ROLES),
        said=_failure_text(event),
        ms=event.ms if isinstance(event, (CallCompleted, CallFailed)) else None,
        input_tokens=tokens.input if tokens else None,
        cached_tokens=tokens.cached if tokens else None,
        output_tokens=tokens.output if tokens else None,
        estimated=tokens is not None and tokens.estimated,
        cost_usd=event.cost_usd if isinstance(event, CallEnded) else None,
    )


def _request_texts(reader: LogReader, request: str) -> tuple[str | None, str | None]:
    """Return the general and the specific part of a prompt."""
    from daemon.calls.request_rendering import load_request

    try:
        found = load_request(reader.get_blob(request), reader.get_blob)
    except (BlobMissing, ValueError):  # removed from the log, or written by another version
        return None, None
    return "".join(part.text for part in found.guide), "".join(part.text for part in found.case)


def _answer_prose(answer: str | None, *, in_session: bool) -> str | None:
    """Return an answer without its calls; in a session it is stored as a whole turn, in JSON."""
    if answer is None or not in_session:
        return answer
    found = json.loads(answer)
    return str(found.get("text", ""))


def _load_text(reader: LogReader, digest: str) -> str | None:
    try:
        return reader.get_blob(digest).decode(errors="replace")
    except BlobMissing:
        return None


def _call_outcome(event: object) -> str:
    match event:
        case CallCompleted():
            return "answered"
        case CallFailed(kind=kind):
            return kind
        case CallLost():
            return "lost"
    return "waits"


def _failure_text(event: object) -> str | None:
    match event:
        case CallFailed(error=error):
            return error.message
        case CallLost(reason=reason):
            return reason
    return None
