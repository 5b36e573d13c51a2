"""The sessions of a kernel and of its plan as dialogues: turns, tool calls, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentctl.views.exchange import Exchange, executor_key, load_exchanges, planner_key
from state.errors import BlobMissing
from state.events import KernelTried, SessionEnded, SessionStarted, ToolCallCompleted, ToolCallStarted
from state.events.session import tool_call_name
from state.model import EffectKey
from state.reader import LogReader


@dataclass(frozen=True, slots=True)
class ToolCallView:
    """One tool call. `result` is None while it runs; `code` is that of a refusal.

    `verdict` and `latency_ms` are of the kernel that the call had judged.
    """

    tool: str
    arguments: str
    result: str | None
    code: str | None
    ms: float | None
    verdict: str | None
    latency_ms: float | None
    place: str


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn: the exchange that bought it, and its tool calls in order.

    `exchange` is None where a coding agent called the tool; what its own model said is not in the log.
    """

    exchange: Exchange | None
    calls: tuple[ToolCallView, ...]


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session; `reason` is None while it goes on. `place` is its first event, as RUN@SEQ.

    `candidate` is the first kernel of the session; it may have submitted others besides, which share it.
    Tokens and US$ are those of all attempts; `cost_usd` is None if a price is unknown, and `estimated` says
    that the tokens of some answers were estimated.
    """

    candidate: str
    role: str
    model: str
    tools: tuple[str, ...]
    most_turns: int
    turns_taken: int
    reason: str | None
    detail: str
    submitted: str | None
    place: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    estimated: bool
    cost_usd: float | None
    turns: tuple[TurnView, ...]


def load_session(reader: LogReader, run: str, candidate: str, *, at: int | None = None) -> SessionView | None:
    """Return the session that wrote a kernel, or should have; None if none was held.

    With `at`, return it as it was after that event of the run.
    """
    return _load_dialogue(reader, run, executor_key(reader, run, candidate, at=at), at=at)


def load_planning(
    reader: LogReader, run: str, candidate: str, *, at: int | None = None
) -> SessionView | None:
    """Return the session that planned a kernel, as `load_session` does."""
    return _load_dialogue(reader, run, planner_key(reader, run, candidate, at=at), at=at)


def _load_dialogue(reader: LogReader, run: str, key: EffectKey, *, at: int | None) -> SessionView | None:
    begun = reader.event_by_key(run, f"{key}#session", at)
    if begun is None or not isinstance(begun.event, SessionStarted):
        return None
    ended = reader.event_by_key(run, f"{key}#session#end", at)
    end = ended.event if ended is not None and isinstance(ended.event, SessionEnded) else None
    if begun.event.by_agent:
        turns = tuple(_agent_turns(reader, run, key, at=at))
    else:
        asked = load_exchanges(reader, run, key.candidate_id, at=at)
        own = [one for one in asked if one.role == begun.event.role]
        turns = tuple(_load_turn(reader, run, key, exchange=one, at=at) for one in own)
    bought = [turn.exchange for turn in turns if turn.exchange is not None]
    costs = [one.cost_usd for one in bought if one.outcome != "waits"]
    return SessionView(
        candidate=key.candidate_id,
        role=begun.event.role,
        model=begun.event.model,
        tools=begun.event.tools,
        most_turns=begun.event.turns,
        turns_taken=len({one.question for one in bought}) if bought else len(turns),
        reason=end.reason.value if end else None,
        detail=end.detail if end else "",
        submitted=end.submitted if end else None,
        place=begun.event_id,
        input_tokens=sum(one.input_tokens or 0 for one in bought),
        cached_tokens=sum(one.cached_tokens or 0 for one in bought),
        output_tokens=sum(one.output_tokens or 0 for one in bought),
        estimated=any(one.estimated for one in bought),
        cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
        turns=turns,
    )


def _load_turn(
    reader: LogReader, run: str, key: EffectKey, *, exchange: Exchange, at: int | None
) -> TurnView:
    answered = exchange.outcome == "answered"
    return TurnView(
        exchange, tuple(_load_calls(reader, run, key, turn=exchange.question, at=at)) if answered else ()
    )


def _agent_turns(reader: LogReader, run: str, key: EffectKey, *, at: int | None) -> Iterator[TurnView]:
    """Yield the turns of a coding agent: each is one tool call."""
    turn = 0
    while calls := tuple(_load_calls(reader, run, key, turn=turn, at=at)):
        yield TurnView(None, calls)
        turn += 1


def _load_calls(
    reader: LogReader, run: str, key: EffectKey, *, turn: int, at: int | None
) -> Iterator[ToolCallView]:
    number = 0
    while True:
        name = tool_call_name(str(key), turn, number)
        begun = reader.event_by_key(run, f"{name}#start1", at)
        if begun is None or not isinstance(begun.event, ToolCallStarted):
            return
        ended, tried = (reader.event_by_key(run, f"{name}#{what}", at) for what in ("outcome", "tried"))
        end = ended.event if ended is not None and isinstance(ended.event, ToolCallCompleted) else None
        found = tried.event.evaluation if tried and isinstance(tried.event, KernelTried) else None
        yield ToolCallView(
            tool=begun.event.tool,
            arguments=_read_text(reader, begun.event.arguments),
            result=_read_text(reader, end.result) if end is not None else None,
            code=end.code if end is not None else None,
            ms=end.ms if end is not None else None,
            verdict=found.verdict.value if found else None,
            latency_ms=found.benchmark.latency_ms if found and found.benchmark else None,
            place=begun.event_id,
        )
        number += 1


def _read_text(reader: LogReader, digest: str) -> str:
    try:
        return reader.get_blob(digest).decode(errors="replace")
    except BlobMissing:
        return "(not in this log any more)"
