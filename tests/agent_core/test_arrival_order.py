"""Twins: whatever the order of arrival, the crashes and the repeats, a run comes to the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_core.decide import decide
from agent_core.effects import Effect
from state.events import (
    BeamSelected,
    EffectEnded,
    EffectStarted,
    ExecutionStarted,
    GuardCheckpointed,
    KernelKept,
    KernelReverted,
    RunPaused,
    RunResumed,
    effect_key,
)
from state.fold import RunState, state_hash
from state.model import Level, RunConfig, digest_of
from tests.support.sweeps import scale_examples
from tests.support.world import KERNEL, Catch, Faults, World, fold, judge_constants, small

orders = st.integers(min_value=0, max_value=2**32)
configs = st.builds(
    small,
    beam=st.integers(1, 3),
    plans=st.integers(1, 3),
    implementations=st.integers(1, 2),
    explorers=st.integers(0, 2),
    rounds=st.integers(1, 3),
    repairs=st.integers(0, 2),
    top_k=st.integers(0, 4),
    explorer_depth=st.integers(1, 2),
)


@st.composite
def catches(draw: st.DrawFn) -> Catch:
    """Draw what comparing more shows: some kernels are wrong from a level on, by what they are made of."""
    share, salt = draw(st.sampled_from([0, 0, 2, 5])), draw(st.integers(0, 99))

    def catch(source: str, level: Level) -> bool:
        code = judge_constants(source).code
        chance = int.from_bytes(digest_of(f"{salt} {code}".encode()).encode()[:4])
        late = Level.ONE_SEED if chance % 2 else Level.WHOLE
        return source != KERNEL and chance // 2 % 10 < share and level.covers(late)

    return catch


MINE = "TILE_M = 32\nTILE_N = 512\nBUFFERS = 2\n"


def with_person(world: World) -> World:
    """Finish a run in which a person proposes a kernel when round 1 begins."""
    world.finish(until=lambda state: state.round == 1 or state.has_ended)
    if not world.state.has_ended:
        world.propose(MINE)
    return world.finish()


@settings(max_examples=scale_examples(40))
@given(configs, catches(), st.integers(0, 3), orders)
def test_any_order_of_arrival_gives_the_same_state_and_decisions(
    config: RunConfig, catch: Catch, seed: int, order: int
):
    config = config.model_copy(update={"seed": seed})
    ordered = with_person(World(config, catch=catch))
    shuffled = with_person(World(config, catch=catch, order=order))
    assert shuffled.fingerprint == ordered.fingerprint
    assert shuffled.state.has_ended


@settings(max_examples=scale_examples(25))
@given(configs, catches(), orders)
def test_crashes_and_repeated_outcomes_change_nothing(config: RunConfig, catch: Catch, order: int):
    undisturbed = World(config, catch=catch).finish()
    faults = Faults(crash=0.1, repeat=0.3)
    disturbed = World(config, catch=catch, order=order, faults=faults).finish()
    assert disturbed.fingerprint == undisturbed.fingerprint
    ends = [event.key for event in disturbed.events if isinstance(event, EffectEnded)]
    assert len(ends) == len(set(ends))


def test_crashes_do_happen_and_are_redelivered_as_logged():
    world = World(order=4, faults=Faults(crash=0.2)).finish()
    assert world.crashes > 10
    requests: dict[str, set[str]] = {}
    for event in world.events:
        if isinstance(event, EffectStarted):
            requests.setdefault(event.key, set()).add(event.request)
    assert max(event.delivery for event in world.events if isinstance(event, EffectStarted)) > 1
    assert {len(asked) for asked in requests.values()} == {1}


@pytest.mark.slow
def test_such_runs_repair_learn_revert_and_refuse():
    """Otherwise the properties above would say little."""
    world = World(small(beam=4, plans=6, implementations=1, rounds=6), order=3).finish()
    assert world.of(KernelReverted)
    assert world.state.memory
    assert world.state.tally.failed
    assert world.state.tally.duplicates
    assert any(effect_key(event).repair for event in world.of(ExecutionStarted))


@settings(max_examples=scale_examples(10))
@given(configs, orders, st.data())
def test_every_prefix_folds_and_can_be_decided_on(config: RunConfig, order: int, data: st.DataObject):
    world = World(config, order=order).finish()
    cut = data.draw(st.integers(1, len(world.events)))
    state = fold(world.events[:cut])
    for decision in decide(state):
        if isinstance(decision, Effect):
            assert str(decision.key) not in state.open
    assert state_hash(fold(world.events)) == state_hash(world.state)


@settings(max_examples=scale_examples(10))
@given(configs, orders)
def test_a_log_read_back_from_json_folds_to_the_same_state(config: RunConfig, order: int):
    world = World(config, order=order).finish(until=lambda state: len(state.open) > 4 or state.has_ended)
    read = [type(event).model_validate_json(event.model_dump_json()) for event in world.events]
    assert state_hash(fold(read)) == state_hash(world.state)


@pytest.mark.slow
@settings(max_examples=5)
@given(orders)
def test_decide_does_not_see_the_order_of_any_mapping(order: int):
    """A snapshot stores mappings in another order than they grew in."""
    world = World(small(plans=3, implementations=1), order=order).finish(until=lambda state: state.round == 2)
    for source in (MINE, MINE + "# the same\n", "TILE_M = 64\n"):
        world.propose(source)
    while not world.state.has_ended:
        decided = decide(world.state)
        assert decide(_reorder_open_effects(world.state, lambda pairs: dict(sorted(pairs)))) == decided
        assert decide(_reorder_open_effects(world.state, lambda pairs: dict(reversed(pairs)))) == decided
        world.step()


def _reorder_open_effects(
    state: RunState, order: Callable[[list[tuple[str, Any]]], dict[str, Any]]
) -> RunState:
    return RunState.model_validate(json.loads(state.model_dump_json(), object_pairs_hook=order))


@settings(max_examples=scale_examples(20))
@given(configs, catches(), orders)
def test_what_the_state_holds_stood_on_whole_outputs(config: RunConfig, catch: Catch, order: int):
    world = with_person(World(config, catch=catch, order=order))
    held = [entry.candidate for event in world.of(BeamSelected) for entry in event.beam]
    held += [event.checkpoint.candidate for event in world.of(GuardCheckpointed)]
    assert {one.level for one in held} <= {Level.ONE_SEED}
    assert not any(catch(world.source(one.source), Level.ONE_SEED) for one in held)
    best = world.state.best
    assert best is not None
    assert best.level is Level.WHOLE
    assert not catch(world.source(best.source), Level.WHOLE)


@settings(max_examples=scale_examples(20))
@given(configs, orders)
def test_a_beam_holds_kernels_that_were_kept_each_code_once(config: RunConfig, order: int):
    world = with_person(World(config, order=order))
    kept = {event.candidate.id for event in world.of(KernelKept)}
    for event in world.of(BeamSelected):
        codes = [entry.candidate.code for entry in event.beam]
        assert len(codes) == len(set(codes)) <= config.search.beam
        assert {entry.candidate.id for entry in event.beam} <= kept


@settings(max_examples=scale_examples(10))
@given(orders, st.integers(1, 120))
def test_a_pause_anywhere_changes_nothing(order: int, steps: int):
    twin = World().finish()
    world = World(order=order)
    for _ in range(steps):
        world.step()
    if not world.state.has_ended:
        world.append(RunPaused(reason="test"))
        world.finish()
        world.append(RunResumed())
    assert world.finish().fingerprint == twin.fingerprint


def test_another_seed_is_another_run():
    one, other = (World(small().model_copy(update={"seed": seed})).finish() for seed in (0, 1))
    assert one.fingerprint != other.fingerprint


def test_the_judge_of_these_worlds_knows_duplicates_by_their_code():
    assert judge_constants("TILE_M = 2\n").code == judge_constants("TILE_M = 2  # the same\n").code
    assert judge_constants("TILE_M = 2\n").code != judge_constants("TILE_M = 4\n").code
