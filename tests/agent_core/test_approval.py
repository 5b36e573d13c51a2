"""Points at which a run waits for a person: which, when, and what approving lets pass."""

from __future__ import annotations

import pytest

from agent_core.decide import decide
from state.events import ConfigChanged, RoundStarted, RunCompleted, RunPaused, RunResumed
from state.fold import apply_event
from state.model import RunStatus, StopReason, Verdict
from tests.support.world import World, refused_evaluation, small


def waiting_for(*points: str, **search) -> World:
    config = small(rounds=2, **search).model_copy(update={"approval": points})
    return World(config)


def approve(world: World) -> None:
    world.append(RunResumed(reason="fine", approved=world.state.needs_approval))


def until_paused(world: World) -> tuple[str, ...]:
    world.finish(until=lambda state: state.has_ended or state.status is RunStatus.PAUSED)
    return world.state.needs_approval


def test_without_points_nothing_waits():
    assert World(small(rounds=2)).finish().of(RunPaused) == []


def test_each_round_waits_where_that_is_wanted():
    world = waiting_for("before_round")
    seen = []
    while points := until_paused(world):
        seen.append((points, world.state.round))
        assert decide(world.state) == []
        approve(world)
    assert seen == [(("before_round 1",), 0), (("before_round 2",), 1)]
    assert world.state.has_ended


def test_a_new_best_waits_once():
    world = waiting_for("new_best")
    names = []
    while points := until_paused(world):
        names += points
        approve(world)
    assert names
    assert len(set(names)) == len(names)
    assert names[-1] == f"new_best {world.state.best.id}"


def test_points_that_coincide_are_let_pass_together():
    world = waiting_for("before_round", "new_best", "completion")
    seen = []
    while points := until_paused(world):
        seen.append(tuple(point.partition(" ")[0] for point in points))
        approve(world)
    assert seen[0] == ("before_round",)
    assert seen[1] == ("new_best", "before_round")
    assert seen[-1][-1] == "completion"
    assert world.state.stop is StopReason.ROUNDS


def test_what_was_changed_meanwhile_counts_when_a_person_lets_it_pass():
    """More rounds, set while the run waits before its end, put the end off."""
    world = waiting_for("completion")
    assert until_paused(world) == ("completion 2",)
    longer = world.state.config.search.model_copy(update={"rounds": 3})
    config = world.state.config.model_copy(update={"search": longer})
    world.append(ConfigChanged(config=config.model_dump(mode="json")))
    approve(world)
    assert until_paused(world) == ("completion 3",)
    assert len(world.of(RoundStarted)) == 3


def test_points_taken_out_of_the_configuration_are_not_waited_at():
    world = waiting_for("before_round")
    until_paused(world)
    config = world.state.config.model_copy(update={"approval": ()})
    world.append(ConfigChanged(config=config.model_dump(mode="json")))
    approve(world)
    world.finish()
    assert len(world.of(RunPaused)) == 1
    assert world.state.has_ended


def test_a_failure_does_not_wait_for_anybody():
    config = small(rounds=2).model_copy(update={"approval": ("completion",)})
    world = World(config, judge=lambda source: refused_evaluation(source, Verdict.INCORRECT, "no")).finish()
    assert world.of(RunPaused) == []
    assert world.of(RunCompleted)[0].reason is StopReason.INITIAL_REJECTED


def test_a_run_that_waits_ends_as_one_that_does_not():
    plain = World(small(rounds=2)).finish()
    world = waiting_for("before_round", "completion")
    while until_paused(world):
        approve(world)
    assert world.state.decision_digest == plain.state.decision_digest
    assert world.state.best == plain.state.best


def test_the_pause_says_what_it_waits_for():
    world = waiting_for("before_round")
    until_paused(world)
    assert world.state.status_reason == "needs approval: before_round 1"
    cleared = apply_event(world.state, RunResumed())
    assert cleared.needs_approval == ()


@pytest.mark.parametrize("at", range(5))
def test_forks_of_a_run_that_waits_wait_too(at):
    world = waiting_for("before_round")
    until_paused(world)
    child = world.fork(len(world.events) - at)
    assert until_paused(child) == ("before_round 1",)
