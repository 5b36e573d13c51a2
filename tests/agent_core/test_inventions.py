"""Techniques that models invented: what a run tells when it ends, and which ones a new run is offered."""

from __future__ import annotations

from typing import Any

from agent_core import requests
from agent_core.effects import LearningContext
from agent_core.inventions import MOST_CHARACTERS, MOST_TECHNIQUES, collect_techniques, select_techniques
from agent_core.sequences import ProblemSetting
from state.events import Event, PlanProposed, RoundStarted, RunForked
from state.fold import RunState
from state.model import LearntTechnique, Plan, Prediction, Rebase, SlotAssignment, TechniqueCredit
from state.records import RecordedEvent
from tests.support.learnt_sequences import learnt_technique, problem_tags
from tests.support.world import World, small

WHERE = ProblemSetting(problem_tags(), (3,))
MINE = problem_tags("a", "b", "c", "d")
SAID = {"title": "Pack heads", "description": "Put two heads on one tile."}


def propose_plan(
    name: str = "new:pack_heads", said: Any = SAID, place: str = "r1.b0.p0.k0.f0"
) -> PlanProposed:
    detail = {"steps": ["x"], **({"invented": said} if said else {})}
    plan = Plan(technique=name, site="s", title="t", prediction=Prediction(speedup=1.1), detail=detail)
    return PlanProposed(key=f"{place}.planner", plan=plan)


def deal_round(round_: int = 1, model: str | None = "local/m") -> RoundStarted:
    slot = SlotAssignment(slot=0, parent="p", planner="local", model=model, plans=1, implementations=1)
    return RoundStarted(round=round_, slots=(slot,))


def list_techniques(*events: Event, **changes: Any) -> tuple[LearntTechnique, ...]:
    """Return what a run tells that gained, with this history and these credits."""
    credits_ = {
        "new:pack_heads": TechniqueCredit(tries=4, gains=2, log_gain=0.8),
        "hoist": TechniqueCredit(tries=1),
    }
    state: RunState = World(small(rounds=2)).finish().state.model_copy(update={"credits": credits_} | changes)
    history = [
        RecordedEvent(n, "run", n, 0, event, None, "", None) for n, event in enumerate(events, start=1)
    ]
    return collect_techniques("run", state, history, WHERE)


def test_a_run_that_gained_tells_what_was_invented_by_whom_and_what_it_brought():
    (found,) = list_techniques(
        deal_round(),
        propose_plan(),
        propose_plan("hoist", None),
        propose_plan(said={"title": "no", "description": "no"}),
    )
    assert (found.technique, found.title, found.description) == ("new:pack_heads", *SAID.values())
    assert (found.event_id, found.model, found.problem) == ("run@2", "local/m", "toy")
    assert found.credit == TechniqueCredit(tries=4, gains=2, log_gain=0.8)
    assert found.tags == WHERE.tags


def test_who_is_not_known_to_have_invented_it_is_not_named():
    assert list_techniques(propose_plan())[0].model == ""
    assert list_techniques(deal_round(model=None), propose_plan())[0].model == ""


def test_what_gained_nothing_or_was_never_tried_is_not_told():
    state = World(small(rounds=2)).finish().state
    assert list_techniques(deal_round(), propose_plan(), best=state.initial) == ()
    assert list_techniques(deal_round(), propose_plan("new:other")) == ()
    assert (
        list_techniques(
            deal_round(), propose_plan(said=None), propose_plan(said=["x"]), propose_plan(said={"title": "x"})
        )
        == ()
    )


def test_what_another_run_invented_is_told_by_that_one_alone():
    assert list_techniques(deal_round(), propose_plan(said={**SAID, "from": "donor@9"})) == ()


def test_what_a_fork_has_from_a_parent_that_judged_by_something_else_is_not_told():
    world = World(small(rounds=1)).finish()
    state = world.state
    rebase = Rebase(
        config=state.config, problem=state.problem, bounds=state.bounds, toolchain=state.toolchain
    )
    forked = RunForked(parent="p", parent_seq=1, parent_hash="0" * 64, rebase=rebase)
    assert list_techniques(deal_round(), propose_plan(), forked) == ()
    assert len(list_techniques(deal_round(), propose_plan(), forked.model_copy(update={"rebase": None}))) == 1


def test_what_a_model_wrote_is_one_bounded_line():
    (found,) = list_techniques(
        deal_round(), propose_plan(said={"title": "a\nb\u202e", "description": "x\x1b[31m" + "y" * 5000})
    )
    assert found.title == "a b"
    assert found.description.startswith("x[31my")
    assert len(found.description) == MOST_CHARACTERS


# --- which ones a run is offered ---


def test_the_nearest_are_offered_and_of_one_name_the_nearest():
    same = learnt_technique("new:one", MINE)
    half = learnt_technique("new:one", problem_tags("a", "b", "x"), run="far")
    other = learnt_technique("new:two", problem_tags("a", "b", "x"))
    there = learnt_technique("new:three", MINE.model_copy(update={"target": "trn1"}))
    unlike = learnt_technique("new:four", problem_tags("x", "y"))
    assert select_techniques([half, other, there, unlike, same], MINE) == (same, other)
    many = [learnt_technique(f"new:t{number}", MINE) for number in range(MOST_TECHNIQUES + 3)]
    assert len(select_techniques(many, MINE)) == MOST_TECHNIQUES
    assert select_techniques([], MINE) == ()


def test_what_brought_more_a_try_comes_first_among_equals():
    weak = learnt_technique("new:weak", MINE, credit=TechniqueCredit(tries=9, gains=1, log_gain=0.9))
    strong = learnt_technique("new:strong", MINE, credit=TechniqueCredit(tries=1, gains=1, log_gain=0.8))
    assert select_techniques([strong, weak], MINE) == (strong, weak)


def test_planners_have_them_in_their_context():
    world = World(small(rounds=1)).finish(until=lambda state: bool(state.beam))
    plain = requests._learning_context(world.state)
    assert "techniques" not in LearningContext.model_validate_json(plain).model_fields_set
    given = requests._learning_context(world.state.model_copy(update={"techniques": (learnt_technique(),)}))
    assert LearningContext.model_validate_json(given).techniques == (learnt_technique(),)
