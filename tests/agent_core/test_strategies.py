"""Strategies: parents, survivors and numbers of each, in whole runs in memory and by their rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest

from agent_core import proposers
from agent_core.effects import LookAheadRequest
from agent_core.strategies import STRATEGIES, apply_strategy, drawn_sequence_length, rounds_within
from state.events import (
    BeamSelected,
    ConfigChanged,
    EvaluationStarted,
    KernelKept,
    PredictionStarted,
    RoundStarted,
    RunCompleted,
)
from state.fold import dump_semantic
from state.model import BeamRole, SearchConfig
from state.model.settings import StrategyName
from tests.support.sweeps import parametrize_sweep
from tests.support.world import Faults, World, small

NAMES = tuple(STRATEGIES)


def world(strategy: str, **search: object) -> World:
    return World(small(strategy=strategy, **({"rounds": 5, "repairs": 0, "plans": 4} | search)))


def count_judged(found: World) -> int:
    return sum(event.key.endswith("evaluator") for event in found.of(EvaluationStarted))


def test_the_names_are_those_that_the_configuration_takes():
    assert get_args(StrategyName) == NAMES


@parametrize_sweep("strategy", NAMES, quick=["beam", "greedy"])
def test_a_run_improves_its_kernel_and_never_loses_the_fastest(strategy: str):
    done = world(strategy).finish()
    assert done.of(RunCompleted)
    fastest = min(event.candidate.latency_ms for event in done.of(KernelKept))
    assert done.state.best.latency_ms == fastest < done.state.initial.latency_ms
    for selected in done.of(BeamSelected)[1:]:
        assert selected.beam[0].candidate.latency_ms <= done.state.initial.latency_ms


@parametrize_sweep("strategy", NAMES, quick=["beam", "evolution"])
def test_orders_crashes_and_repeats_change_nothing(strategy: str):
    config = small(strategy=strategy, rounds=2)
    plain = World(config).finish()
    troubled = World(config, order=3, faults=Faults(crash=0.2, repeat=0.2)).finish()
    assert troubled.fingerprint == plain.fingerprint


@pytest.mark.parametrize("strategy", NAMES)
@parametrize_sweep("candidates", [1, 14, 40], quick=[14])
def test_no_more_kernels_are_judged_than_rounds_are_counted_for(strategy: str, candidates: int):
    search = small(strategy=strategy, plans=2, implementations=1, repairs=0).search
    rounds = rounds_within(candidates, search)
    done = World(small(**search.model_dump(exclude={"rounds"}), rounds=rounds)).finish()
    least = 1 + apply_strategy(search).beam * search.plans
    assert count_judged(done) <= max(candidates, least)


def test_greedy_improves_the_fastest_kernel_alone_by_one_rewrite_at_a_time():
    done = world("greedy").finish()
    for started, selected in zip(done.of(RoundStarted), done.of(BeamSelected), strict=False):
        assert [slot.parent for slot in started.slots] == [selected.beam[0].candidate.id]
        assert len(selected.beam) == 1
    search = apply_strategy(SearchConfig(strategy="greedy", beam=9, lookahead_depth=7))
    assert (search.beam, search.lookahead_depth, search.lookahead_width) == (1, 1, 1)


def test_best_of_n_starts_from_the_initial_kernel_in_each_slot_and_round():
    done = world("best-of-n", beam=3).finish()
    initial = done.state.initial.id
    for started in done.of(RoundStarted):
        assert [slot.parent for slot in started.slots] == [initial] * 3
    assert all(event.candidate.parent in {None, initial} for event in done.of(KernelKept))


@pytest.mark.slow
def test_random_draws_parents_and_survivors():
    runs = [World(small(strategy="random", rounds=6, plans=4).model_copy(update={"seed": n})) for n in (0, 1)]
    parents = [
        [slot.parent for event in one.finish().of(RoundStarted) for slot in event.slots] for one in runs
    ]
    assert parents[0] != parents[1]
    slower = [[entry.candidate.latency_ms for entry in event.beam] for event in runs[0].of(BeamSelected)[2:]]
    kept = {event.candidate.latency_ms for event in runs[0].of(KernelKept)}
    assert any(beam != sorted(kept)[: len(beam)] for beam in slower)


@pytest.mark.slow
def test_evolution_prefers_fast_parents_and_keeps_the_fittest():
    turns: Counter[int] = Counter()
    for seed in range(3):
        done = World(
            small(strategy="evolution", rounds=6, plans=4).model_copy(update={"seed": seed})
        ).finish()
        for started, selected in zip(done.of(RoundStarted), done.of(BeamSelected), strict=False):
            ranks = {entry.candidate.id: rank for rank, entry in enumerate(selected.beam)}
            if len(ranks) == 3:
                turns.update(ranks[slot.parent] for slot in started.slots)
    assert turns[0] > turns[2]
    assert sum(turns.values()) > 12


def test_another_strategy_counts_from_the_next_round_on():
    run = world("beam").finish(until=lambda state: state.round == 2 and state.in_round)
    before = len(run.of(RoundStarted)[-1].slots)
    changed = run.state.config.search.model_copy(update={"strategy": "greedy"})
    config = run.state.config.model_copy(update={"search": changed})
    run.append(ConfigChanged(config=config.model_dump(mode="json")))
    run.finish()
    assert before > 1
    assert [len(event.slots) for event in run.of(RoundStarted)[2:]] == [1] * 3
    assert [len(event.beam) for event in run.of(BeamSelected)[3:]] == [1] * 3


@pytest.mark.slow
def test_only_the_beam_has_explorers():
    for strategy in NAMES[1:]:
        kept = world(strategy, rounds=2).finish().of(KernelKept)
        assert {event.role for event in kept} == {BeamRole.ELITE}


@pytest.mark.parametrize(
    ("strategy", "predictions", "longest"),
    [("best-of-n", 8, 12), ("random", 8, 1), ("evolution", 8, 2), ("random", 0, 1), ("beam", 8, 0)],
)
def test_who_draws_is_asked_to_draw_also_without_predictions(
    monkeypatch: pytest.MonkeyPatch, strategy: str, predictions: int, longest: int
):
    entry = replace(proposers._NEUTRAL["scripted"], looks_ahead=True)
    monkeypatch.setitem(proposers._NEUTRAL, "scripted", entry)
    done = world(strategy, rounds=1, lookahead_predictions=predictions).finish()
    asked = [
        LookAheadRequest.model_validate_json(done.blobs[event.request])
        for event in done.of(PredictionStarted)
    ]
    assert {(one.drawn, one.predictions) for one in asked} == {(longest, predictions)}


def test_no_drawn_sequence_is_longer_than_any_may_be():
    assert drawn_sequence_length(SearchConfig(strategy="best-of-n", lookahead_depth=5)) == 5
    assert drawn_sequence_length(SearchConfig(strategy="beam")) == 0


def test_a_beam_hashes_as_it_did_before_there_were_others():
    beam, other = world("beam").state, world("random").state
    assert "strategy" not in dump_semantic(beam)["config"]["search"]
    assert dump_semantic(other)["config"]["search"]["strategy"] == "random"


def test_only_the_beam_tries_first_what_paid_elsewhere():
    assert [name for name, one in STRATEGIES.items() if one.reuses] == ["beam"]
