"""What a run that bought answers came to, read off its log, and the model that it asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from state.errors import NoLog, StreamUnknown
from state.events import (
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    KernelProposed,
    RunPaused,
    SessionEnded,
)
from state.fold import RunState, apply_event, state_hash
from state.model import SessionEndReason, round_usd
from state.reader import LogReader
from state.verify import verify_log
from tests.support import constants_model
from tests.support.llm_server import Asked, Refuse, Reply, Said, Script

FAULTS: tuple[Said, ...] = (
    Refuse(429, "rate_limit_error", headers={"retry-after": "0"}),
    Reply(ending="cut"),
    Refuse(401, "authentication_error"),
    Refuse(529, "overloaded_error"),
    Reply(ending="eof"),
    Refuse(429, "rate_limit_error", code="spend_limit_reached"),
    Refuse(500, "api_error"),
    Reply(ending="garbage"),
)
"""Answers without counts or without a stop reason are none of them: they may be taken, and leave a trace."""
AMBITIOUS = "ambitious"
"""The model whose sessions submit several kernels."""
TOO_LONG = {"openai": "length", "anthropic": "max_tokens"}
"""The stop reason of an answer that does not come to an end; with more room it does."""


def create_faulty_script(first: int) -> Script:
    """Return a model that knows one move; every third request has a fault, in turn from number `first` on.

    A question that gets an answer gets the same one whenever it is asked: what the faults and the kills were
    leaves no trace in it.
    """

    def answer(asked: Asked) -> Said:
        turn, left = divmod(asked.number, 3)
        if left:
            return _answer(asked)
        if turn % 4 == 3 and asked.count == 1:
            return Reply(text="and so on", stop=TOO_LONG[asked.vendor])
        return FAULTS[(first + turn - 1) % len(FAULTS)]

    return answer


def _answer(asked: Asked) -> Reply:
    if "tools" not in asked.body:
        return Reply(text=constants_model.answer_question(asked.model, asked.guide, asked.case))
    take_turn = constants_model.take_ambitious_turn if asked.model == AMBITIOUS else constants_model.take_turn
    text, calls = take_turn(asked.model, asked.guide + asked.case, asked.results, asked.turn)
    return Reply(text=text, calls=calls)


@dataclass
class Story:
    """One run from its first event to its last. `over_cap` are the events after which a cap was exceeded.

    `further` are kernels that sessions submitted besides their first, `shares_spent` the sessions that ended
    because their share of the cap was spent.
    """

    hash: str = ""
    decisions: str = ""
    ended: bool = False
    started: int = 0
    answered: int = 0
    lost: int = 0
    further: int = 0
    shares_spent: int = 0
    paused: int = 0
    bought_again: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    recovered: Counter[str] = field(default_factory=Counter)
    spent_usd: float = 0.0
    most_usd: float = 0.0
    over_cap: list[int] = field(default_factory=list)
    faults: tuple[str, ...] = ()


def read_story(home: Path, run: str, cap_usd: float) -> Story:
    """Read a run's story, folding its events one by one, and verify its log."""
    story = Story()
    state: RunState | None = None
    answers: set[tuple[str, int]] = set()
    waiting: dict[tuple[str, int], list[str]] = {}
    with LogReader.open(home) as reader:
        for item in reader.read(stream=run, limit=1_000_000):
            event = item.event
            state = apply_event(state, event)
            taken = round_usd(state.spent_usd + state.reserved_usd)
            story.most_usd = max(story.most_usd, taken)
            if taken > cap_usd:
                story.over_cap.append(item.run_seq)
            match event:
                case CallStarted(key=key, call=call):
                    story.started += 1
                    story.bought_again += (key, call) in answers
                case CallFailed(key=key, call=call, kind=kind):
                    story.failed[kind] += 1
                    waiting.setdefault((key, call), []).append(kind)
                case CallLost():
                    story.lost += 1
                case KernelProposed():
                    story.further += event.beside is not None
                case SessionEnded():
                    story.shares_spent += event.reason is SessionEndReason.BUDGET
                case RunPaused():
                    story.paused += 1
                case CallCompleted(key=key, call=call):
                    story.answered += 1
                    answers.add((key, call))
                    story.recovered.update(waiting.pop((key, call), []))
                case _:
                    pass
    assert state is not None
    story.hash, story.decisions, story.ended = state_hash(state), state.decision_digest, state.has_ended
    story.spent_usd = state.spent_usd
    report = verify_log(home)
    story.faults = tuple(map(str, report.findings)) if not report.is_ok else ()
    return story


def count_calls_in_flight(home: Path, run: str) -> int:
    """Return how many calls a home has in flight, as a kill left it."""
    try:
        with LogReader.open(home) as reader:
            state = reader.run_state(run)
    except (NoLog, StreamUnknown):  # killed before there was any
        return 0
    return sum(one.held is not None for effect in state.open.values() for one in effect.calls)
