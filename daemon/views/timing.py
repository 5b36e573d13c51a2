"""Where a run's time went: waiting for models, making kernels, compiling, executing, or nothing at all.

Work overlaps, so two numbers are told of each kind: how long it took in all, and in what share of the run's
time some of it was under way. Where nothing was, the run was idle: paused, interrupted, or deciding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from state.events import (
    CallEnded,
    CallStarted,
    EffectEnded,
    EffectStarted,
    EvaluationCompleted,
    RunForked,
    effect_key,
)
from state.model import JUDGES
from state.reader import LogReader
from state.records import Recorded

PAGE = 1000

Span = tuple[int, int]
"""From and to, in microseconds."""

LLM, PROPOSE, COMPILE, EXECUTE, IDLE = "llm", "propose", "compile", "execute", "idle"

KINDS: Mapping[str, str] = {
    LLM: "waiting for models",
    PROPOSE: "planning and writing kernels, without models",
    COMPILE: "checking, tracing and compiling them",
    EXECUTE: "running, comparing and timing them",
    IDLE: "nothing under way",
}

EXECUTING = frozenset({"references", "numerics", "identity", "timing", "profile", "execute", "benchmark"})
"""Stages of an evaluation after which there is a program: what comes before is compiling."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work. `seconds` are those of all of it; `percent` the share of the run's time with some."""

    kind: str
    seconds: float
    percent: float | None


@dataclass(frozen=True, slots=True)
class Timing:
    """`elapsed_seconds` is from the run's first event to its latest, or its fork's own."""

    elapsed_seconds: float
    parts: tuple[Part, ...]


def timing(reader: LogReader, run: str) -> Timing:
    """Return where the time of a run went; what it has from a parent is the parent's.

    Raises:
        state.errors.StreamUnknown: there is no such run.
    """
    clock = _Clock()
    for item in _events(reader, run):
        clock.take(item)
    return clock.timing()


def together(found: Iterable[Timing]) -> Timing:
    """Return the sum of several runs' times; shares are of the sum of their times."""
    each = list(found)
    elapsed = sum(one.elapsed_seconds for one in each)
    parts = []
    for place, kind in enumerate(KINDS):
        mine = [one.parts[place] for one in each]
        busy = sum((part.percent or 0.0) * one.elapsed_seconds for part, one in zip(mine, each, strict=True))
        share = busy / elapsed if elapsed else None
        parts.append(Part(kind, sum(part.seconds for part in mine), share))
    return Timing(elapsed, tuple(parts))


class _Clock:
    """What was under way when, as events tell it."""

    def __init__(self) -> None:
        self._first_us = self._last_us = 0
        self._open: dict[str, int] = {}
        self._asked: set[str] = set()
        self._spans: dict[str, list[Span]] = {kind: [] for kind in KINDS if kind != IDLE}

    def take(self, item: Recorded) -> None:
        """Take in the run's next event."""
        event = item.event
        if isinstance(event, RunForked):
            self.__init__()  # type: ignore[misc]  # what came before is the parent's time
        self._first_us = self._first_us or item.ts_us
        self._last_us = max(self._last_us, item.ts_us)
        match event:
            case EffectStarted(key=key):
                self._open[key] = item.ts_us
            case CallStarted(key=key, call=call, attempt=attempt):
                self._open[f"{key} {call} {attempt}"] = item.ts_us
                self._asked.add(key)
            case CallEnded(key=key, call=call, attempt=attempt):
                self._close(LLM, f"{key} {call} {attempt}", item.ts_us)
            case EvaluationCompleted(key=key):
                self._judged(key, event, item.ts_us)
            case EffectEnded(key=key) if key in self._asked or effect_key(event).role in JUDGES:
                self._open.pop(key, None)
            case EffectEnded(key=key):
                self._close(PROPOSE, key, item.ts_us)

    def _close(self, kind: str, name: str, now_us: int) -> None:
        begun = self._open.pop(name, None)
        if begun is not None:
            self._spans[kind].append((begun, now_us))

    def _judged(self, key: str, event: EvaluationCompleted, now_us: int) -> None:
        """Lay the stages of an evaluation end to end before its end: until then it waited for its turn."""
        begun = self._open.pop(key, None)
        if begun is None or event.cached_from is not None:
            return
        at = max(begun, now_us - round(1e3 * sum(event.stage_ms.values())))
        for stage, took_ms in event.stage_ms.items():
            upto = min(now_us, at + round(1e3 * took_ms))
            self._spans[EXECUTE if stage in EXECUTING else COMPILE].append((at, upto))
            at = upto

    def timing(self) -> Timing:
        """Return what was taken in."""
        elapsed = self._last_us - self._first_us
        busy = _covered(span for spans in self._spans.values() for span in spans)
        parts = [
            Part(kind, sum(upto - at for at, upto in spans) / 1e6, _share(_covered(spans), elapsed))
            for kind, spans in self._spans.items()
        ]
        idle = max(0, elapsed - busy)
        return Timing(elapsed / 1e6, (*parts, Part(IDLE, idle / 1e6, _share(idle, elapsed))))


def _covered(spans: Iterable[Span]) -> int:
    """Return how long at least one of the spans was."""
    total, end = 0, 0
    for at, upto in sorted(spans):
        total += max(0, upto - max(at, end))
        end = max(end, upto)
    return total


def _share(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


_TYPES = (
    "RunCreated", "RunForked", "RunPaused", "RunResumed", "RunCompleted", "RunCancelled", "RoundStarted",
    "CallStarted", "CallCompleted", "CallFailed", "CallLost", "PredictionStarted", "PredictionBatch",
    "PlanStarted", "PlanProposed", "PlanFailed", "ExecutionStarted", "KernelProposed", "ExecutionFailed",
    "EvaluationStarted", "EvaluationCompleted", "EvaluationFailed", "SummaryStarted", "ExperienceRecorded",
    "ReflectionStarted", "ReflectionRecorded",
)  # fmt: skip
"""Events that begin or end something, and those that only say that time has passed."""


def _events(reader: LogReader, run: str) -> Iterator[Recorded]:
    after = 0
    while page := reader.read(stream=run, after=after, types=_TYPES, limit=PAGE):
        after = page[-1].seq
        yield from page
