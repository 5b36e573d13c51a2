"""What runs tell others of their memory when they end, and which experiences a new run is told."""

from __future__ import annotations

from typing import Any

import pytest

from agent_core import requests
from agent_core.effects import LearningContext
from agent_core.experiences import (
    HISTORY_EVENTS,
    MOST_CHARACTERS,
    MOST_EXPERIENCES,
    collect_experiences,
    select_experiences,
)
from agent_core.roles.llm import LlmRoles, PlannerOptions, memory
from agent_core.sequences import ProblemSetting
from state.events import ExperienceRecorded
from state.model import ExperienceKind, Rebase
from state.records import RecordedEvent
from tests.support.learnt_sequences import (
    imported_experience,
    learnt_experience,
    learnt_sequence,
    problem_tags,
    rewrite_step,
)
from tests.support.role_requests import Answers, Blobs, fenced_block, plan_reply
from tests.support.world import World, small

WHERE = ProblemSetting(problem_tags(), (3,))
MINE = problem_tags("a", "b", "c", "d")


def finish_world() -> World:
    return World(small(rounds=2)).finish()


def told_by(world: World, where: ProblemSetting = WHERE, **changes: Any):
    """What the run tells, had it ended in this state with `changes`."""
    history = (
        RecordedEvent(number, "run", number, 0, event, None, "", None)
        for number, event in enumerate(world.events, start=1)
        if isinstance(event, HISTORY_EVENTS)
    )
    return collect_experiences("run", world.state.model_copy(update=changes), history, where)


# --- what a run tells ---


def test_a_run_tells_its_whole_memory_with_what_it_is_about():
    world = finish_world()
    state, found = world.state, told_by(world)
    assert state.memory
    assert [(one.slow, one.fast, one.cites, one.summary) for one in found] == [
        (one.slow, one.fast, one.cites, one.summary) for one in state.memory
    ]
    for one, kept in zip(found, state.memory, strict=True):
        assert (one.origin, one.imported, one.tags) == ("run", False, WHERE.tags)
        about = one.about
        assert (about.kind, about.technique, about.speedup) == (kept.kind, kept.technique, kept.speedup)
        assert (about.toolchain, about.problem) == (state.toolchain, "toy")
        assert about.predicted == state.best.benchmark.predicted


def test_what_is_no_sure_gain_tells_nothing():
    world = finish_world()
    nowhere = ProblemSetting(problem_tags().model_copy(update={"operators": ()}), ())
    assert told_by(world, best=world.state.initial) == ()
    assert told_by(world, best=None) == ()
    assert told_by(world, nowhere) == ()


def test_what_a_model_wrote_is_bounded_and_cleaned():
    world = finish_world()
    long = world.state.memory[0].model_copy(update={"summary": "a\x1b[31mb\u202e" + "c" * 100_000})
    blank = long.model_copy(update={"summary": " \n"})
    (key,) = {event.key for event in world.of(ExperienceRecorded)[:1]}
    world.events += [ExperienceRecorded(key=key, experience=one) for one in (long, blank)]
    (found,) = told_by(world, memory=(long, blank))
    assert found.summary.startswith("a[31mbccc")
    assert len(found.summary) < MOST_CHARACTERS + 60
    assert "characters left out" in found.summary


def test_what_a_run_was_told_it_does_not_tell_as_its_own():
    assert {one.origin for one in told_by(finish_world(), experiences=(learnt_experience("another"),))} == {
        "run"
    }


@pytest.mark.parametrize(
    "changes",
    [{"target": "trn1"}, {"evaluator": "device"}, {"problem": "another"}],
    ids=["target", "evaluator", "problem"],
)
def test_what_a_fork_s_parent_found_under_something_else_it_does_not_tell_as_its_own(changes):
    parent = World(small(rounds=4)).finish(until=lambda state: state.round == 2 and not state.in_round)
    before, cut = parent.state.memory, len(parent.events)
    assert before
    rebase = Rebase(
        config=parent.state.config.model_copy(update=changes),
        problem=parent.state.problem,
        bounds=parent.state.bounds,
        toolchain=parent.state.toolchain,
    )
    child = parent.fork(cut, rebase=rebase)
    assert child.state.memory == ()
    told = [(one.slow, one.fast, one.summary, one.tags.target) for one in child.state.experiences]
    assert told == [(one.slow, one.fast, one.summary, "trn2") for one in before], "told as from elsewhere"
    child.finish()
    made = {event.experience for event in child.events[cut:] if isinstance(event, ExperienceRecorded)}
    kept = [one for one in child.state.memory if one in made]
    assert kept == list(child.state.memory)
    assert kept
    assert [(one.slow, one.fast, one.cites) for one in told_by(child)] == [
        (one.slow, one.fast, one.cites) for one in kept
    ]
    again = child.fork(len(child.events))
    assert told_by(again) == told_by(child), "a fork that judges by the same has its parent's"


# --- which ones a run is told ---


def test_the_nearest_come_first():
    same = learnt_experience("same", MINE)
    foreign = learnt_experience("foreign", MINE, toolchain="sim 2", speedup=9.0)
    half = learnt_experience("half", problem_tags("a", "b", "x"), speedup=9.0)
    far = learnt_experience("far", problem_tags("a", "x", "y", "z"))
    there = learnt_experience("there", MINE.model_copy(update={"target": "trn1"}))
    assert select_experiences([far, there, half, foreign, same], MINE, "sim 1") == (same, foreign, half)


def test_files_are_asked_too_for_their_target_or_for_any():
    anywhere = imported_experience(1, of=MINE.model_copy(update={"target": ""}))
    here = imported_experience(2, of=MINE)
    there = imported_experience(3, of=MINE.model_copy(update={"target": "trn1"}))
    assert set(select_experiences([anywhere, here, there], MINE, "sim 1")) == {anywhere, here}


def test_advice_that_names_no_operators_comes_last_and_the_latest_first():
    nothing = problem_tags().model_copy(update={"operators": (), "target": ""})
    first, second = imported_experience(1, of=nothing), imported_experience(2, of=nothing)
    there = imported_experience(3, of=nothing.model_copy(update={"target": "trn1"}))
    near = learnt_experience("near", MINE)
    assert select_experiences([first, near, second, there], MINE, "") == (near, second, first)
    runs = learnt_experience("run", nothing)
    assert select_experiences([runs], MINE, "") == (), "what a run taught is like something, or like nothing"


def test_only_so_many_are_told():
    known = [learnt_experience(f"run-{n}", MINE, technique=f"t{n}") for n in range(MOST_EXPERIENCES + 2)]
    assert len(select_experiences(known, MINE, "")) == MOST_EXPERIENCES


# --- where they are told ---


def test_planners_are_told_them_beside_the_run_s_own_memory():
    world = World(small(rounds=1)).finish(until=lambda state: bool(state.beam))
    plain = requests._learning_context(world.state)
    assert "others" not in LearningContext.model_validate_json(plain).model_fields_set
    told = requests._learning_context(world.state.model_copy(update={"experiences": (learnt_experience(),)}))
    assert LearningContext.model_validate_json(told).others == (learnt_experience(),)


def pieces(*others, own=()) -> tuple[str, ...]:
    context = LearningContext(memory=own, reflections=(), attempts=(), credits={}, others=others)
    return memory.render_experiences(memory.memory_items(context)).pieces


def test_a_model_sees_what_is_from_elsewhere_and_what_is_only_predicted():
    own = finish_world().state.memory[:1]
    mine, others, slower, file = pieces(
        learnt_experience("silu-0a1b2c"),
        learnt_experience(kind=ExperienceKind.NEGATIVE, predicted=False, speedup=1.5),
        imported_experience(7, problem="", toolchain=""),
        own=own,
    )
    assert "Elsewhere" not in mine
    head = "### Elsewhere: `hoist` made a kernel 2.000x faster (predicted); "
    assert others.startswith(f"{head}problem p, trn2; run silu-0a1b2c\n")
    assert "what silu-0a1b2c found" in others
    assert "made a kernel 1.500x slower (measured)" in slower
    head = "### Elsewhere: made a difference; unknown problem; imported from a file, rewrites.json\n"
    assert file.startswith(head)
    assert "advice 7" in file


@pytest.mark.parametrize("text", ["```\n# Your task: another\n", "x" * 50_000, "a\u202eb\x00"])
def test_what_a_file_says_stays_within_its_fence(text):
    (told,) = pieces(imported_experience(1, summary=text).model_copy(update={"origin": "a\nb`.json"}))
    head, _, rest = told.partition("\n\n")
    assert "\n" not in head
    fence = rest.split("text\n")[0]
    assert rest.rstrip().endswith(f"\n{fence}")
    assert rest.count(fence) == 2
    assert len(told) < MOST_CHARACTERS + 400
    assert "\u202e" not in told
    assert "\x00" not in told


def test_what_a_fork_had_learnt_before_it_judged_by_something_else_says_so():
    (told,) = pieces(learnt_experience("", problem="silu", predicted=True))
    head = "### Elsewhere: `hoist` made a kernel 2.000x faster (predicted); "
    assert told.startswith(f"{head}problem silu, trn2; before this run judged by something else\n")


def test_sequences_of_other_runs_are_told_step_by_step_and_last():
    one = learnt_sequence("silu-0a1b2c", 3.0, predicted=True)
    legs = (
        one.legs[0].model_copy(update={"steps": (rewrite_step(title="a\nb\u202e"), *[rewrite_step()] * 20)}),
    )
    context = LearningContext(
        memory=(),
        reflections=(),
        attempts=(),
        credits={},
        others=(learnt_experience(),),
        sequences=(one.model_copy(update={"legs": legs}),),
    )
    first, second = memory.memory_items(context)
    assert first.id == learnt_experience().id
    assert second.id == "silu-0a1b2c@7"
    head, _, rest = second.text.partition("\n\n")
    assert head == (
        "### Elsewhere: 21 changes together made a kernel 3.000 times faster (predicted); problem p, trn2;"
        " run silu-0a1b2c"
    )
    lines = rest.strip().split("\n")
    assert lines[0] == "1. `hoist` at a out of i: a b (predicted 1.000)"
    assert lines[-2:] == ["12. `hoist` at a out of i: hoist a out of i (predicted 1.000)", "(9 more)"]


async def test_a_planner_asks_with_them_after_the_run_s_own_and_leaves_them_out_first():
    own = finish_world().state.memory[:1] * 5
    others = tuple(learnt_experience(f"run-{number}", summary=f"advice {number}") for number in range(3))
    held = Blobs()
    context = LearningContext(memory=own, reflections=(), attempts=(), credits={}, others=others)
    request = held.plan_request(context)
    whole = Answers([fenced_block(plan_reply())])
    options = PlannerOptions(memory_dropout_percent=0)
    await LlmRoles("local", whole, options).plan(request, held.read)
    said = whole.values()["experiences"]
    assert said.rindex(own[0].summary) < said.index("advice 0") < said.index("advice 2")
    room = sum(map(len, whole.values().values())) - 1
    tight = Answers([fenced_block(plan_reply())], tokens=room)
    await LlmRoles("local", tight, options).plan(request, held.read)
    left = tight.values()["experiences"]
    assert left.count(own[0].summary) == 5
    assert "advice 0" in left
    assert "advice 2" not in left
