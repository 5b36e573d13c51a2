"""Learnt techniques: those that LLMs invented in a run, passed on to other runs.

A run passes them on under the same condition as sequences: its best kernel passed the full audit and is
clearly faster than the first. Similarity is decided by the same tags (`agent_core.sequences`). A technique is
passed on with its results, even if it gained nothing: that is worth knowing too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent_core.sequences import ProblemSetting, has_sure_gain, select_nearest
from state.events import Event, PlanProposed, RoundStarted, RunForked, effect_key
from state.fold import RunState
from state.model import LearntTechnique, Plan, ProblemTags
from state.records import RecordedEvent

MOST_TECHNIQUES = 8
"""The most techniques of other runs that a run is given."""
MOST_CHARACTERS = 300
"""The longest title and the longest description, in characters."""
INVENTED_PREFIX = "new:"
"""The ids of invented techniques begin with this."""

ORIGIN_FIELD = "from"
"""In a plan's `invented`: where another run's technique was first proposed."""

HISTORY_EVENTS: tuple[type[Event], ...] = (RunForked, RoundStarted, PlanProposed)
"""The event types of a run that `collect_techniques` needs."""


def collect_techniques(
    run: str, state: RunState, history: Iterable[RecordedEvent], where: ProblemSetting
) -> tuple[LearntTechnique, ...]:
    """Return the techniques that models invented and tried in a run that gained.

    `history` are the events of the run and its ancestors of the types in HISTORY_EVENTS. If a fork changed
    its problem, target or evaluator, techniques from before that change are left out, because their credit
    belongs there.
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
    """Return title and description of a technique that a plan introduces; None if it introduces none."""
    from agent_core.roles.llm.quoting import single_line

    said = plan.detail.get("invented") if isinstance(plan.detail, dict) else None
    if not plan.technique.startswith(INVENTED_PREFIX) or not isinstance(said, dict) or ORIGIN_FIELD in said:
        return None
    title, description = (
        single_line(str(said.get(name, "")), MOST_CHARACTERS) for name in ("title", "description")
    )
    return (title, description) if title and description else None


def select_techniques(known: Sequence[LearntTechnique], tags: ProblemTags) -> tuple[LearntTechnique, ...]:
    """Return the techniques that a run's planners are offered, most relevant first, one for each name."""
    found: dict[str, LearntTechnique] = {}
    for one in select_nearest(known, tags, most=len(known)):
        found.setdefault(one.technique, one)
    return tuple(found.values())[:MOST_TECHNIQUES]
