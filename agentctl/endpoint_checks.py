"""What `agentctl doctor` says of endpoints of models: keys, packages, credentials, what was learnt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.providers import keys, registry
from agent_core.providers.registry import Service
from daemon.calls.model_checks import models_of_run
from daemon.endpoint_config import OWN_SECTIONS, NamedEndpointConfig
from state.errors import StateError
from state.model import ModelTraits, RunConfig
from state.reader import LogReader

if TYPE_CHECKING:
    from daemon.config import DaemonConfig

GOOD, LOOK, BAD = "good", "look", "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question: `result` is good, look or bad, `found` the finding, `remedy` what you
    can do.
    """

    name: str
    result: str
    found: str
    remedy: str = ""


def check_endpoints(
    home: Path, run: RunConfig, daemon: DaemonConfig, env: Mapping[str, str]
) -> Iterator[Check]:
    """Yield what each endpoint has and lacks: those of old, those configured, those that models name."""
    asked = {model.partition("/")[0] for model in models_of_run(run)}
    needed = any(one not in ("builtin", "knobs") for one in run.planner)
    for name in daemon.endpoint_names:
        if name in OWN_SECTIONS or name in daemon.endpoints or name in asked:
            yield from _check_endpoint(name, daemon.endpoint(name), env, needed=needed)
    yield from _check_models(home)


def _check_endpoint(
    name: str, settings: NamedEndpointConfig, env: Mapping[str, str], *, needed: bool
) -> Iterator[Check]:
    """Yield whether an endpoint can be asked; its key is read only for that."""
    file = None if settings.key_file is None else Path(settings.key_file)
    service = registry.find_service(name, settings.settings())
    sources = f"a key may come from {keys.describe_key_sources(name)}"
    try:
        key = keys.find_key(name, env, file)
    except keys.KeyFault as error:
        yield Check(f"key: {name}", BAD, str(error), sources)
        return
    missing = registry.find_missing(name, settings.settings(), env)
    if missing:
        yield Check(f"endpoint: {name}", BAD, "; ".join(missing), "docs/llm.md says what each service needs")
    elif key is not None:
        yield Check(f"key: {name}", GOOD, "present")
    elif service.has_credentials is not None:
        yield _check_credentials(name, service, settings)
    elif service.needs_key and settings.base_url is None:
        result, remedy = (LOOK, sources) if needed else (GOOD, "")
        yield Check(f"key: {name}", result, "none; only its models need one", remedy)
    else:
        yield Check(f"key: {name}", GOOD, "none, and it needs none")


def _check_credentials(name: str, service: Service, settings: NamedEndpointConfig) -> Check:
    """Return whether the service's own SDK finds credentials."""
    assert service.has_credentials is not None
    try:
        found = service.has_credentials(settings.settings())
    except Exception as error:  # noqa: BLE001 - a vendor's package says here what is wrong with a profile
        return Check(f"endpoint: {name}", BAD, keys.redact(str(error)), f"credentials: {service.credentials}")
    if found:
        return Check(f"endpoint: {name}", GOOD, "credentials found")
    return Check(f"endpoint: {name}", BAD, "no credentials", f"credentials: {service.credentials}")


def _check_models(home: Path) -> Iterator[Check]:
    """Yield what was learnt of models, as the home's log has it."""
    try:
        with LogReader.open(home) as reader:
            learnt = reader.system_state().traits
    except StateError:  # another check reports it
        return
    for model, one in sorted(learnt.items()):
        yield Check(f"model: {model}", GOOD, f"{_describe_traits(one.traits)} (learnt {one.day})")


def _describe_traits(traits: ModelTraits) -> str:
    said = [f"takes no {name}" for name in traits.refused]
    said += ["counts no tokens in streams, so it is asked for whole answers"] if traits.uncounted else []
    if traits.first_token_seconds is not None:
        said.append(f"may take {traits.first_token_seconds:g} s to begin an answer")
    return "; ".join(said)
