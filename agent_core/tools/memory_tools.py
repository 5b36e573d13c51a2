"""Tools that read what was learnt: history (of this run), recall (also of other runs of the home)."""

from __future__ import annotations

import re

from pydantic import Field

from agent_core.roles.llm import memory
from agent_core.roles.llm.quoting import single_line
from agent_core.tools.answers import ToolAnswer, ToolArguments, ToolFault, ToolOutcome
from agent_core.tools.workbench import Workbench

_MOST_ATTEMPTS = 12
_MOST_ITEMS = 3
_SHOWN = 500
_WORD = re.compile(r"[a-z0-9_]{3,}")


class HistoryArguments(ToolArguments):
    """Arguments of `history`."""

    query: str = Field(
        default="", description="a technique, a kernel's id or a version; empty: all tries on this kernel"
    )


class HistoryAnswer(ToolAnswer):
    """Tries of this run and of this session, the newest first."""

    tries: tuple[str, ...]
    left: int = 0

    def render(self) -> str:
        """Return one line for each try."""
        return "\n".join([*self.tries, *([f"({self.left} more)"] if self.left else [])])


async def history(bench: Workbench, said: HistoryArguments) -> ToolOutcome:
    """Tell what was tried and what came of it."""
    word = said.query.strip().lower()
    here = [
        f"- {version}, in this session: {_verdict_text(bench, version)}" for version in reversed(bench.judged)
    ]
    parent = bench.task.parent.id
    tries = [one for one in reversed(bench.context.attempts) if word or one.parent == parent]
    lines = here + [memory.render_attempt(one) for one in tries]
    kept = [line for line in lines if word in line.lower()]
    if word and not kept:
        kept = [
            memory.render_attempt(one)
            for one in tries
            if word in (one.candidate.lower(), one.parent.lower(), one.technique.lower())
        ]
    if not kept:
        what = f"about {said.query!r}" if word else "on this kernel"
        raise ToolFault("nothing_found", f"nothing was tried {what}", "`recall` also knows other runs.")
    most = len(kept) if said.more else _MOST_ATTEMPTS
    return ToolOutcome(HistoryAnswer(tries=tuple(kept[:most]), left=max(0, len(kept) - most)))


def _verdict_text(bench: Workbench, version: str) -> str:
    found = bench.judged[version].evaluation
    if found.is_correct and found.benchmark is not None:
        return f"{bench.task.parent.latency_ms / found.benchmark.latency_ms:.3f} times as fast as v0"
    error = f": {found.error.code}: {single_line(found.error.message, 160)}" if found.error else ""
    return f"{found.verdict.value}{error}"


class RecallArguments(ToolArguments):
    """Arguments of `recall`."""

    query: str = Field(description="words: a technique, an instruction, a bottleneck, an effect")


class RecallAnswer(ToolAnswer):
    """What was learnt that fits, the nearest first; each with the id under which the log has it."""

    items: tuple[tuple[str, str], ...]
    short: bool = True

    def render(self) -> str:
        """Return the items; long ones are cut in a short answer."""
        texts = [
            text if not self.short or len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
            for _, text in self.items
        ]
        return "\n\n".join(text.strip() for text in texts)


async def recall(bench: Workbench, said: RecallArguments) -> ToolOutcome:
    """Tell what this run and earlier ones learnt: experiences, sequences that paid, lessons."""
    items = memory.memory_items(bench.context)
    notes = memory.render_reflections(bench.context, bench.task.parent.bottleneck, bench.task.parent.round)
    found = [(one.id, one.text) for one in items] + [("", text) for text in notes.pieces]
    words = frozenset(_WORD.findall(said.query.lower()))
    rated = [
        (len(words & frozenset(_WORD.findall(text.lower()))), item) for item in found for text in (item[1],)
    ]
    kept = [item for score, item in sorted(rated, key=lambda pair: -pair[0]) if score]
    if not kept:
        there = f"{len(found)} things were learnt" if found else "nothing was learnt yet"
        raise ToolFault(
            "nothing_found", f"{there}, none about {said.query!r}", "`lookup` knows the documentation."
        )
    most = len(kept) if said.more else _MOST_ITEMS
    return ToolOutcome(RecallAnswer(items=tuple(kept[:most]), short=not said.more))
