"""What is wrong with a run's models before it starts: names, keys, and money, each fault in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from agent_core.ensemble import serving, shares
from agent_core.proposers import ANY, asks_models
from agent_core.providers import keys, registry
from agent_core.providers.keys import KeyFault
from agent_core.providers.registry import UnknownEndpoint
from daemon.calls import known
from daemon.config import DaemonConfig
from state.model import RunConfig

_MODELS = ("models", "executor_models", "summarizer_models")


def faults(run: RunConfig, daemon: DaemonConfig, env: Mapping[str, str], *, sends: bool = True) -> list[str]:
    """Return what keeps a run's models from being asked; nothing where none of its planners asks any.

    Where nobody `sends`, no keys are needed.
    """
    planners = [name for name in dict.fromkeys(run.planner) if asks_models(name)]
    if not planners:
        return []
    found = [*_unknown(run), *_unserved(run, planners)]
    if found:
        return found
    return [*(_keyless(run, daemon, env) if sends else ()), *_unpaid(run, daemon)]


def unnamed(run: RunConfig, daemon: DaemonConfig, env: Mapping[str, str]) -> list[str]:
    """Return which models of settings for runs to come are unknown, or have no key.

    What is missing may still be given with the run: money, or who plans.
    """
    return [*_unknown(run)] or [*_keyless(run, daemon, env)]


def _unknown(run: RunConfig) -> Iterator[str]:
    for setting in _MODELS:
        for one in shares(getattr(run.llm, setting)):
            try:
                registry.needs_key(one.endpoint)
            except UnknownEndpoint as error:
                yield f"run.llm.{setting}: {one.model}: {error}"


def _unserved(run: RunConfig, planners: list[str]) -> Iterator[str]:
    for planner in planners:
        if not serving(planner, run):
            endpoint = "ENDPOINT" if planner == ANY else planner
            yield (
                f"run.planner: no model is given for {planner}: "
                f'set run.llm.models, such as ["{endpoint}/MODEL"]'
            )


def used(run: RunConfig) -> list[str]:
    """Return the models that a run may ask, ENDPOINT/MODEL."""
    planners = [name for name in dict.fromkeys(run.planner) if asks_models(name)]
    planning = [one for planner in planners for one in serving(planner, run)]
    own = (*run.llm.executor_models, *run.llm.summarizer_models) if planners else ()
    return list(dict.fromkeys(one.model for one in (*planning, *shares(own))))


def _keyless(run: RunConfig, daemon: DaemonConfig, env: Mapping[str, str]) -> Iterator[str]:
    for endpoint in dict.fromkeys(model.partition("/")[0] for model in used(run)):
        settings = daemon.endpoint(endpoint)
        try:
            key = keys.key_of(endpoint, env, Path(settings.key_file) if settings.key_file else None)
        except KeyFault as error:
            yield str(error)
            continue
        if key is None and registry.needs_key(endpoint) and settings.base_url is None:
            yield f"no key for {endpoint}: give it by {keys.where(endpoint)}"


def _unpaid(run: RunConfig, daemon: DaemonConfig) -> Iterator[str]:
    """Yield that a run may not spend what its models cost."""
    if run.cap_usd > 0:
        return
    for model in used(run):
        price = known.price(daemon, model)
        if price is not None and price.ceiling(1000, 1000) > 0:
            yield f"run.cap_usd = 0: {model} costs money; say how much the run may spend, in US$"
            return
