"""Before a run ends, a simpler kernel that is as fast takes the place of its best one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agent_core import audit, simplification
from agent_core.decide import decide
from agent_core.effects import Effect
from agent_core.proposers import find_simplifier
from state.events import (
    EvaluationStarted,
    ExecutionFailed,
    ExecutionStarted,
    KernelDiscarded,
    KernelKept,
    KernelRefuted,
    RunCompleted,
    effect_key,
)
from state.model import (
    Evaluation,
    Level,
    Role,
    StopReason,
    Verdict,
    is_simplification,
    simplification_key,
)
from tests.support.world import (
    Faults,
    World,
    correct_evaluation,
    judge_constants,
    refused_evaluation,
    small,
)

MARK = "SIMPLE = 1\n"
"""What stands for a simpler text: a judge may tell it from the winner's."""


def simpler(source: str) -> str:
    return source + MARK


def judge_with(factor: float = 1.0, verdict: Verdict | None = None):
    """Judge by constants; the simplified kernel takes `factor` as long, or is refused."""

    def judge(source: str) -> Evaluation:
        plain = re.sub(MARK, "", source)
        found = judge_constants(plain)
        if plain == source or not found.is_correct:
            return found
        if verdict is not None:
            return refused_evaluation(source, verdict, "the simplified kernel is wrong")
        assert found.benchmark is not None
        return correct_evaluation(source, found.benchmark.latency_ms * factor)

    return judge


@pytest.fixture(autouse=True)
def simplifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplification, "find_simplifier", lambda target, planners: "somebody")


def make_world(**options: Any) -> World:
    search = options.pop("search", {})
    options = {"simplify": simpler, "judge": judge_with()} | options
    return World(small(**{"rounds": 2} | search), **options)


def finished(**options: Any) -> World:
    return make_world(**options).finish()


def starts_of_simplifying(world: World) -> list[ExecutionStarted]:
    return [one for one in world.of(ExecutionStarted) if is_simplification(effect_key(one))]


def test_a_simpler_kernel_that_is_as_fast_takes_the_winner_s_place():
    world = finished()
    (kept,) = [one for one in world.of(KernelKept) if one.replaces is not None]
    best = world.state.best
    assert best.id == kept.candidate.id == simplification_key(world.state.round).candidate_id
    assert (best.parent, best.technique) == (kept.replaces, "simplify")
    assert world.source(best.source).endswith(MARK)
    assert kept.replaces in {one.id for one in world.state.former}
    assert [entry.candidate.id for entry in world.state.beam].count(best.id) == 1
    assert kept.replaces not in {entry.candidate.id for entry in world.state.beam}


def test_it_is_judged_like_a_kernel_of_the_beam_and_audited_at_the_end():
    world = finished()
    key = simplification_key(world.state.round)
    judged = [one.key for one in world.of(EvaluationStarted) if is_simplification(effect_key(one))]
    assert judged == [str(key.for_role(Role.EVALUATOR)), str(key.for_role(Role.AUDITOR))]
    assert world.state.best.level is Level.WHOLE


@pytest.mark.parametrize(("factor", "is_taken"), [(0.9, True), (1.004, True), (1.006, False), (2.0, False)])
def test_it_may_be_half_a_percent_slower(factor, is_taken):
    world = finished(judge=judge_with(factor))
    assert is_simplification(executor(world)) is is_taken
    discarded = [one for one in world.of(KernelDiscarded) if one.against is not None]
    assert bool(discarded) is not is_taken
    for one in discarded:
        assert (one.candidate, one.reason) == (simplification_key(2).candidate_id, "slower")
        assert one.against == world.state.best.id


def executor(world: World):
    return audit._audit_key(world.state.best)


def test_one_that_is_wrong_is_discarded_and_the_winner_stays():
    world = finished(judge=judge_with(verdict=Verdict.INCORRECT))
    assert not is_simplification(executor(world))
    (one,) = [one for one in world.of(KernelDiscarded) if one.against == world.state.best.id]
    assert (one.reason, one.verdict) == ("incorrect", Verdict.INCORRECT)
    assert world.of(RunCompleted)[0].reason is StopReason.ROUNDS


def test_the_winner_comes_back_if_the_audit_finds_the_simpler_one_wrong():
    def catch(source: str, level: Level) -> bool:
        return source.endswith(MARK) and level is Level.WHOLE

    world = finished(catch=catch)
    (refuted,) = world.of(KernelRefuted)
    assert refuted.candidate == simplification_key(2).candidate_id
    assert not is_simplification(executor(world))
    assert world.state.best.level is Level.WHOLE
    assert len(starts_of_simplifying(world)) == 1


def test_nothing_simpler_is_no_failed_kernel():
    plain, world = World(small(rounds=2, simplify=False)).finish(), finished(simplify=lambda _: None)
    failed = [one for one in world.of(ExecutionFailed) if is_simplification(effect_key(one))]
    assert [one.error.code for one in failed] == ["nothing_simpler"]
    assert world.state.tally == plain.state.tally
    assert world.state.best == plain.state.best


def test_a_run_that_wants_none_or_has_nobody_for_it_is_as_before(monkeypatch):
    unwanted = finished(search={"simplify": False})
    monkeypatch.setattr(simplification, "find_simplifier", lambda target, planners: None)
    nobody = finished()
    for world in (unwanted, nobody):
        assert not starts_of_simplifying(world)
        assert not is_simplification(executor(world))
    assert unwanted.state.decision_digest == nobody.state.decision_digest


def test_a_kernel_that_the_run_started_from_is_not_touched():
    def judge(source: str) -> Evaluation:
        if source == "TILE_M = 16\nTILE_N = 64\nBUFFERS = 1\n":
            return correct_evaluation(source, 0.1)
        return judge_with()(source)

    world = finished(judge=judge)
    assert world.state.best.id == world.state.initial.id
    assert not starts_of_simplifying(world)


def test_the_winner_stays_if_the_run_would_not_end_with_the_simpler_kernel():
    """A target that the winner reached, and the simpler kernel misses by little."""
    reached = World(small(rounds=2, simplify=False), judge=judge_with(1.004)).finish().state.best.latency_ms
    world = make_world(judge=judge_with(1.004), search={"rounds": 9, "target_ms": reached * 1.001})
    world.finish()
    assert world.state.stop is StopReason.TARGET
    assert world.state.best.latency_ms <= reached * 1.001
    assert not is_simplification(executor(world))


def test_an_end_for_want_of_a_budget_is_not_put_off(monkeypatch):
    world = make_world().finish(until=lambda state: state.round == 2 and not state.in_round)
    assert starts_of_simplifying(world) == []
    config = world.state.config.model_copy(update={"cap_calls": 1})
    spent = world.state.model_copy(update={"config": config, "spent_calls": 1, "short": {"calls": 1.0}})
    asked = [one for one in decide(spent) if isinstance(one, Effect)]
    assert [one.key.role for one in asked] == [Role.AUDITOR]


@pytest.mark.parametrize("order", range(6))
def test_crashes_and_repeats_change_nothing(order):
    calm = finished()
    stormy = finished(order=order, faults=Faults(crash=0.2, repeat=0.3))
    assert stormy.crashes
    assert stormy.fingerprint == calm.fingerprint


def test_a_fork_of_the_end_goes_on_from_the_simpler_kernel():
    world = finished()
    at = next(number for number, one in enumerate(world.events, 1) if isinstance(one, RunCompleted))
    fork = world.fork(at)
    more = fork.state.config.search.model_copy(update={"rounds": 3})
    fork._state = fork.state.model_copy(
        update={"pending_config": fork.state.config.model_copy(update={"search": more})}
    )
    fork.finish()
    assert fork.state.round == 3
    assert fork.state.best.latency_ms <= world.state.best.latency_ms


@pytest.mark.parametrize(
    ("target", "planners", "who"),
    [
        ("trn2", ("builtin",), "builtin"),
        ("trn1", ("anthropic",), "builtin"),
        ("trn2", ("builtin", "agent"), "builtin"),
        ("trn2", ("knobs",), None),
        ("trn2", ("builtin", "knobs"), None),
        ("trn2", ("scripted",), None),
        ("x86", ("anthropic",), None),
    ],
)
def test_who_simplifies_follows_from_the_target_and_all_planners(target, planners, who):
    assert find_simplifier(target, planners) == who
