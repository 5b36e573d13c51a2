"""Rounds that are closed by their deadline: what was in flight competes later, once; nothing waits for it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_core import ensemble
from agent_core.decide import decide
from agent_core.effects import Effect, Record
from agent_core.round_view import list_candidate_slots, timed_candidates
from state.events import (
    BeamSelected,
    BudgetShort,
    EvaluationStarted,
    ExecutionStarted,
    KernelDiscarded,
    KernelKept,
    KernelProposed,
    RoundCompleted,
    RoundDeadlinePassed,
    RoundStarted,
)
from state.fold import IllegalEvent, apply_event, dump_semantic
from state.model import Candidate, EffectKey, Level, LlmConfig, Resource, Role, digest_of
from tests.support.sweeps import scale_examples
from tests.support.world import Faults, World, fold, small


def in_flight(world: World, role: Role) -> list[EffectKey]:
    return [key for key in map(EffectKey.parse, world.state.open) if key.role is role]


def until_judging(world: World) -> World:
    """Go on until every place of the round under way is being judged, with nothing judged yet."""
    while world.state.round == 0 or not world.state.in_round:
        world.step()
    while (
        any(effect for effect in decide(world.state) if isinstance(effect, Effect))
        or in_flight(world, Role.PLANNER)
        or in_flight(world, Role.EXECUTOR)
    ):
        effects = [one for one in decide(world.state) if isinstance(one, Effect)]
        if effects:
            world._act(effects[:1])
        else:
            earlier = (Role.PLANNER, Role.EXECUTOR)
            key = next(key for key in world._in_flight if key.role in earlier)
            world._in_flight.remove(key)
            world._deliver(key)
    return world


def due(world: World) -> list[Effect]:
    return [one for one in decide(world.state) if isinstance(one, Effect)]


def deliver_verdicts(world: World) -> World:
    for key in in_flight(world, Role.EVALUATOR):
        world._in_flight.remove(key)
        world._deliver(key)
    return world


def cut_off(world: World) -> None:
    world.append(RoundDeadlinePassed(round=world.state.round))


@pytest.fixture
def late() -> World:
    """A run whose first round was closed while all its kernels were being judged."""
    world = until_judging(World(small(rounds=2, plans=2, implementations=1, beam=2)))
    cut_off(world)
    return world


def test_a_round_closes_at_its_deadline_with_what_is_there(late):
    assert len(late.state.late) == len(in_flight(late, Role.EVALUATOR)) == 2
    (record,) = decide(late.state)
    assert isinstance(record, Record)
    assert isinstance(record.events[-1], BeamSelected)
    assert [entry.candidate.id for entry in record.events[-1].beam] == [late.state.best.id]


def test_what_was_late_competes_in_the_round_under_way_when_it_arrives(late):
    late.finish(until=lambda state: state.round == 2)
    names = {key.rpartition(".")[0] for key in late.state.late}
    for key in [key for key in late._in_flight if key.candidate_id in names]:
        late._in_flight.remove(key)
        late._deliver(key)
    assert {place.tries[0].key.candidate_id for place in list_candidate_slots(late.state)[:2]} == names
    late.finish()
    decided = [event for event in late.events if isinstance(event, KernelKept | KernelDiscarded)]
    told = [event.candidate.id if isinstance(event, KernelKept) else event.candidate for event in decided]
    assert all(told.count(name) == 1 for name in names)
    attempts = {one.candidate: event.round for event in late.of(RoundCompleted) for one in event.attempts}
    assert {attempts[name] for name in names} == {2}
    assert late.state.late == {}


def test_what_arrives_after_the_last_round_gets_a_round_to_itself():
    world = until_judging(World(small(rounds=1, plans=2, implementations=1, beam=2)))
    cut_off(world)
    world.finish()
    rounds = world.of(RoundStarted)
    assert [sum(slot.plans for slot in event.slots) for event in rounds] == [2, 0]
    assert world.state.has_ended
    assert world.state.open == {}


def with_proposals(*, rounds: int, **options: Any) -> World:
    """A run with a cap whose first round has three kernels of a person, each faster than the one before."""
    config = small(rounds=rounds, plans=2, implementations=1, beam=4).model_copy(update={"cap_seconds": 60.0})
    world = World(config, **options)
    while not world.state.in_round:
        world.step()
    for tile in (32, 64, 128):
        world.propose(f"TILE_M = {tile}\nTILE_N = 512\nBUFFERS = 4\n")
    return until_judging(world)


def fastest_first(world: World) -> list[Candidate]:
    found = timed_candidates(world.state, list_candidate_slots(world.state))
    return sorted((one.candidate for one in found), key=lambda one: one.latency_ms)


def spend_time(world: World) -> None:
    """Close the round because the run has had its time."""
    cut_off(world)
    world.append(BudgetShort(resource=Resource.SECONDS, cap=60.0, left=0.0, wanted=0.0))


def test_kernels_that_are_late_for_the_last_round_are_not_judged():
    """They could not become the result any more, and would hold up the kernel that is."""
    world = deliver_verdicts(with_proposals(rounds=2))
    world.propose("TILE_M = 128\nTILE_N = 256\nBUFFERS = 4\n")
    assert Role.EVALUATOR in {one.key.role for one in due(world)}
    spend_time(world)
    (late,) = world.state.late
    assert {one.key.role for one in due(world)} == {Role.VERIFIER}
    world.finish()
    assert str(EffectKey.parse(late).for_role(Role.EVALUATOR)) not in world.state.outcomes
    assert world.state.best is not None


@pytest.mark.parametrize("is_over", [False, True])
def test_only_the_fastest_kernel_is_verified_when_the_time_of_the_run_is_over(is_over):
    """Comparing whole outputs takes long: what is left of the time goes to the kernel that is the result."""
    world = deliver_verdicts(with_proposals(rounds=2))
    (spend_time if is_over else cut_off)(world)
    found = fastest_first(world)
    verified = [one.key.candidate_id for one in due(world)]
    assert found[0].id in verified
    assert (len(verified) == 1) is is_over
    world.finish()
    assert len(world.of(RoundStarted)) == (1 if is_over else 2)
    assert world.state.best is not None
    assert world.state.best.id == found[0].id


def test_what_is_being_judged_when_the_time_of_the_run_is_over_competes():
    """The run waits for these verdicts before its audit anyway."""
    world = with_proposals(rounds=2)
    spend_time(world)
    judged = in_flight(world, Role.EVALUATOR)
    world.finish()
    assert world.state.has_ended
    assert [sum(slot.plans for slot in event.slots) for event in world.of(RoundStarted)] == [2, 0]
    decided = [event for event in world.events if isinstance(event, KernelKept | KernelDiscarded)]
    told = {event.candidate.id if isinstance(event, KernelKept) else event.candidate for event in decided}
    assert {key.candidate_id for key in judged} <= told
    verified = [event for event in world.of(EvaluationStarted) if event.key.endswith(Role.VERIFIER)]
    assert world.state.best is not None
    assert world.state.best.source == digest_of(b"TILE_M = 128\nTILE_N = 512\nBUFFERS = 4\n")
    assert len(verified) == 1


def test_no_kernel_is_verified_for_nothing_when_the_time_of_the_run_is_over():
    """The first round has found the fastest kernel, and a person proposes a slower one in the second."""
    world = with_proposals(rounds=2)
    deliver_verdicts(world)
    world.finish(until=lambda state: state.round == 2)
    best = world.state.best
    world.propose("TILE_M = 32\nTILE_N = 256\nBUFFERS = 4\n")
    deliver_verdicts(until_judging(world))
    spend_time(world)
    assert Role.VERIFIER not in {one.key.role for one in due(world)}
    world.finish()
    assert world.state.best is not None
    assert best is not None
    assert world.state.best.id == best.id


def test_the_next_fastest_kernel_is_verified_when_the_fastest_is_wrong():
    wrong = "TILE_M = 128\nTILE_N = 512\nBUFFERS = 4\n"

    def is_caught(source: str, level: Level) -> bool:
        return source == wrong and level is not Level.SLICES

    world = deliver_verdicts(with_proposals(rounds=1, catch=is_caught))
    spend_time(world)
    found = fastest_first(world)
    world.finish()
    assert world.state.best is not None
    assert world.state.best.id == found[1].id


def test_what_arrives_while_a_round_is_learnt_from_competes_in_the_next(late):
    late.finish(until=lambda state: state.selected)
    assert late.state.round == 1
    key = next(key for key in late._in_flight if key.role is Role.EVALUATOR)
    late._in_flight.remove(key)
    late._deliver(key)
    assert late.state.late[str(key.for_role(Role.EXECUTOR))].competes_in == 2
    late.finish()
    (attempted,) = [
        event.round
        for event in late.of(RoundCompleted)
        for one in event.attempts
        if one.candidate == key.candidate_id
    ]
    assert attempted == 2


def test_a_plan_that_is_late_leads_nowhere():
    world = World(small(rounds=2, plans=2, implementations=1, beam=2))
    world.finish(until=lambda state: state.in_round and bool(state.open))
    cut_off(world)
    assert world.state.late == {}
    world.finish()
    assert world.state.has_ended
    assert not any(key.startswith("r1.") and key.endswith(".executor") for key in world.state.outcomes)


def test_a_round_without_a_verdict_in_time_is_not_the_last(late):
    late.finish(until=lambda state: state.round == 2)
    assert not late.state.has_ended


def test_a_person_s_kernel_after_the_deadline_joins_the_next_round(late):
    assert late.propose("TILE_M = 128\nTILE_N = 512\nBUFFERS = 4\n").round == 2


def test_a_person_s_kernel_that_was_not_judged_in_time_is_judged_all_the_same():
    world = World(small(rounds=1, plans=1, implementations=1, beam=1))
    world.finish(until=lambda state: state.in_round)
    key = world.propose("TILE_M = 128\nTILE_N = 512\nBUFFERS = 4\n")
    cut_off(world)
    world.finish()
    assert world.state.best.id == key.candidate_id
    assert world.state.round == 2


def two_models(**search) -> World:
    """A run whose first slot is one model's in its first round and the other's in the next."""
    changes = {"planner": ("local", "openai"), "llm": LlmConfig(models=("local/a", "openai/b"))}
    return World(small(rounds=2, plans=2, implementations=1, **search).model_copy(update=changes))


def serve_late(world: World, key: EffectKey) -> tuple[str, str | None]:
    return ensemble.planner_of(world.state, key), ensemble.model_of(world.state, key)


def test_who_had_a_slot_answers_for_it_in_later_rounds_too():
    """An executor that is late is delivered again, as after a kill, while another has its slot."""
    world = two_models(beam=1)
    world.finish(until=lambda state: state.in_round)
    while not in_flight(world, Role.EXECUTOR):
        world.step()
    (late, *_) = in_flight(world, Role.EXECUTOR)
    assert serve_late(world, late) == ("local", "local/a")
    world._in_flight.remove(late)  # nothing comes of it for now
    cut_off(world)
    world.finish(until=lambda state: state.round == 2 and state.in_round)
    assert [(slot.planner, slot.model) for slot in world.state.slots] == [("openai", "openai/b")]
    opened = world.state.open[str(late)]
    world.append(ExecutionStarted(key=str(late), request=opened.request, delivery=2, reserved_usd=0.0))
    assert serve_late(world, late) == ("local", "local/a")
    assert serve_late(world, late.for_role(Role.REFLECTOR)) == ("local", "local/a")
    assert serve_late(world, late._replace(round=2)) == ("openai", "openai/b")


def test_what_is_late_counts_for_the_model_that_made_it():
    world = until_judging(two_models(beam=1))
    cut_off(world)
    held, world._in_flight = world._in_flight, []
    world.finish(until=lambda state: state.round == 2 and state.in_round)
    world._in_flight.extend(held)
    world.finish()
    whose = {event.round: {slot.slot: slot.model for slot in event.slots} for event in world.of(RoundStarted)}
    counted = Counter(
        whose[key.round][key.slot]
        for event in world.of(RoundCompleted)
        for key in (EffectKey.parse(f"{one.candidate}.executor") for one in event.attempts)
    )
    assert counted["local/a"] == len(held) == 2
    assert {model: one.attempts for model, one in world.state.models.items()} == counted


def test_a_late_place_hashes_as_before_its_slot_was_kept(late):
    assert all(one.slot is not None for one in late.state.late.values())
    assert not any("slot" in one for one in dump_semantic(late.state)["late"].values())


@pytest.mark.parametrize("round_", [0, 2])
def test_a_deadline_of_another_round_is_refused(late, round_):
    with pytest.raises((IllegalEvent, ValueError)):
        apply_event(late.state, RoundDeadlinePassed(round=round_))
    with pytest.raises(IllegalEvent):
        apply_event(late.state, RoundDeadlinePassed(round=1))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=scale_examples(40), deadline=None)
def test_whenever_deadlines_pass_every_kernel_is_decided_on_once(seed):
    """Deadlines, arrivals and crashes in any order: the run ends, and its events fold to the same state."""
    odds = random.Random(seed)
    world = World(small(rounds=3, beam=2), order=seed, faults=Faults(crash=0.02))
    while not world.state.has_ended:
        if world.state.is_joinable and odds.random() < 0.05:
            cut_off(world)
        if world.state.is_joinable and odds.random() < 0.01:
            world.propose(f"TILE_M = {odds.randrange(1, 900)}\nTILE_N = 512\nBUFFERS = 4\n")
        assert world.step() or world.state.has_ended
    decided = [event for event in world.events if isinstance(event, KernelKept | KernelDiscarded)]
    told = [event.candidate.id if isinstance(event, KernelKept) else event.candidate for event in decided]
    assert len(told) == len(set(told))
    assert {EffectKey.parse(event.key).candidate_id for event in world.of(KernelProposed)} <= set(told)
    assert fold(world.events) == world.state
