"""Techniques that models invented, from run to run: what a run tells when it ends, which ones it is offered.

A run tells them where it would teach a sequence too: its best kernel was found correct on everything and
beats the first one beyond doubt. What is alike is told by the same tags (`agent_core.sequences`). A technique
is told with what it brought there, with nothing too: that it was tried in vain is worth knowing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent_core.sequences import ProblemSetting, has_sure_gain, select_nearest
from state.events import Event, PlanProposed, RoundStarted, RunForked, effect_key
from state.fold import RunState
from state.model import LearntTechnique, Plan, ProblemTags
from state.records import RecordedEvent

MOST_TECHNIQUES = 8
"""Techniques of other runs that a run is given at most."""
MOST_CHARACTERS = 300
"""Of a title, and of a description."""
INVENTED_PREFIX = "new:"
"""What the ids of invented techniques begin with."""

ORIGIN_FIELD = "from"
"""What a plan says under `invented` where the technique is another run's: where it was proposed first."""

HISTORY_EVENTS: tuple[type[Event], ...] = (RunForked, RoundStarted, PlanProposed)
"""Events of a run that `collect_techniques` goes by."""


def collect_techniques(
    run: str, state: RunState, history: Iterable[RecordedEvent], where: ProblemSetting
) -> tuple[LearntTechnique, ...]:
    """Return the techniques that models invented in a run that gained, those that were tried.

    `history` are the run's events of the types in HISTORY, its ancestors' included. Of what a fork inherited
    from a parent that judged by something else nothing is told: its credit is of there.
    """
    if not has_sure_gain(state, where):
        return ()
    found: dict[str, LearntTechnique] = {}
    models: dict[tuple[int, int], str] = {}
    for item in history:
        match item.event:
            case RunForked(rebase=rebase) if rebase is not None:
                found.clear()
            case RoundStarted(round=round_, slots=slots):
                models |= {(round_, one.slot): one.model or "" for one in slots}
            case PlanProposed(plan=plan) as event if plan.technique not in found:
                key = effect_key(event)
                model = models.get((key.round, key.slot), "")
                credit = state.credits.get(plan.technique)
                words = _introduced_technique(plan)
                if words is not None and credit is not None and credit.tries:
                    found[plan.technique] = LearntTechnique(
                        technique=plan.technique,
                        title=words[0],
                        description=words[1],
                        run=run,
                        run_seq=item.run_seq,
                        model=model,
                        problem=state.problem.name,
                        tags=where.tags,
                        credit=credit,
                    )
            case _:
                pass
    return tuple(found.values())


def _introduced_technique(plan: Plan) -> tuple[str, str] | None:
    """Return title and description of a technique that a plan introduces, None where it introduces none."""
    from agent_core.roles.llm.quoting import single_line

    said = plan.detail.get("invented") if isinstance(plan.detail, dict) else None
    if not plan.technique.startswith(INVENTED_PREFIX) or not isinstance(said, dict) or ORIGIN_FIELD in said:
        return None
    title, description = (
        single_line(str(said.get(name, "")), MOST_CHARACTERS) for name in ("title", "description")
    )
    return (title, description) if title and description else None


def select_techniques(known: Sequence[LearntTechnique], tags: ProblemTags) -> tuple[LearntTechnique, ...]:
    """Return the techniques that a run's planners are offered, the nearest first; of a name the nearest."""
    found: dict[str, LearntTechnique] = {}
    for one in select_nearest(known, tags, most=len(known)):
        found.setdefault(one.technique, one)
    return tuple(found.values())[:MOST_TECHNIQUES]
