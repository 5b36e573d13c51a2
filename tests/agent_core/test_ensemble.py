"""Slots dealt to models: by weight, to the better one in time, evenly between equals, the same every time."""

from __future__ import annotations

from collections import Counter
from math import log
from random import Random

import pytest

from agent_core import ensemble
from agent_core.decide import decide
from agent_core.effects import Record
from agent_core.ensemble import ModelShare
from state.events import RoundStarted
from state.model import (
    EffectKey,
    LlmConfig,
    ModelRecord,
    Role,
    RunConfig,
    SearchConfig,
    SlotAssignment,
)
from tests.support.world import World, small

FAST, SLOW = "anthropic/fast", "local/slow"


def config(*models: str, planner: tuple[str, ...] = ("llm",), seed: int = 0) -> RunConfig:
    return RunConfig(planner=planner, seed=seed, llm=LlmConfig(models=models), search=SearchConfig(beam=6))


def count_dealt(
    settings: RunConfig, models: dict[str, ModelRecord] | None = None, *, round_: int = 0
) -> Counter:
    state = World().state.model_copy(update={"models": models or {}, "round": round_})
    planners = [settings.planner[n % len(settings.planner)] for n in range(6)]
    return Counter(ensemble.assign_models(state, settings, planners))


def test_models_are_read_with_their_weights():
    assert ensemble.parse_model_shares(("a/m", "b/x/y:1=2.5", "a/m=2", "c/none=0")) == (
        ModelShare("a/m", 3.0),
        ModelShare("b/x/y:1", 2.5),
    )
    assert ensemble.endpoint_of("b/x/y:1") == "b"


def test_without_evidence_slots_go_by_weight():
    assert count_dealt(config(FAST, SLOW)) == {FAST: 3, SLOW: 3}
    assert count_dealt(config(f"{FAST}=2", SLOW)) == {FAST: 4, SLOW: 2}
    assert count_dealt(config(FAST)) == {FAST: 6}


def test_a_planner_is_served_by_the_models_of_its_endpoint():
    both = config(FAST, SLOW, planner=("anthropic", "local", "builtin"))
    assert count_dealt(both) == {FAST: 2, SLOW: 2, None: 2}
    assert count_dealt(config(FAST, planner=("openai",))) == {None: 6}


def test_the_same_round_is_dealt_the_same_and_another_one_differently():
    settings = config(FAST, SLOW)
    state = World().state
    rounds = [
        tuple(ensemble.assign_models(state.model_copy(update={"round": n}), settings, ["llm"] * 6))
        for n in range(20)
    ]
    again = [
        tuple(ensemble.assign_models(state.model_copy(update={"round": n}), settings, ["llm"] * 6))
        for n in range(20)
    ]
    assert rounds == again
    assert len(set(rounds)) > 1


def simulate(rounds: int, quality: dict[str, tuple[float, float, float]], seed: int) -> Counter:
    """Deal rounds to models of (validity, chance of gaining 10 %, dollars per attempt); count their slots."""
    random = Random(seed)
    records: dict[str, ModelRecord] = {}
    total: Counter = Counter()
    settings = config(*quality, seed=seed)
    for round_ in range(rounds):
        slots = count_dealt(settings, records, round_=round_)
        total += slots
        for model, count in slots.items():
            valid, gains, cost = quality[model]
            one = records.get(model, ModelRecord())
            for _ in range(count * 12):
                right = random.random() < valid
                gained = right and random.random() < gains
                one = one.model_copy(
                    update={
                        "attempts": one.attempts + 1,
                        "answers": one.answers + 1,
                        "tokens": one.tokens + 1000,
                        "usd": one.usd + cost,
                        "valid": one.valid + right,
                        "gains": one.gains + gained,
                        "log_gain": one.log_gain + gained * log(1.1),
                    }
                )
            records[model] = one
    return total


@pytest.mark.parametrize(
    "better",
    [(0.9, 0.2, 0.01), (0.5, 0.4, 0.01), (0.5, 0.2, 0.003)],
    ids=["more of its kernels are valid", "it gains more often", "it costs less"],
)
@pytest.mark.parametrize("seed", range(4))
def test_the_better_model_is_found(better, seed):
    slots = simulate(40, {FAST: better, SLOW: (0.5, 0.2, 0.01)}, seed)
    assert slots[FAST] > 0.6 * slots.total()
    assert slots[SLOW] > 0


@pytest.mark.parametrize("seed", range(8))
def test_equals_stay_even(seed):
    slots = simulate(16, {FAST: (0.6, 0.25, 0.01), SLOW: (0.6, 0.25, 0.01)}, seed)
    assert 0.3 < slots[FAST] / slots.total() < 0.7


def test_without_a_price_models_are_compared_by_tokens():
    known = ModelRecord(answers=10, tokens=1_000, usd=5.0, attempts=40, valid=20, gains=5, log_gain=0.5)
    free = known.model_copy(update={"usd": None, "tokens": 4_000})
    worth = ensemble.score_models([FAST, SLOW], {FAST: known, SLOW: free})
    assert worth[FAST] > 1 > worth[SLOW]


def effect(role: Role, plan: int = 0, repair: int = 0) -> EffectKey:
    return EffectKey(1, 0, plan, 0, repair, role)


def test_a_model_for_an_effect_follows_from_its_draw_where_its_slot_has_none():
    state = World().state.model_copy(update={"config": config("a/one=3", "b/two"), "slots": ()})
    found = Counter(ensemble.model_of(state, effect(Role.PLANNER, plan)) for plan in range(400))
    assert 260 < found["a/one"] < 340
    assert found["a/one"] + found["b/two"] == 400
    bare = state.model_copy(update={"config": config(planner=("local",))})
    assert ensemble.model_of(bare, effect(Role.PLANNER)) is None
    assert ensemble.planner_of(bare, effect(Role.PLANNER)) == "local"


def test_roles_with_models_of_their_own_use_these_and_the_others_the_slot_s():
    slot = SlotAssignment(slot=0, parent="p", planner="llm", model="a/plans", plans=1, implementations=1)
    settings = config("a/plans", "b/other")
    llm = settings.llm.model_copy(
        update={"executor_models": ("c/codes", "d/codes"), "summarizer_models": ("e/notes",)}
    )
    state = World().state.model_copy(
        update={"round": 1, "slots": (slot,), "config": settings.model_copy(update={"llm": llm})}
    )
    assert ensemble.model_of(state, effect(Role.PLANNER)) == "a/plans"
    assert ensemble.model_of(state, effect(Role.SUMMARIZER)) == "e/notes"
    assert ensemble.model_of(state, effect(Role.REFLECTOR)) == "e/notes"
    for plan in range(20):
        coders = {ensemble.model_of(state, effect(Role.EXECUTOR, plan, repair)) for repair in range(3)}
        assert len(coders) == 1
        assert coders <= {"c/codes", "d/codes"}
    plain = state.model_copy(update={"config": settings})
    assert ensemble.model_of(plain, effect(Role.EXECUTOR)) == "a/plans"


def executors(state_roles: dict[str, ModelRecord], *models: str):
    settings = config("a/plans")
    llm = settings.llm.model_copy(update={"executor_models": models})
    settings = settings.model_copy(update={"llm": llm})
    state = World().state.model_copy(update={"config": settings, "roles": state_roles})
    return state, settings


def test_executors_are_drawn_by_what_they_gained_for_what_they_cost_in_this_role():
    good = ModelRecord(answers=100, attempts=100, usd=1.0, valid=60, gains=30, log_gain=6.0)
    dear = good.model_copy(update={"usd": 4.0, "log_gain": 2.0})
    roles = {"executor c/good": good, "executor d/dear": dear, "planner d/dear": good}
    state, settings = executors(roles, "c/good", "d/dear")
    shares = ensemble.weigh_executors(state, settings)
    weights = dict(ensemble.parse_model_shares(shares))
    assert weights["c/good"] > 3 * weights["d/dear"] >= 3 * ensemble.LEAST_SHARE
    named = state.model_copy(update={"executors": shares})
    drawn = Counter(ensemble.model_of(named, effect(Role.EXECUTOR, plan)) for plan in range(200))
    assert drawn["c/good"] > 130
    assert drawn["d/dear"] > 0
    before = Counter(ensemble.model_of(state, effect(Role.EXECUTOR, plan)) for plan in range(200))
    assert 70 < before["d/dear"] < 130, "until a round names shares, the settings' weights count"


def test_executors_without_a_choice_or_evidence_keep_the_settings_weights():
    assert ensemble.weigh_executors(*executors({}, "c/only")) == ()
    assert ensemble.weigh_executors(*executors({})) == ()
    assert ensemble.weigh_executors(*executors({}, "c/one=3", "d/two")) == ("c/one=3", "d/two=1")


@pytest.mark.parametrize("role", [Role.SUMMARIZER, Role.REFLECTOR])
@pytest.mark.parametrize(("models", "least"), [(("c/dear", "d/good"), 80), (("c/dear=3", "d/good"), 130)])
def test_models_of_lessons_share_by_weight_whatever_they_cost_and_others_gained(role, models, least):
    """Nothing credits a lesson, so no record moves these shares (decision 0114)."""
    dear = ModelRecord(answers=100, attempts=100, usd=50.0, valid=1)
    good = ModelRecord(answers=100, attempts=100, usd=0.1, valid=90, gains=60, log_gain=20.0)
    known = {"c/dear": dear, "d/good": good}
    settings = config("a/plans")
    llm = settings.llm.model_copy(update={"summarizer_models": models})
    fresh = World().state.model_copy(update={"config": settings.model_copy(update={"llm": llm})})
    told = fresh.model_copy(
        update={
            "models": known,
            "roles": {f"{one} {model}": known[model] for one in Role for model in known},
            "executors": ("d/good=1",),
        }
    )
    drawn, before = (
        Counter(ensemble.model_of(state, effect(role, plan)) for plan in range(200))
        for state in (told, fresh)
    )
    assert drawn == before
    assert drawn["c/dear"] > least
    assert drawn["d/good"] > 0


def test_a_round_names_the_model_of_each_slot():
    settings = small(rounds=1).model_copy(
        update={"planner": ("local",), "llm": LlmConfig(models=("local/only",))}
    )
    world = World(settings)
    for _ in range(50):
        records = [one for one in decide(world.state) if isinstance(one, Record)]
        started = [event for one in records for event in one.events if isinstance(event, RoundStarted)]
        if started:
            break
        world.step()
    assert {slot.model for slot in started[0].slots} == {"local/only"}
