"""What a planner is told of the run so far, and of others: the weightiest first."""

from __future__ import annotations

from agent_core.effects import LearningContext
from agent_core.roles.llm.fitting import Items
from agent_core.roles.llm.quoting import fenced, line
from stability import reflexion
from state.model import Attempt, Experience, ExperienceKind, Grade, LearntExperience, Reflection

MOST_CHARACTERS = 3000
"""Of one experience, of which models may have written as much as they liked."""
_EFFECTS = {
    ExperienceKind.POSITIVE: "made a kernel faster",
    ExperienceKind.NEGATIVE: "made a kernel slower",
}
_SURPRISES = frozenset({Grade.REFUTED, Grade.OVERSTATED, Grade.FAILED})
"""Grades that a planner learns most from: what it would have expected did not come."""


def experiences(context: LearningContext) -> Items:
    """Return the optimisation memory, strongest first, and after it what others learnt, nearest first."""
    ranked = sorted(context.memory, key=lambda one: -one.speedup)
    pieces = (*map(_experience, ranked), *map(_of_others, context.others))
    return Items(pieces, "(none yet)")


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
    source = f"imported from a file, {line(one.origin)}" if one.imported else f"run {line(one.origin)}"
    head = f"### Elsewhere: {what}{effect}{gain}; {place}; {source}"
    return f"{head}\n\n{fenced(one.summary, 'text', limit=MOST_CHARACTERS)}\n"


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
