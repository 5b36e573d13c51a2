"""Experiences from run to run: what a run tells others when it ends, and which ones its planners are told.

A run tells its optimisation memory: what made kernels faster or slower, in words that its summarizer chose.
It does so where it would teach a sequence too: its best kernel was found correct on everything and beats the
first one beyond doubt. What is alike is told by the same tags (`agent_core.sequences`), and by the toolchain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent_core.sequences import ANY_TARGET, ProblemSetting, has_sure_gain, select_nearest
from state.events import Event, ExperienceRecorded, RunForked
from state.experience_export import export_experience
from state.fold import RunState
from state.model import Experience, LearntExperience, ProblemTags
from state.records import RecordedEvent

MOST_EXPERIENCES = 8
"""Experiences of others that a run is given at most."""
MOST_CHARACTERS = 3000
"""Of one experience: as much as a planner would be shown."""

HISTORY_EVENTS: tuple[type[Event], ...] = (RunForked, ExperienceRecorded)
"""Events of a run that `collect_experiences` goes by."""


def collect_experiences(
    run: str, state: RunState, history: Iterable[RecordedEvent], where: ProblemSetting
) -> tuple[LearntExperience, ...]:
    """Return what a run whose best kernel stood its audit has to tell; nothing where it gained nothing.

    `history` are the run's events of the types in HISTORY, its ancestors' included. A fork that judges by
    something else has in its memory what its parent found under the old problem, target or evaluator; that
    is not told as if it had been found under the new ones.
    """
    if state.best is None or not has_sure_gain(state, where):
        return ()
    own = _experiences_since_rebase(history)
    return tuple(
        export_experience(one, state, origin=run, tags=where.tags).model_copy(
            update={"summary": clean_summary(one.summary)}
        )
        for one in state.memory
        if one.summary.strip() and one in own
    )


def _experiences_since_rebase(history: Iterable[RecordedEvent]) -> list[Experience]:
    """Return the experiences made under what the run's kernels are judged by now."""
    found: list[Experience] = []
    for item in history:
        match item.event:
            case RunForked(rebase=rebase) if rebase is not None:
                found = []
            case ExperienceRecorded(experience=experience) if experience is not None:
                found.append(experience)
    return found


def clean_summary(summary: str) -> str:
    """Return what an experience says as it is handed on: without characters that nobody sees, and bounded."""
    from agent_core.roles.llm.quoting import clean_text, shorten_text

    return shorten_text(clean_text(summary), MOST_CHARACTERS).strip()


def select_experiences(
    known: Sequence[LearntExperience], tags: ProblemTags, toolchain: str
) -> tuple[LearntExperience, ...]:
    """Return the experiences that a run's planners are told, the nearest first.

    Of those that share as many operators the ones of the run's own toolchain come first. Advice from files
    that names no operators comes last, the latest first.
    """
    near = select_nearest(
        known, tags, most=MOST_EXPERIENCES, foreign=lambda one: one.about.toolchain != toolchain
    )
    general = (one for one in reversed(known) if one.imported and not one.tags.operators)
    fitting = (one for one in general if one.tags.target in (ANY_TARGET, tags.target))
    return (*near, *fitting)[:MOST_EXPERIENCES]
