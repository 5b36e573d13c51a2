"""The sessions of a kernel for the page: turns with their tool calls, every text of a bounded length."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from agentctl.page.json_responses import shorten_text
from agentctl.views.candidate import load_candidate
from agentctl.views.session import SessionView, ToolCallView, TurnView, load_planning, load_session
from state.reader import LogReader

MOST_TURNS = 200
"""Turns that are shown; a run allows a session fewer unless it is told otherwise."""

MOST_CHARS = 20_000
"""Characters of one text: what a model says, an argument, what a tool answers."""

MOST_ARGUMENTS = 20
MOST_NAME = 80
"""Arguments of a call, and characters of the name of one."""


@dataclass(frozen=True, slots=True)
class DialogueCall:
    """A tool call. `arguments` are names and texts; one that is not JSON as it should be has no name."""

    tool: str
    arguments: tuple[tuple[str, str], ...]
    result: str | None
    code: str | None
    ms: float | None
    verdict: str | None
    latency_ms: float | None
    place: str


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """An attempt at a turn. `number` counts turns from 1, `attempt` the attempts at one.

    `text` is what the model said, or why no answer came. A coding agent's turn has neither text nor cost.
    """

    number: int
    attempt: int
    outcome: str
    text: str
    ms: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    estimated: bool
    cost_usd: float | None
    place: str | None
    calls: tuple[DialogueCall, ...]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A session with the turns that are shown of it; `left_out` is how many more there were."""

    session: SessionView | None
    turns: tuple[DialogueTurn, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class SessionPage(Dialogue):
    """The session that wrote `kernel`, None if none was held; `planning` is that of its planner."""

    kernel: str = ""
    planning: Dialogue | None = None


def session_page(reader: LogReader, run: str, name: str, *, at: int | None = None) -> SessionPage:
    """Return a candidate's sessions; with `at`, as they were after that event of the run.

    Raises:
        DaemonError: the run has no such candidate (yet), or no such event.
        StreamUnknown: there is no such run.
    """
    kernel = load_candidate(reader, run, name, at=at).id
    written = _show_dialogue(load_session(reader, run, kernel, at=at))
    planned = load_planning(reader, run, kernel, at=at)
    return SessionPage(
        session=written.session,
        turns=written.turns,
        left_out=written.left_out,
        kernel=kernel,
        planning=None if planned is None else _show_dialogue(planned),
    )


def _show_dialogue(held: SessionView | None) -> Dialogue:
    if held is None:
        return Dialogue(None)
    shown = held.turns[:MOST_TURNS]
    return Dialogue(
        session=replace(held, turns=()),
        turns=tuple(_show_turn(place, one) for place, one in enumerate(shown, start=1)),
        left_out=len(held.turns) - len(shown),
    )


def _show_turn(place: int, turn: TurnView) -> DialogueTurn:
    said = turn.exchange
    calls = tuple(map(_show_call, turn.calls))
    if said is None:
        return DialogueTurn(place, 1, "answered", "", None, None, None, None, False, None, None, calls)
    return DialogueTurn(
        number=said.question + 1,
        attempt=said.attempt,
        outcome=said.outcome,
        text=shorten_text((said.text or said.said or "").strip(), MOST_CHARS),
        ms=said.ms,
        input_tokens=said.input_tokens,
        cached_tokens=said.cached_tokens,
        output_tokens=said.output_tokens,
        estimated=said.estimated,
        cost_usd=said.cost_usd,
        place=said.place,
        calls=calls,
    )


def _show_call(call: ToolCallView) -> DialogueCall:
    return DialogueCall(
        tool=call.tool,
        arguments=tuple(_split_arguments(call.arguments)),
        result=None if call.result is None else shorten_text(call.result.strip(), MOST_CHARS),
        code=call.code,
        ms=call.ms,
        verdict=call.verdict,
        latency_ms=call.latency_ms,
        place=call.place,
    )


def _split_arguments(text: str) -> list[tuple[str, str]]:
    """Return a call's arguments one by one, texts as they are, so that a source reads as a source."""
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return [("", shorten_text(text, MOST_CHARS))]
    texts = {
        name[:MOST_NAME]: value if isinstance(value, str) else json.dumps(value, indent=2)
        for name, value in [*found.items()][:MOST_ARGUMENTS]
    }
    return [(name, shorten_text(value, MOST_CHARS)) for name, value in texts.items()]
