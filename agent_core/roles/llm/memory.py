"""What a planner is told of the run so far, and of others: the weightiest first."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from agent_core.effects import LearningContext
from agent_core.roles.llm.fitting import Items
from agent_core.roles.llm.quoting import fenced, line
from stability import reflexion
from state.model import (
    Attempt,
    Experience,
    ExperienceKind,
    Grade,
    LearntExperience,
    LearntSequence,
    Reflection,
)

MOST_CHARACTERS = 3000
"""Of one experience, of which models may have written as much as they liked."""
MOST_STEPS = 12
"""Of one sequence."""
_EFFECTS = {
    ExperienceKind.POSITIVE: "made a kernel faster",
    ExperienceKind.NEGATIVE: "made a kernel slower",
}
_SURPRISES = frozenset({Grade.REFUTED, Grade.OVERSTATED, Grade.FAILED})
"""Grades that a planner learns most from: what it would have expected did not come."""


class Told(NamedTuple):
    """Something that was learnt, as a planner is told it; `id` names it in the log."""

    id: str
    text: str


def told(context: LearningContext) -> list[Told]:
    """Return the optimisation memory, strongest first, and after it what others learnt, nearest first.

    Sequences that paid in other runs come last, by where their kernel was kept.
    """
    ranked = sorted(context.memory, key=lambda one: -one.speedup)
    return [
        *(Told(one.id, _experience(one)) for one in ranked),
        *(Told(one.id, _of_others(one)) for one in context.others),
        *(Told(one.place, _sequence(one)) for one in context.sequences),
    ]


def drawn(all_: Sequence[Told], dropout_percent: float, least: int, draw: Random) -> list[Told]:
    """Return what one plan is told of it: each is left out with the given odds, at least `least` stay.

    What stays is in the order in which it was, so that the weakest still go first where room is short.
    """
    odds = [draw.random() * 100 for _ in all_]
    by_odds = sorted(range(len(all_)), key=odds.__getitem__, reverse=True)
    kept = {at for at in by_odds if odds[at] >= dropout_percent} | set(by_odds[:least])
    return [one for at, one in enumerate(all_) if at in kept]


def experiences(shown: Sequence[Told]) -> Items:
    """Return what a plan is told of what was learnt, as a value of its prompt."""
    return Items(tuple(one.text for one in shown), "(none yet)")


def reflections(context: LearningContext, bottleneck: str | None, now: int) -> Items:
    """Return the lessons: those on the kernel's bottleneck first, of these the weightiest in round `now`.

    Of what weighs the same, predictions that did not come true stand before those that did.
    """

    def rank(note: Reflection) -> tuple[bool, float, bool]:
        return note.bottleneck != bottleneck, -reflexion.weight(note, now), note.grade not in _SURPRISES

    ranked = sorted(context.reflections, key=rank)
    return Items(tuple(_reflection(note) for note in ranked), "(none yet)")


def attempts(context: LearningContext, parent: str) -> Items:
    """Return what was tried on a kernel, the newest first."""
    found = [one for one in context.attempts if one.parent == parent]
    return Items(tuple(_attempt(one) for one in reversed(found)), "(nothing)")


def _experience(one: Experience) -> str:
    head = f"### `{line(one.technique)}` {_EFFECTS[one.kind]}, {one.speedup:.3f} times between the two"
    return f"{head}\n\n{fenced(one.summary, 'text', limit=MOST_CHARACTERS)}\n"


def _of_others(one: LearntExperience) -> str:
    """Tell an experience with its origin: what it was measured on is not what is at hand."""
    found = one.about
    what = f"`{line(found.technique)}` " if found.technique else ""
    effect = _EFFECTS[found.kind] if found.kind else "made a difference"
    how = {True: " (predicted)", False: " (measured)", None: ""}[found.predicted]
    gain = f", {found.speedup:.3f} times between the two{how}" if found.speedup else ""
    place = (
        f"problem {line(found.problem)}, {line(found.tags.target)}" if found.problem else "unknown problem"
    )
    head = f"### Elsewhere: {what}{effect}{gain}; {place}; {_source(one)}"
    return f"{head}\n\n{fenced(one.summary, 'text', limit=MOST_CHARACTERS)}\n"


def _source(one: LearntExperience) -> str:
    if one.imported:
        return f"imported from a file, {line(one.origin)}"
    return f"run {line(one.origin)}" if one.origin else "before this run judged by something else"


def _sequence(one: LearntSequence) -> str:
    """Tell what led from a first kernel to a best one, step by step, with the origin."""
    how = {True: " (predicted)", False: " (measured)", None: ""}[one.predicted]
    head = (
        f"### Elsewhere: {len(one.steps)} changes together made a kernel {one.speedup:.3f} times faster{how};"
        f" problem {line(one.problem)}, {line(one.tags.target)}; run {line(one.run)}"
    )
    steps = [
        f"{number}. `{line(step.technique, 80)}` at {line(step.site, 160)}: {line(step.title, 200)}"
        f" (predicted {step.speedup:.3f})"
        for number, step in enumerate(one.steps[:MOST_STEPS], 1)
    ]
    more = len(one.steps) - len(steps)
    return "\n".join([head, "", *steps, *([f"({more} more)"] if more else []), ""])


def _reflection(note: Reflection) -> str:
    came = f"{note.actual_speedup:.3f}" if note.actual_speedup is not None else "no correct kernel"
    return (
        f"- `{line(note.technique)}` where {line(note.bottleneck)} bounds {line(note.operator)}: predicted"
        f" {note.predicted_speedup:.3f}, came to {came} ({note.grade}, seen {note.seen} times)."
        f" {line(note.lesson, 600)}"
    )


def _attempt(one: Attempt) -> str:
    return f"- `{line(one.technique)}` at {line(one.site, 160)}: {_end(one)}"


def _end(one: Attempt) -> str:
    if one.speedup is not None:
        return f"{one.speedup:.3f} times as fast{', kept as a gain' if one.gained else ', no gain'}"
    if one.error is not None:
        return f"{one.verdict or 'failed'}: {line(one.error.code, 80)}: {line(one.error.message, 240)}"
    return f"{one.verdict or 'no kernel came of it'}"
