"""Checks a run's models before it starts: names, keys and money. Each fault is one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from agent_core.ensemble import parse_model_shares, planner_models
from agent_core.proposers import AGENT, ANY_ENDPOINT, is_llm_proposer
from agent_core.providers import keys, registry
from agent_core.providers.keys import KeyFault
from agent_core.providers.registry import UnknownEndpoint
from daemon.calls import model_catalog
from daemon.config import DaemonConfig
from state.model import RunConfig

_MODEL_SETTINGS = ("models", "executor_models", "summarizer_models")


def find_model_faults(
    run: RunConfig, daemon: DaemonConfig, env: Mapping[str, str], *, sends: bool = True
) -> list[str]:
    """Return the faults that keep a run's models from being asked; none if no planner asks models.

    Keys are needed only if the caller `sends` questions. Coding agents need a budget, too.
    """
    if agent_faults := list(_find_agent_budget_faults(run)):
        return agent_faults
    planners = [name for name in dict.fromkeys(run.planner) if is_llm_proposer(name)]
    if not planners:
        return []
    found = [*_find_unknown_endpoints(run, daemon), *_find_unserved_planners(run, planners)]
    if found:
        return found
    return [*(_find_missing_needs(run, daemon, env) if sends else ()), *_find_missing_budget(run, daemon)]


def find_unusable_models(run: RunConfig, daemon: DaemonConfig, env: Mapping[str, str]) -> list[str]:
    """Return the models in the settings of new runs that are unknown or have no key.

    A missing budget or planner is no fault here, because it can still be given when a run is started.
    """
    return [*_find_unknown_endpoints(run, daemon)] or [*_find_missing_needs(run, daemon, env)]


def find_unpriced_models(run: RunConfig, daemon: DaemonConfig) -> list[str]:
    """Return a fault for each model whose price is unknown: no cap in US$ can be kept for it, 0 included."""
    rates = "3/0.3/15" if run.cap_usd > 0 else "0/0/0"
    return [
        f"run.cap_usd = {run.cap_usd:g} cannot be kept, as the price of {model} is unknown: set "
        f'daemon.prices, such as ["{model}={rates}"] (US$ per million tokens: input/cached/output)'
        for model in models_of_run(run)
        if model_catalog.model_price(daemon, model) is None
    ]


def _find_unknown_endpoints(run: RunConfig, daemon: DaemonConfig) -> Iterator[str]:
    for setting in _MODEL_SETTINGS:
        for one in parse_model_shares(getattr(run.llm, setting)):
            try:
                daemon.endpoint(one.endpoint)
            except UnknownEndpoint as error:
                yield f"run.llm.{setting}: {one.model}: {error}"


def _find_unserved_planners(run: RunConfig, planners: list[str]) -> Iterator[str]:
    for planner in planners:
        if not planner_models(planner, run):
            endpoint = "ENDPOINT" if planner == ANY_ENDPOINT else planner
            yield (
                f"run.planner: no model is given for {planner}: "
                f'set run.llm.models, such as ["{endpoint}/MODEL"]'
            )


def models_of_run(run: RunConfig) -> list[str]:
    """Return the models that a run may ask, as ENDPOINT/MODEL."""
    planners = [name for name in dict.fromkeys(run.planner) if is_llm_proposer(name)]
    planning = [one for planner in planners for one in planner_models(planner, run)]
    own = (*run.llm.executor_models, *run.llm.summarizer_models) if planners else ()
    return list(dict.fromkeys(one.model for one in (*planning, *parse_model_shares(own))))


def _find_missing_needs(run: RunConfig, daemon: DaemonConfig, env: Mapping[str, str]) -> Iterator[str]:
    """Yield what endpoints lack: a key, a package, a setting."""
    for endpoint in dict.fromkeys(model.partition("/")[0] for model in models_of_run(run)):
        settings = daemon.endpoint(endpoint)
        try:
            key = keys.find_key(endpoint, env, Path(settings.key_file) if settings.key_file else None)
        except KeyFault as error:
            yield str(error)
            continue
        yield from registry.find_missing(endpoint, settings.settings(), env)
        needs_key = registry.find_service(endpoint, settings.settings()).needs_key
        if key is None and needs_key and settings.base_url is None:
            yield f"no key for {endpoint}: give it by {keys.describe_key_sources(endpoint)}"


def _find_missing_budget(run: RunConfig, daemon: DaemonConfig) -> Iterator[str]:
    """Yield a fault if the run's budget does not allow for what its models cost."""
    if run.cap_usd > 0:
        return
    for model in models_of_run(run):
        price = model_catalog.model_price(daemon, model)
        if price is not None and price.max_cost(1000, 1000) > 0:
            yield f"run.cap_usd = 0: {model} costs money; say how much the run may spend, in US$"
            return


def _find_agent_budget_faults(run: RunConfig) -> Iterator[str]:
    """Yield a fault if no coding agent could start under the run's cap, or nothing would bound their cost."""
    if AGENT not in run.planner:
        return
    usd = run.agent.usd
    if usd is None and run.cap_usd == 0:
        yield (
            "run.cap_usd = 0: coding agents cost money; say how much the run may spend, in US$, "
            "or set run.agent.usd = 0 if they are free"
        )
    elif usd is not None and usd > run.cap_usd:
        yield f"run.agent.usd = {usd:g} is more than run.cap_usd = {run.cap_usd:g}: no agent could start"
