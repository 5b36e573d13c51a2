"""The session of a kernel as a dialogue: each turn with its text, its tool calls and what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentctl.views.exchange import Exchange, load_exchanges
from state.errors import BlobMissing
from state.events import KernelTried, SessionEnded, SessionStarted, ToolCallCompleted, ToolCallStarted
from state.events.session import tool_call_name
from state.model import EffectKey, Role
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
    """One turn: the exchange that bought it, and its tool calls in order."""

    exchange: Exchange
    calls: tuple[ToolCallView, ...]


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session; `reason` is None while it goes on. `place` is its first event, as RUN@SEQ."""

    role: str
    model: str
    tools: tuple[str, ...]
    most_turns: int
    reason: str | None
    detail: str
    submitted: str | None
    place: str
    turns: tuple[TurnView, ...]


def load_session(reader: LogReader, run: str, candidate: str) -> SessionView | None:
    """Return the session that wrote a kernel, or should have; None if none was held."""
    key = EffectKey.parse(f"{candidate}.{Role.EXECUTOR}")
    begun = reader.event_by_key(run, f"{key}#session")
    if begun is None or not isinstance(begun.event, SessionStarted):
        return None
    ended = reader.event_by_key(run, f"{key}#session#end")
    end = ended.event if ended is not None and isinstance(ended.event, SessionEnded) else None
    exchanges = [one for one in load_exchanges(reader, run, candidate) if one.role == begun.event.role]
    return SessionView(
        role=begun.event.role,
        model=begun.event.model,
        tools=begun.event.tools,
        most_turns=begun.event.turns,
        reason=end.reason.value if end else None,
        detail=end.detail if end else "",
        submitted=end.submitted if end else None,
        place=begun.event_id,
        turns=tuple(
            TurnView(
                one, tuple(_load_calls(reader, run, key, one.question) if one.outcome == "answered" else ())
            )
            for one in exchanges
        ),
    )


def _load_turn(reader: LogReader, run: str, key: EffectKey, exchange: Exchange) -> TurnView:
    answered = exchange.outcome == "answered"
    return TurnView(exchange, tuple(_load_calls(reader, run, key, exchange.question)) if answered else ())


def _load_calls(reader: LogReader, run: str, key: EffectKey, turn: int) -> Iterator[ToolCallView]:
    number = 0
    while True:
        name = tool_call_name(str(key), turn, number)
        begun = reader.event_by_key(run, f"{name}#start1")
        if begun is None or not isinstance(begun.event, ToolCallStarted):
            return
        ended, tried = (reader.event_by_key(run, f"{name}#{what}") for what in ("outcome", "tried"))
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
