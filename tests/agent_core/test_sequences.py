"""What runs teach when they end, and which sequences a new run is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import seeds
from agent_core import proposers, sequences
from agent_core.effects import LearningContext, LookAheadRequest
from agent_core.sequences import (
    MOST_SEQUENCES,
    MOST_STEPS,
    ProblemSetting,
    collect_operators,
    collect_sequence,
    describe_setting,
    select_nearest,
)
from state.events import (
    Event,
    KernelKept,
    PlanProposed,
    PredictionStarted,
    RoundStarted,
    SequencesGiven,
)
from state.model import Plan, Prediction, Rebase, RewriteStep
from state.records import RecordedEvent
from targets.nki.target import NkiTarget
from targets.registry import load_target
from tests.support.learnt_sequences import learnt_sequence, problem_tags, rewrite_step
from tests.support.world import World, small

WHERE = ProblemSetting(problem_tags(), (3,))


@pytest.fixture(autouse=True)
def scripted_techniques(monkeypatch: pytest.MonkeyPatch) -> None:
    known = NkiTarget.menu(load_target("trn2"))
    names = ("double_constant", "halve_constant")
    monkeypatch.setattr(
        NkiTarget, "menu", lambda self: known | dict.fromkeys(names, next(iter(known.values())))
    )


def record_events(events: Sequence[Event]) -> list[RecordedEvent]:
    return [
        RecordedEvent(number, "run", number, 0, event, None, "", None)
        for number, event in enumerate(events, start=1)
        if isinstance(event, sequences.HISTORY_EVENTS)
    ]


def list_taught(world: World, **changes: Any):
    return collect_sequence("run", world.state.model_copy(update=changes), record_events(world.events), WHERE)


# --- tags ---


def test_tags_say_what_is_computed_and_how_large_it_is():
    problem = seeds.load_problem("bmm_softmax")
    found = describe_setting(problem.spec, "reduced", "trn2", problem.kernel)
    assert found.tags.target == "trn2"
    assert {"nc_matmul", "nc_transpose", "tensor_reduce", "activation", "exp", "maximum"} <= {
        *found.tags.operators
    }
    assert found.tags.dtypes == ("float32",)
    assert found.tags.extents == (10, 8, 6, 1)
    assert found.arguments == ([[2, 256, 64], "float32"], [[2, 64, 1024], "float32"])


def test_names_have_no_part_in_it():
    problem = seeds.load_problem("silu")
    other = problem.spec.model_copy(update={"name": "another"})
    renamed = problem.kernel.replace("silu", "another").replace("_tile", "_block").replace("nisa", "isa")
    assert describe_setting(other, "full", "trn1", renamed) == describe_setting(
        problem.spec, "full", "trn1", problem.kernel
    )


@pytest.mark.parametrize("source", ["def (", "", "x = nl.exp", "print(1)", "\0"])
def test_a_source_without_instructions_has_no_operators(source):
    assert collect_operators(source, "trn2") == frozenset()


# --- what a run teaches ---


def test_what_led_to_the_best_is_taught_leg_by_leg():
    world = World(small(rounds=3, repairs=0)).finish()
    found = list_taught(world)
    kept = {event.candidate.id: event for event in world.of(KernelKept)}
    line, one = [], world.state.best
    while one.parent is not None:
        line.insert(0, one)
        one = kept[one.parent].candidate
    assert len(line) > 1
    assert [leg.source for leg in found.legs] == [kept[one.parent].candidate.source for one in line]
    assert [leg.speedup for leg in found.legs] == [kept[one.id].speedup for one in line]
    assert found.speedup == pytest.approx(world.state.initial.latency_ms / world.state.best.latency_ms)
    assert isinstance(world.events[found.run_seq - 1], KernelKept)
    assert world.events[found.run_seq - 1].candidate.id == world.state.best.id
    assert (found.run, found.problem, found.tags, found.arguments) == ("run", "toy", WHERE.tags, (3,))
    plans = {event.key: event.plan for event in world.of(PlanProposed)}
    first = plans[f"{line[0].id.rpartition('.k')[0]}.k0.f0.planner"]
    assert [(one.technique, one.site) for one in found.legs[0].steps] == [(first.technique, first.site)]


def test_forks_and_orders_teach_the_same():
    world = World(small(rounds=2)).finish()
    at = 1 + max(n for n, event in enumerate(world.events) if isinstance(event, RoundStarted))
    child = world.fork(at).finish()
    assert list_taught(child).legs == list_taught(world).legs
    assert list_taught(World(small(rounds=2), order=3).finish()).legs == list_taught(world).legs


def test_what_is_no_sure_gain_teaches_nothing():
    world = World(small(rounds=2)).finish()
    assert list_taught(world) is not None
    assert list_taught(world, best=world.state.initial) is None
    assert list_taught(world, best=None) is None
    without_operators = ProblemSetting(problem_tags().model_copy(update={"operators": ()}), ())
    assert collect_sequence("run", world.state, record_events(world.events), without_operators) is None


def test_techniques_that_are_not_on_the_menu_are_not_taught(monkeypatch):
    world = World(small(rounds=2)).finish()
    monkeypatch.setattr(NkiTarget, "menu", lambda self: {})
    assert list_taught(world) is None


def test_a_persons_kernel_and_what_it_gained_are_left_out():
    world = World(small(rounds=3, plans=6, implementations=1, repairs=0))
    world.finish(until=lambda state: state.in_round)
    world.propose("TILE_M = 128\nTILE_N = 256\nBUFFERS = 4\n")
    world.finish()
    found = list_taught(world)
    kept = {event.candidate.id: event for event in world.of(KernelKept)}
    person = [one for one in kept.values() if ".b1000." in one.candidate.id]
    assert person
    assert kept[world.state.best.id].candidate.parent == person[0].candidate.id
    assert [leg.speedup for leg in found.legs] == [kept[world.state.best.id].speedup]
    assert found.speedup == pytest.approx(kept[world.state.best.id].speedup)
    assert found.speedup < world.state.initial.latency_ms / world.state.best.latency_ms


def test_what_came_before_a_fork_that_judges_by_something_else_is_history():
    world = World(small(rounds=3, repairs=0)).finish(
        until=lambda state: state.round == 1 and not state.in_round
    )
    state, cut = world.state, len(world.events)
    assert state.best.parent is not None
    rebase = Rebase(config=state.config, problem=state.problem, bounds=state.bounds, toolchain="world 2")
    child = world.fork(cut, rebase=rebase).finish()
    found = list_taught(child)
    since = {event.candidate.source for event in child.events[cut:] if isinstance(event, KernelKept)}
    assert found.run_seq > cut
    assert {leg.source for leg in found.legs} <= since
    assert found.legs[0].source in {entry.candidate.source for entry in state.beam}
    whole = list_taught(World(small(rounds=3, repairs=0)).finish())
    assert len(found.legs) < len(whole.legs)


def run_of_single_rewrite(detail: Any, technique: str = "hoist") -> list[Event]:
    """A run whose best came of one rewrite that was planned by itself, its second implementation."""
    world = World(small(rounds=1, plans=1, repairs=0, implementations=2)).finish()
    plan = Plan(
        technique=technique, site="shown", title="t", prediction=Prediction(speedup=1.5), detail=detail
    )
    return [
        event.model_copy(update={"plan": plan}) if isinstance(event, PlanProposed) else event
        for event in world.events
    ]


@pytest.mark.parametrize(
    ("detail", "steps"),
    [
        ({"site": "there", "choices": [{"n": 1}, {"n": 2}]}, ("there", {"n": 2})),
        ({"site": "there", "choices": []}, ("there", {})),
        (None, ("shown", {})),
        ("words", ("shown", {})),
    ],
)
def test_of_a_single_rewrite_the_parameters_that_were_taken_are_taught(detail, steps):
    plan = next(event.plan for event in run_of_single_rewrite(detail) if isinstance(event, PlanProposed))
    (found,) = sequences._plan_steps(plan, 1, NkiTarget.menu(load_target("trn2")))
    assert (found.site, found.choice) == steps
    assert found.speedup == 1.5


def test_a_step_that_names_its_result_is_taught_with_the_rewrites_after_it():
    raised = RewriteStep(technique="raise", site="kernel", title="", choice={"source": "0" * 64})
    hoisted = RewriteStep(technique="hoist", site="w out of i", title="")
    menu = NkiTarget.menu(load_target("trn2"))
    plan = Plan(
        technique="hoist", site="", title="", prediction=Prediction(speedup=1.5), steps=(raised, hoisted)
    )
    assert sequences._plan_steps(plan, 0, menu) == (raised, hoisted)
    assert sequences._plan_steps(plan.model_copy(update={"steps": (raised,)}), 0, menu) == ()


def test_of_a_long_line_the_first_legs_are_taught():
    steps = tuple(rewrite_step() for _ in range(MOST_STEPS // 2))
    plan = Plan(technique="hoist", site="", title="", prediction=Prediction(speedup=1), steps=steps)
    world = World(small(rounds=4, repairs=0, plateau_rounds=9)).finish()
    events = [
        event.model_copy(update={"plan": plan}) if isinstance(event, PlanProposed) else event
        for event in world.events
    ]
    whole = list_taught(world)
    assert len(whole.legs) > 2
    found = collect_sequence("run", world.state, record_events(events), WHERE)
    assert len(found.steps) == MOST_STEPS
    assert [leg.speedup for leg in found.legs] == [leg.speedup for leg in whole.legs[:2]]
    assert found.speedup == pytest.approx(found.legs[0].speedup * found.legs[1].speedup)


# --- what a run is given ---


def test_the_most_alike_come_first():
    mine = problem_tags("a", "b", "c", "d", extents=(10, 8))
    same = learnt_sequence("same", of=mine)
    larger = learnt_sequence("larger", of=problem_tags("a", "b", "c", "d", extents=(12, 8)))
    flatter = learnt_sequence("flatter", of=problem_tags("a", "b", "c", "d", extents=(12,)))
    halves = learnt_sequence("halves", of=problem_tags("a", "b", "c", "d", dtypes=("bfloat16",)))
    alike = learnt_sequence("alike", 9.0, of=problem_tags("a", "b", "c"))
    known = [alike, flatter, larger, halves, same]
    assert [one.run for one in select_nearest(known, mine)] == ["same", "halves", "larger", "flatter"]
    assert len(select_nearest(known, mine)) == MOST_SEQUENCES
    assert [one.run for one in select_nearest(known[:2], mine)] == ["flatter", "alike"]


def test_of_equally_near_ones_who_gained_more_comes_first_then_who_came_last():
    known = [learnt_sequence("a", 2.0), learnt_sequence("b", 3.0), learnt_sequence("c", 3.0)]
    assert [one.run for one in select_nearest(known, problem_tags())] == ["c", "b", "a"]


def test_what_is_not_alike_or_for_another_target_is_not_given():
    mine = problem_tags("a", "b", "c", "d")
    other = learnt_sequence("other", of=problem_tags("a", "e", "f"))
    elsewhere = learnt_sequence("elsewhere", of=mine.model_copy(update={"target": "trn1"}))
    assert (
        select_nearest(
            [other, elsewhere, learnt_sequence("none", of=mine.model_copy(update={"operators": ()}))], mine
        )
        == ()
    )


# --- what proposals are told ---


def context(world: World) -> LearningContext:
    (asked, *_) = world.of(PredictionStarted)
    request = LookAheadRequest.model_validate_json(world.blobs[asked.request])
    return LearningContext.model_validate_json(world.blobs[request.context])


def test_proposals_are_told_what_the_run_was_given(monkeypatch):
    entry = replace(proposers._NEUTRAL["scripted"], looks_ahead=True)
    monkeypatch.setitem(proposers._NEUTRAL, "scripted", entry)
    plain = World(small(rounds=1)).finish()
    assert context(plain).sequences == ()
    world = World(small(rounds=1)).finish(until=lambda state: bool(state.beam))
    world.append(SequencesGiven(round=1, sequences=(learnt_sequence(),)))
    world.finish()
    assert context(world).sequences == (learnt_sequence(),)
    (asked, *_) = plain.of(PredictionStarted)
    assert b"sequences" not in plain.blobs[LookAheadRequest.model_validate_json(
        plain.blobs[asked.request]).context], "who is given nothing asks as before"  # fmt: skip
