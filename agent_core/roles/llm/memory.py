"""What a planner is shown of the run so far, and of other runs: the most important first."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from agent_core.effects import LearningContext
from agent_core.roles.llm.fitting import PromptItems
from agent_core.roles.llm.quoting import fence_text, single_line
from stability import reflexion
from state.model import (
    Attempt,
    Experience,
    ExperienceKind,
    LearntExperience,
    LearntSequence,
    PredictionGrade,
    Reflection,
)

MOST_CHARACTERS = 3000
"""The longest experience, in characters; models may have written more."""
MOST_STEPS = 12
"""The most steps of one sequence."""
_EFFECTS = {
    ExperienceKind.POSITIVE: "faster",
    ExperienceKind.NEGATIVE: "slower",
}
_SURPRISES = frozenset({PredictionGrade.REFUTED, PredictionGrade.OVERSTATED, PredictionGrade.FAILED})
"""Grades that teach a planner most, because its expectation would have been wrong."""


class MemoryItem(NamedTuple):
    """Something learnt, as a planner sees it; `id` names it in the log."""

    id: str
    text: str


def memory_items(context: LearningContext) -> list[MemoryItem]:
    """Return the optimisation memory, strongest first, then other runs' experiences, nearest first.

    Sequences that paid in other runs come last; their id is the event in which their kernel was kept.
    """
    ranked = sorted(context.memory, key=lambda one: -one.speedup)
    return [
        *(MemoryItem(one.id, _render_experience(one)) for one in ranked),
        *(MemoryItem(one.id, _render_foreign_experience(one)) for one in context.others),
        *(MemoryItem(one.event_id, _render_sequence(one)) for one in context.sequences),
    ]


def draw_items(
    all_: Sequence[MemoryItem], dropout_percent: float, least: int, draw: Random
) -> list[MemoryItem]:
    """Return the items for one plan: each is dropped with the given probability, but at least `least` stay.

    The order is kept, so that the weakest are still dropped first if there is no room.
    """
    odds = [draw.random() * 100 for _ in all_]
    by_odds = sorted(range(len(all_)), key=odds.__getitem__, reverse=True)
    kept = {at for at in by_odds if odds[at] >= dropout_percent} | set(by_odds[:least])
    return [one for at, one in enumerate(all_) if at in kept]


def render_experiences(shown: Sequence[MemoryItem]) -> PromptItems:
    """Return the chosen items as a value of the prompt."""
    return PromptItems(tuple(one.text for one in shown), "(none yet)")


def render_reflections(context: LearningContext, bottleneck: str | None, now: int) -> PromptItems:
    """Return the lessons: those about the kernel's bottleneck first, then by weight in round `now`.

    With equal weight, predictions that did not come true come before those that did.
    """

    def rank(note: Reflection) -> tuple[bool, float, bool]:
        return (
            note.bottleneck != bottleneck,
            -reflexion.reflection_weight(note, now),
            note.grade not in _SURPRISES,
        )

    ranked = sorted(context.reflections, key=rank)
    return PromptItems(tuple(_render_reflection(note) for note in ranked), "(none yet)")


def render_attempts(context: LearningContext, parent: str) -> PromptItems:
    """Return what was tried on a kernel, newest first."""
    found = [one for one in context.attempts if one.parent == parent]
    return PromptItems(tuple(render_attempt(one) for one in reversed(found)), "(nothing)")


def _render_experience(one: Experience) -> str:
    head = f"### `{single_line(one.technique)}` {_describe_effect(one.kind, one.speedup)}"
    return f"{head}\n\n{fence_text(one.summary, 'text', limit=MOST_CHARACTERS)}\n"


def _render_foreign_experience(one: LearntExperience) -> str:
    """Render an experience with its origin, because it was measured on something else."""
    found = one.about
    what = f"`{single_line(found.technique)}` " if found.technique else ""
    how = {True: " (predicted)", False: " (measured)", None: ""}[found.predicted]
    effect = f"{_describe_effect(found.kind, found.speedup)}{how}" if found.kind else "made a difference"
    place = (
        f"problem {single_line(found.problem)}, {single_line(found.tags.target)}"
        if found.problem
        else "unknown problem"
    )
    head = f"### Elsewhere: {what}{effect}; {place}; {_experience_origin(one)}"
    return f"{head}\n\n{fence_text(one.summary, 'text', limit=MOST_CHARACTERS)}\n"


def _describe_effect(kind: ExperienceKind, speedup: float | None) -> str:
    times = f"{speedup:.3f}x " if speedup else ""
    return f"made a kernel {times}{_EFFECTS[kind]}"


def _experience_origin(one: LearntExperience) -> str:
    if one.imported:
        return f"imported from a file, {single_line(one.origin)}"
    return f"run {single_line(one.origin)}" if one.origin else "before this run judged by something else"


def _render_sequence(one: LearntSequence) -> str:
    """Render the steps from a first kernel to a best one, with the origin."""
    how = {True: " (predicted)", False: " (measured)", None: ""}[one.predicted]
    head = (
        f"### Elsewhere: {len(one.steps)} changes together made a kernel {one.speedup:.3f} times faster{how};"
        f" problem {single_line(one.problem)}, {single_line(one.tags.target)}; run {single_line(one.run)}"
    )
    steps = [
        f"{number}. `{single_line(step.technique, 80)}` at {single_line(step.site, 160)}:"
        f" {single_line(step.title, 200)} (predicted {step.speedup:.3f})"
        for number, step in enumerate(one.steps[:MOST_STEPS], 1)
    ]
    more = len(one.steps) - len(steps)
    return "\n".join([head, "", *steps, *([f"({more} more)"] if more else []), ""])


def _render_reflection(note: Reflection) -> str:
    came = f"{note.actual_speedup:.3f}x" if note.actual_speedup is not None else "no correct kernel"
    return (
        f"- `{single_line(note.technique)}` where {single_line(note.bottleneck)} bounds"
        f" {single_line(note.operator)}: predicted {note.predicted_speedup:.3f}x,"
        f" got {came} ({note.grade}, seen {note.seen} times)."
        f" {single_line(note.lesson, 600)}"
    )


def render_attempt(one: Attempt) -> str:
    """Return one line about a try: technique, site, title with its values, and what came of it."""
    title = f" ({single_line(one.title, 200)})" if one.title else ""
    return f"- `{single_line(one.technique)}` at {single_line(one.site, 160)}{title}: {_render_result(one)}"


def _render_result(one: Attempt) -> str:
    if one.duplicate_of is not None:
        return f"the same code as {single_line(one.duplicate_of)}, which counts instead"
    if one.speedup is not None:
        return f"{one.speedup:.3f} times as fast{', kept as a gain' if one.gained else ', no gain'}"
    if one.error is not None:
        code, message = single_line(one.error.code, 80), single_line(one.error.message, 240)
        return f"{one.verdict or 'failed'}: {code}: {message}"
    return f"{one.verdict or 'no kernel came of it'}"
