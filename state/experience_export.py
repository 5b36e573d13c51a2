"""Converts an experience of a run's own memory for other runs, with the conditions it was found under."""

from __future__ import annotations

from state.model import Experience, ExperienceContext, LearntExperience, ProblemTags
from state.run_state import RunState


def export_experience(
    one: Experience, state: RunState, *, origin: str, tags: ProblemTags
) -> LearntExperience:
    """Return an item of the run's optimisation memory as an experience for others, marked with `origin`."""
    best = state.best
    return LearntExperience(
        origin=origin,
        about=ExperienceContext(
            tags=tags,
            kind=one.kind,
            technique=one.technique,
            speedup=one.speedup,
            predicted=best.benchmark.predicted if best is not None else None,
            toolchain=state.toolchain,
            problem=state.problem.name,
        ),
        slow=one.slow,
        fast=one.fast,
        summary=one.summary,
        cites=one.cites,
    )
