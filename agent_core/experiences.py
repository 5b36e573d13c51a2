"""Experiences from run to run: what a run tells others when it ends, and which ones its planners are told.

A run tells its optimisation memory: what made kernels faster or slower, in words that its summarizer chose.
It does so where it would teach a sequence too: its best kernel was found correct on everything and beats the
first one beyond doubt. What is alike is told by the same tags (`agent_core.sequences`), and by the toolchain.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent_core.sequences import ANY_TARGET, Setting, gained, nearest
from state.fold import RunState
from state.model import About, LearntExperience, Tags

GIVEN = 8
"""Experiences of others that a run is given at most."""
MOST_CHARACTERS = 3000
"""Of one experience: as much as a planner would be shown."""


def taught(run: str, state: RunState, where: Setting) -> tuple[LearntExperience, ...]:
    """Return what a run whose best kernel stood its audit has to tell; nothing where it gained nothing."""
    if state.best is None or not gained(state, where):
        return ()
    return tuple(
        LearntExperience(
            origin=run,
            about=About(
                tags=where.tags,
                kind=one.kind,
                technique=one.technique,
                speedup=one.speedup,
                predicted=state.best.benchmark.predicted,
                toolchain=state.toolchain,
                problem=state.problem.name,
            ),
            slow=one.slow,
            fast=one.fast,
            summary=told(one.summary),
            cites=one.cites,
        )
        for one in state.memory
        if one.summary.strip()
    )


def told(summary: str) -> str:
    """Return what an experience says as it is handed on: without characters that nobody sees, and bounded."""
    from agent_core.roles.llm.quoting import bounded, clean

    return bounded(clean(summary), MOST_CHARACTERS).strip()


def nearest_to(known: Sequence[LearntExperience], tags: Tags, toolchain: str) -> tuple[LearntExperience, ...]:
    """Return the experiences that a run's planners are told, the nearest first.

    Of those that share as many operators the ones of the run's own toolchain come first. Advice from files
    that names no operators comes last, the latest first.
    """
    near = nearest(known, tags, most=GIVEN, foreign=lambda one: one.about.toolchain != toolchain)
    general = (one for one in reversed(known) if one.imported and not one.tags.operators)
    fitting = (one for one in general if one.tags.target in (ANY_TARGET, tags.target))
    return (*near, *fitting)[:GIVEN]
