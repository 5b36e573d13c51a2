"""The initial state of a fork: its parent's at the forked event, without effects in flight."""

from __future__ import annotations

from state.events import (
    EffectEnded,
    effect_key,
)
from state.experience_export import export_experience
from state.model import (
    LearntExperience,
    ProblemTags,
    Rebase,
    RunStatus,
)
from state.run_state import RunState, evolve, is_by_person


def fork_state(parent: RunState, rebase: Rebase | None = None) -> RunState:
    """Return a fork's initial state: effects in flight are abandoned, money spent is inherited."""
    state = parent.before or parent
    child = evolve(
        state,
        open={},
        reserved_usd=0.0,
        status=RunStatus.RUNNING,
        status_reason="",
        stop=None,
        needs_approval=(),
        late={place: one for place, one in state.late.items() if one.kernel is not None},
    )
    return child if rebase is None else rebase_state(child, rebase)


def rebase_state(state: RunState, rebase: Rebase) -> RunState:
    """Abandon the current round; earlier verdicts no longer count, and the beam must be judged again.

    People's proposals stay, because they were accepted and are not judged under the new conditions yet.
    Lessons and attempts are dropped, because they hold for the old conditions. Experiences stay like those of
    another run, with their origin.
    """
    first = [] if state.initial is None else [state.initial]
    known = {one.id: one for one in (*first, *(entry.candidate for entry in state.beam))}
    round_ = state.round - (state.in_round and not state.selected)
    return evolve(
        state,
        config=rebase.config,
        pending_config=None,
        problem=rebase.problem,
        bounds=rebase.bounds,
        toolchain=rebase.toolchain,
        round=round_,
        slots=(),
        parents={},
        selected=False,
        expired=False,
        late={},
        idle=None,
        outcomes={key: one for key, one in state.outcomes.items() if _waits_for_round(one, round_)},
        initial=None,
        best=None,
        former=(),
        beam=(),
        checkpoints={},
        sequences=None,
        experiences=_parent_experiences(state) or None,
        memory=(),
        reflections=(),
        attempts=(),
        rejudge=state.rejudge or tuple(known.values()),
    )


def _parent_experiences(state: RunState) -> tuple[LearntExperience, ...]:
    """Return the memory as experiences with their conditions; `origin` is empty, for the run itself."""
    tags = ProblemTags(target=state.config.target, operators=(), dtypes=(), extents=())
    return tuple(export_experience(one, state, origin="", tags=tags) for one in state.memory)


def _waits_for_round(outcome: EffectEnded, round_: int) -> bool:
    return is_by_person(outcome) and effect_key(outcome).round > round_
