"""What repair and memory are worth, with a model of known habits; and that they are worth nothing unread.

Each mechanism is measured against a negative control: the same model with the same luck that does not read
what the mechanism gives it.
"""

from __future__ import annotations

from collections import Counter
from statistics import mean

import pytest

from state.events import EvaluationCompleted, ExecutionFailed, ExperienceRecorded, KernelProposed
from state.model import EffectKey, RunConfig, SearchConfig, Verdict
from tests.support.simulated_model import FILES, KERNEL, Habits, Model, ModelProposer, judge
from tests.support.world import World

SEEDS = range(10)
"""So many that neither the luck of one seed nor a word more in the menu decides."""


def run(habits: Habits, seed: int = 0, **search: int) -> tuple[World, Model]:
    """Return a finished run with a simulated model."""
    numbers = {"beam": 1, "plans": 2, "implementations": 1, "rounds": 4, "plateau_rounds": 9, "explorers": 0}
    config = RunConfig(
        problem="gates", planner=("scripted",), seed=seed, search=SearchConfig(**(numbers | search))
    )
    model = Model(habits)
    world = World(config, kernel=KERNEL, judge=judge, proposer=ModelProposer(model), files=FILES)
    return world.finish(), model


def valid_rate(world: World) -> float:
    """Return the share of places, each a plan's implementation, that came to a correct kernel."""
    places: dict[tuple[int, ...], bool] = {}
    for event in world.events:
        if isinstance(event, KernelProposed | ExecutionFailed | EvaluationCompleted):
            key = EffectKey.parse(event.key)
            if key.round:
                correct = isinstance(event, EvaluationCompleted) and event.evaluation.is_correct
                places[key[:4]] = places.get(key[:4], False) or correct
    return mean(places.values())


def speedup(world: World) -> float:
    assert world.state.best is not None
    return first_ms() / world.state.best.latency_ms


def first_ms() -> float:
    benchmark = judge(KERNEL).benchmark
    assert benchmark is not None
    return benchmark.latency_ms


# --- the model is what it says --------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_of_good_answers_has_only_valid_kernels_and_gets_faster():
    runs = [run(Habits(), seed) for seed in SEEDS]
    assert {valid_rate(world) for world, _ in runs} == {1.0}
    assert mean(speedup(world) for world, _ in runs) > 1.3
    asked = sum((model.asked for _, model in runs), Counter[str]())
    assert set(asked) == {"planner", "executor", "summarizer", "reflector"}


@pytest.mark.parametrize(
    ("habits", "verdict"),
    [
        (Habits(wrong=1.0), Verdict.INCORRECT),
        (Habits(broken=1.0, reads_errors=False), Verdict.COMPILE_ERROR),
        (Habits(slow=1.0), Verdict.CORRECT),
    ],
)
def test_each_kind_of_answer_has_its_verdict(habits, verdict):
    world, _ = run(habits, rounds=1)
    found = {
        event.evaluation.verdict
        for event in world.of(EvaluationCompleted)
        if EffectKey.parse(event.key).round
    }
    assert found == {verdict}
    assert speedup(world) == pytest.approx(1.0)


def test_hostile_answers_end_their_effects_and_nothing_else():
    world, model = run(Habits(hostile=1.0), plans=8)
    assert world.state.has_ended
    codes = {event.error.code for event in world.of(ExecutionFailed)}
    assert codes <= {"no_block", "not_python", "no_kernel", "bad_edits"}
    assert len(codes) > 1
    assert model.asked["executor"] == 2 * len(world.of(ExecutionFailed))
    assert speedup(world) == pytest.approx(1.0)


@pytest.mark.slow
def test_some_bad_answers_do_not_keep_a_run_from_gaining():
    mixed = Habits(wrong=0.15, slow=0.15, broken=0.15, hostile=0.15)
    gains = [speedup(run(mixed, seed)[0]) for seed in SEEDS]
    assert min(gains) >= 1.0
    assert mean(gains) > 1.2


# --- repair ---------------------------------------------------------------------------------------


def rates(habits: Habits, repairs: int) -> list[float]:
    return [valid_rate(run(habits, seed, repairs=repairs, rounds=3, plans=4)[0]) for seed in SEEDS]


@pytest.mark.slow
def test_repair_raises_the_rate_of_valid_kernels_of_a_model_that_reads_errors():
    habits = Habits(broken=0.4, wrong=0.1)
    without, with_repair = rates(habits, 0), rates(habits, 2)
    assert mean(with_repair) > mean(without) + 0.2
    assert mean(with_repair) < 1.0  # wrong numbers name no culprit


@pytest.mark.slow
def test_repair_does_nothing_for_a_model_that_ignores_errors():
    habits = Habits(broken=0.4, wrong=0.1, reads_errors=False)
    assert rates(habits, 2) == rates(habits, 0)


def test_repair_stops_when_the_same_error_comes_back():
    _, model = run(Habits(broken=1.0, reads_errors=False), rounds=1, plans=3, repairs=5)
    assert model.asked["repairer"] == 3


# --- memory ---------------------------------------------------------------------------------------


def gains(habits: Habits, experiences: int) -> list[float]:
    return [speedup(run(habits, seed, experiences=experiences, plans=1)[0]) for seed in SEEDS]


@pytest.mark.slow
def test_memory_helps_a_model_that_reads_it():
    without, with_memory = gains(Habits(), 0), gains(Habits(), 16)
    assert mean(with_memory) > mean(without) * 1.1


@pytest.mark.slow
def test_memory_shows_no_gain_for_a_model_that_does_not_read_it():
    habits = Habits(reads_memory=False)
    assert gains(habits, 16) == gains(habits, 0)


def test_what_is_remembered_is_what_paid():
    world, _ = run(Habits())
    learnt = [event.experience for event in world.of(ExperienceRecorded) if event.experience]
    assert learnt
    assert {one.technique for one in learnt} == {"hoist"}
    assert all(one.summary.startswith("hoist pays\nDo it wherever") for one in learnt)
    assert "It came out" in world.state.reflections[0].lesson
