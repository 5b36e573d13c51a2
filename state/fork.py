"""The state that a fork begins with: its parent's at the cut, without what was in flight there."""

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
    """Return the state that a fork starts with: effects in flight are abandoned, money spent is inherited."""
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
    """Abandon the round under way; what was judged is history, and who competes is judged anew.

    What people proposed stays: it was accepted, and not judged yet under what counts now. Lessons and
    attempts go, as what they say was so elsewhere; experiences stay as those of another run would, with
    where they are from.
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
    """Return the optimisation memory with what it was found under; `origin` is empty: the run itself."""
    tags = ProblemTags(target=state.config.target, operators=(), dtypes=(), extents=())
    return tuple(export_experience(one, state, origin="", tags=tags) for one in state.memory)


def _waits_for_round(outcome: EffectEnded, round_: int) -> bool:
    return is_by_person(outcome) and effect_key(outcome).round > round_
