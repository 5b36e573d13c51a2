"""Changes the settings of an existing run: some keys replace what it has, and the result is checked as a
whole.

Keys are those of the configuration (`run.search.beam`); `run.` may be omitted. The keys that decide how
kernels are judged never change during a run, so that its latencies stay comparable. A fork may change
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from pydantic import ValidationError

from daemon.config import ConfigError, nest_keys, parse_setting, section_faults
from state.model import RunConfig

EVALUATION_KEYS = frozenset({"run.problem", "run.size", "run.target", "run.evaluator", "run.calibration"})
"""The keys that decide how kernels are judged."""

FaultFinder = Callable[[str, Any], Iterable[str]]
"""Returns further faults of a key's value, as `daemon.name_checks.find_unknown_names` does."""


def apply_settings(
    config: RunConfig,
    settings: Mapping[str, Any],
    *,
    keep: frozenset[str] = frozenset(),
    look_up: FaultFinder | None = None,
) -> RunConfig:
    """Return `config` with `settings` applied; keys in `keep` may not be changed.

    Raises:
        ConfigError: it names every key that is unknown, kept or not a run's, and every wrong value.
    """
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, value in settings.items():
        try:
            key, parsed = parse_setting(name, value)
            if key in values:
                faults.append(f"{name}: {key} has a value already; give it once")
            faults += _find_key_faults(key, keep)
            faults += (f"{key}: {fault}" for fault in (look_up(key, parsed) if look_up else ()))
            values[key] = parsed
        except ValueError as error:
            faults.append(f"{name}{error}")
    if not faults:
        try:
            changed = _merge_tables({"run": config.model_dump()}, nest_keys(values))
            return RunConfig.model_validate(changed["run"])
        except ValidationError as error:
            faults = section_faults("run", error)
    raise ConfigError(faults)


def expand_run_keys(names: Iterable[str]) -> list[str]:
    """Return the full keys of settings whose `run.` may be omitted."""
    return [name if name.startswith("run.") else f"run.{name}" for name in names]


def diff_configs(before: RunConfig, after: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two configurations differ, each with both values as JSON."""
    old, new = (_flatten_table(config.model_dump(mode="json"), "run.") for config in (before, after))
    pairs = {
        key: (_json_value(before, old, key), _json_value(after, new, key))
        for key in dict.fromkeys((*old, *new))
    }
    return {key: (was, now) for key, (was, now) in pairs.items() if was != now}


def _json_value(config: RunConfig, flat: Mapping[str, Any], key: str) -> Any:
    """Return a setting as JSON, also one that is left out of the document because it is not set."""
    if key in flat:
        return flat[key]
    value = attrgetter(key.removeprefix("run."))(config)
    return list(value) if isinstance(value, tuple) else value


def _find_key_faults(key: str, keep: frozenset[str]) -> Iterable[str]:
    if not key.startswith("run."):
        yield f"{key}: a setting of the process, not of a run; change it in config.toml"
    if key in keep:
        yield (
            f"{key}: a run keeps what it is judged by, so that its latencies compare; "
            f"a fork may change it: agentctl fork RUN@SEQ --set {key}=..."
        )


def _merge_tables(base: dict[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changed.items():
        inner = merged.get(name)
        merged[name] = (
            _merge_tables(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
        )
    return merged


def _flatten_table(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten_table(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
