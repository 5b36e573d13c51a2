"""Learnt experiences: what a run tells other runs when it ends, and which ones a new run's planners see.

A run passes on its optimisation memory: what made kernels faster or slower, in its summarizer's words. It
does so under the same condition as for sequences: its best kernel passed the full audit and is clearly faster
than the first. Similarity is decided by the same tags (`agent_core.sequences`), and by the toolchain.
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
"""The most experiences of others that a run is given."""
MOST_CHARACTERS = 3000
"""The longest experience, in characters; a planner is not shown more."""

HISTORY_EVENTS: tuple[type[Event], ...] = (RunForked, ExperienceRecorded)
"""The event types of a run that `collect_experiences` needs."""


def collect_experiences(
    run: str, state: RunState, history: Iterable[RecordedEvent], where: ProblemSetting
) -> tuple[LearntExperience, ...]:
    """Return the experiences of an audited run that gained; nothing if it gained nothing.

    `history` are the events of the run and its ancestors of the types in HISTORY_EVENTS. If a fork changed
    its problem, target or evaluator, experiences from before that change are left out.
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
    """Return the experiences made under the current problem, target and evaluator."""
    found: list[Experience] = []
    for item in history:
        match item.event:
            case RunForked(rebase=rebase) if rebase is not None:
                found = []
            case ExperienceRecorded(experience=experience) if experience is not None:
                found.append(experience)
    return found


def clean_summary(summary: str) -> str:
    """Return an experience's text for other runs: without invisible characters, and of limited length."""
    from agent_core.roles.llm.quoting import clean_text, shorten_text

    return shorten_text(clean_text(summary), MOST_CHARACTERS).strip()


def select_experiences(
    known: Sequence[LearntExperience], tags: ProblemTags, toolchain: str
) -> tuple[LearntExperience, ...]:
    """Return the experiences that a run's planners see, most relevant first.

    Among those that share as many operators, the ones of the run's own toolchain come first. Advice from
    files that names no operators comes last, newest first.
    """
    near = select_nearest(
        known, tags, most=MOST_EXPERIENCES, foreign=lambda one: one.about.toolchain != toolchain
    )
    general = (one for one in reversed(known) if one.imported and not one.tags.operators)
    fitting = (one for one in general if one.tags.target in (ANY_TARGET, tags.target))
    return (*near, *fitting)[:MOST_EXPERIENCES]
