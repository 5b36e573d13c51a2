"""Model ensembles: which LLM serves which slot, by the models' weights and their results so far.

A model is named ENDPOINT/MODEL. Its share of a round's slots is its weight times its score: how often its
kernels were valid, times their gain, divided by the cost of its answers. With little evidence, each of these
is pulled towards the average of all models of the run, so that chance does not decide between equals. No
share falls below a tenth of the model's weight, so that an unlucky model is tried again. If executors have
models of their own, these are drawn by such shares too, from what each brought in this role. Everything
follows from the state at the beginning of a round and the run's seed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

from agent_core.proposers import ANY_ENDPOINT, is_llm_proposer
from state.call_fold import role_record_name
from state.fold import RunState
from state.model import EffectKey, ModelRecord, Role, RunConfig, draw_seed

PRIOR_ATTEMPTS = 24
"""How many attempts of the average model are added to each model's own."""

LEAST_SHARE = 0.1
"""The part of its weight that a model keeps, whatever its score."""

NO_GAIN = 0.02
"""What a valid kernel without a gain is worth, as ln(speed-up): it is better than a wrong one."""


class ModelShare(NamedTuple):
    """A model, ENDPOINT/MODEL, and its weight."""

    model: str
    weight: float

    @property
    def endpoint(self) -> str:
        return endpoint_of(self.model)


def endpoint_of(model: str) -> str:
    """Return the endpoint that serves a model."""
    return model.partition("/")[0]


def parse_model_shares(texts: Sequence[str]) -> tuple[ModelShare, ...]:
    """Parse models as the configuration names them; the weights of a repeated model are added."""
    found: dict[str, float] = {}
    for text in texts:
        model, _, weight = text.partition("=")
        found[model] = found.get(model, 0.0) + (float(weight) if weight else 1.0)
    return tuple(ModelShare(model, weight) for model, weight in found.items() if weight > 0)


def planner_models(planner: str, config: RunConfig) -> tuple[ModelShare, ...]:
    """Return the models that may plan in a slot of this planner."""
    known = parse_model_shares(config.llm.models)
    return known if planner == ANY_ENDPOINT else tuple(one for one in known if one.endpoint == planner)


def assign_models(state: RunState, config: RunConfig, planners: Sequence[str]) -> list[str | None]:
    """Return the model of each slot of the next round; None if its planner asks no LLM, or has no model."""
    dealt: list[str | None] = [None] * len(planners)
    for planner in dict.fromkeys(filter(is_llm_proposer, planners)):
        slots = [number for number, name in enumerate(planners) if name == planner]
        models = planner_models(planner, config)
        if models:
            random = Random(f"{config.seed}|{state.round + 1}|{planner}|models")  # noqa: S311 - no secret
            found = _sample_by_share(_weigh_models(models, state.models), len(slots), random)
            for slot, model in zip(slots, found, strict=True):
                dealt[slot] = model
    return dealt


def weigh_executors(state: RunState, config: RunConfig) -> tuple[str, ...]:
    """Return the executor's own models for the next round, MODEL=WEIGHT; empty if there is no choice."""
    models = parse_model_shares(config.llm.executor_models)
    if len(models) < 2:
        return ()
    names = {one.model: role_record_name(Role.EXECUTOR, one.model) for one in models}
    known = {model: state.roles.get(name, ModelRecord()) for model, name in names.items()}
    return tuple(f"{one.model}={one.weight:.6g}" for one in _weigh_models(models, known))


def _draw_model(models: Sequence[ModelShare], draw: int) -> str | None:
    """Draw one of the models by weight, seeded with an effect's draw; None if there are no models."""
    if not models:
        return None
    random = Random(f"{draw}|model")  # noqa: S311 - no secret
    return random.choices([one.model for one in models], [one.weight for one in models])[0]


def planner_of(state: RunState, key: EffectKey) -> str:
    """Return the planner of an effect's slot; for a person's kernel, the run's first planner."""
    slot = state.slot_of(key)
    return slot.planner if slot is not None else state.config.planner[0]


def model_of(state: RunState, key: EffectKey) -> str | None:
    """Return the model that answers an effect: that of its slot, or one of those configured for its role.

    All repairs of a kernel ask the same model, and so do all calls of an effect, even if the configuration
    changes meanwhile. None if its planner has no model.
    """
    asked = state.open.get(str(key))
    if asked is not None and asked.calls:
        return asked.calls[0].model
    config = state.config
    draw = draw_seed(config.seed, key._replace(repair=0))
    slot = state.slot_of(key)
    return (
        _draw_model(parse_model_shares(_role_models(key.role, state)), draw)
        or (slot.model if slot is not None else None)
        or _draw_model(planner_models(planner_of(state, key), config), draw)
    )


def _role_models(role: Role, state: RunState) -> tuple[str, ...]:
    config = state.config
    if role is Role.EXECUTOR:
        return state.executors or config.llm.executor_models
    return config.llm.summarizer_models if role in (Role.SUMMARIZER, Role.REFLECTOR) else ()


def score_models(models: Sequence[str], known: Mapping[str, ModelRecord]) -> dict[str, float]:
    """Return each model's result for its cost; 1 is the average of the given models."""
    records = {model: known.get(model, ModelRecord()) for model in models}
    tries = sum(one.attempts for one in records.values())
    if not tries:
        return dict.fromkeys(models, 1.0)
    cost = _model_costs(records)
    valid = sum(one.valid for one in records.values()) / tries
    gain = sum(one.log_gain for one in records.values()) / tries
    price = sum(cost.values()) / tries
    scores: dict[str, float] = {}
    for model, one in records.items():
        attempts = one.attempts + PRIOR_ATTEMPTS
        validity = (one.valid + PRIOR_ATTEMPTS * valid) / attempts
        gained = (one.log_gain + PRIOR_ATTEMPTS * gain) / attempts
        paid = (cost[model] + PRIOR_ATTEMPTS * price) / attempts
        scores[model] = (validity * NO_GAIN + max(0.0, gained)) / (paid or 1.0)
    average = sum(scores.values()) / len(scores)
    return {model: score / average if average else 1.0 for model, score in scores.items()}


def _model_costs(records: Mapping[str, ModelRecord]) -> dict[str, float]:
    """Return the cost of each model's answers: in dollars, or in tokens if any price is unknown."""
    if any(one.usd is None for one in records.values()):
        return {model: float(one.tokens) for model, one in records.items()}
    return {model: one.usd or 0.0 for model, one in records.items()}


def _weigh_models(models: Sequence[ModelShare], known: Mapping[str, ModelRecord]) -> list[ModelShare]:
    """Return the models with their shares of the slots."""
    found = score_models([one.model for one in models], known)
    return [ModelShare(one.model, one.weight * max(LEAST_SHARE, found[one.model] ** 2)) for one in models]


def _sample_by_share(models: Sequence[ModelShare], count: int, random: Random) -> list[str]:
    """Return `count` models in random order, each as often as its share says, give or take one."""
    total = sum(one.weight for one in models)
    first = random.random()
    ends = list(accumulate(one.weight for one in models))
    marks = [(first + number) / count * total for number in range(count)]
    found = [models[min(bisect_right(ends, mark), len(models) - 1)].model for mark in marks]
    random.shuffle(found)
    return found
