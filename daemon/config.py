"""Configuration: one typed schema, read from a TOML file in the home, environment variables and flags.

Later sources override earlier ones, key by key: built-in default < `<home>/config.toml` < environment <
flags. A key is a dotted path such as `run.search.beam`; its variable is `NKI_AGENT_RUN__SEARCH__BEAM`.
Every source is checked completely, even where a later one overrides it. All faults are reported together
in one `ConfigError` (code `config_invalid`), which is a `DaemonError`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from agent_core.proposers import is_llm_proposer
from agent_core.providers import registry
from agent_core.providers.keys import redact
from agent_core.providers.registry import UnknownEndpoint
from daemon.endpoint_config import OWN_SECTIONS, EndpointConfig, EndpointName, NamedEndpointConfig
from daemon.errors import DaemonError
from daemon.safe_read import read_regular_file
from state import crash
from state.model import FrozenModel, RunConfig, validation_reason
from targets.registry import find_target

FILE_NAME = "config.toml"
MAX_BYTES = 1 << 20
ENV_PREFIX = "NKI_AGENT_"
FOREIGN_VARIABLES = frozenset({crash.ENVIRONMENT, crash.HANG_ENVIRONMENT})
"""Variables that start with `ENV_PREFIX` but set no key."""

FLAGS: Mapping[str, str] = {
    "run.problem": "--problem",
    "run.size": "--size",
    "run.target": "--target",
    "run.seed": "--seed",
    "run.search.rounds": "--rounds",
    "run.hosts": "--host",
    "run.search.strategy": "--strategy",
}
"""The keys that have a command-line flag of their own."""

MODEL_DEFAULTS: Mapping[str, int | str] = {
    "run.search.beam": 6,
    "run.search.plans": 12,
    "run.search.implementations": 2,
    "run.search.rounds": 16,
    "run.llm.form": "loop",
    "run.llm.scale_to_cap": True,
    "run.llm.tell_titles": True,
}
"""Defaults for runs whose planner is a model: AccelOpt's numbers where the cap pays for them, and plans
carried out with tools."""

HOST_DEFAULTS: Mapping[str, str] = {"run.evaluator": "ssh"}
"""Defaults for runs that name hosts."""

ANY_NAME = "NAME"
"""Stands in the schema for the names that a configuration gives to endpoints."""
_NAMED_KEY = re.compile(r"^(daemon\.endpoints\.)[a-z][a-z0-9_]{0,31}(?=\.|$)")

DEFAULT_ORIGIN = "default"
"""The origin of a value that no source sets."""


def _cpu_count() -> int:
    """the machine's CPUs"""
    return os.cpu_count() or 1


def _check_price(text: str) -> str:
    from agent_core.providers.prices import parse_price_override

    parse_price_override(text)
    return text


def _check_window(text: str) -> str:
    from agent_core.providers.windows import parse_window_override

    parse_window_override(text)
    return text


class DaemonConfig(FrozenModel):
    """Settings of the process; none of them changes what a run finds."""

    evaluations: int = Field(default_factory=_cpu_count, ge=1, le=1024, description="evaluations at a time")
    proposals: int = Field(default_factory=_cpu_count, ge=1, le=1024, description="proposals at a time")
    runs: int = Field(default=16, ge=1, le=1024, description="runs under way at a time; the others wait")
    evaluation_seconds: float = Field(
        default=600.0, gt=0, le=86_400, description="deadline of one try of an evaluation"
    )
    grace_seconds: float = Field(
        default=10.0, ge=0, le=3600, description="how long a stop waits for work in flight"
    )
    allow_weak_jail: bool = Field(
        default=False, description="run kernels where neither bubblewrap nor namespaces confine them"
    )
    host_silence_seconds: float = Field(
        default=20.0,
        gt=0,
        le=86_400,
        description="how long a host may be without connection before others judge its kernels",
    )
    ray_address: str | None = Field(
        default=None,
        min_length=1,
        description='the Ray cluster that `run.evaluator = "ray"` uses; not set: one on this machine',
    )
    replicas: tuple[str, ...] = Field(
        default=(),
        description="where the log is copied to all the time: folders, or ssh://[USER@]HOST[:PORT]/PATH",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least that agentd logs"
    )
    day_usd: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="what LLM calls of all runs may cost a day (UTC)",
    )
    day_tokens: int | None = Field(
        default=None, ge=1, description="tokens that LLM calls of all runs may take a day (UTC)"
    )
    day_calls: int | None = Field(default=None, ge=1, description="LLM calls of all runs on a day")
    day_seconds: float | None = Field(
        default=None, gt=0, le=86_400, description="how long runs may be under way on a day, by the clock"
    )
    day_device_seconds: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="how long all runs may use devices on a day"
    )
    prices: tuple[Annotated[str, AfterValidator(_check_price)], ...] = Field(
        default=(),
        description="your own prices of models, ENDPOINT/MODEL=INPUT/CACHED/OUTPUT in US$ per million tokens",
    )
    windows: tuple[Annotated[str, AfterValidator(_check_window)], ...] = Field(
        default=(), description="context windows of models, ENDPOINT/MODEL=CONTEXT/OUTPUT in tokens"
    )
    anthropic: EndpointConfig = EndpointConfig()
    openai: EndpointConfig = EndpointConfig()
    local: EndpointConfig = EndpointConfig()

    endpoints: dict[EndpointName, NamedEndpointConfig] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_endpoints(self) -> Self:
        for name, one in self.endpoints.items():
            if name in OWN_SECTIONS:
                raise ValueError(f"daemon.endpoints.{name}: this endpoint's section is daemon.{name}")
            if one.service is None and name not in registry.endpoint_names():
                known = ", ".join(registry.SERVICES)
                raise ValueError(f"daemon.endpoints.{name}.service: say what serves it: {known}")
        for key, texts in (("prices", self.prices), ("windows", self.windows)):
            for text in texts:
                try:
                    self.endpoint(text.partition("/")[0].strip())
                except UnknownEndpoint as error:
                    raise ValueError(f"daemon.{key}: {text}: {error}") from None
        return self

    def endpoint(self, name: str) -> NamedEndpointConfig:
        """Return the settings of an endpoint.

        Raises:
            UnknownEndpoint: no endpoint has this name.
        """
        if name in self.endpoints:
            return self.endpoints[name]
        registry.require_endpoint(name, self.endpoint_names)
        own: EndpointConfig = getattr(self, name) if name in OWN_SECTIONS else EndpointConfig()
        return NamedEndpointConfig(**dict(own))

    @property
    def endpoint_names(self) -> tuple[str, ...]:
        """The names of all endpoints: those that need no configuration, and those that it adds."""
        return tuple(dict.fromkeys((*registry.endpoint_names(), *self.endpoints)))

    @property
    def calls(self) -> int:
        """How many questions may be under way at a time, over all endpoints."""
        return sum(self.endpoint(name).calls for name in self.endpoint_names)


class Config(FrozenModel):
    """The whole configuration: the settings of a run and those of the process."""

    run: RunConfig = RunConfig()
    daemon: DaemonConfig = Field(default_factory=DaemonConfig)


class ConfigError(DaemonError):
    """The configuration has faults. The message has one line per fault, with its source, key and value."""

    default_code = "config_invalid"

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


_MISSING = object()


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """A configuration, and the origin of every value: `default`, a file, a variable or a flag."""

    config: Config
    sources: Mapping[str, str]

    def _keys(self) -> Iterator[str]:
        """Yield all keys, those of named endpoints once for each name."""
        for key in _config_schema():
            if f".{ANY_NAME}." not in key:
                yield key
        for name in self.config.daemon.endpoints:
            yield from (key.replace(ANY_NAME, name) for key in _config_schema() if f".{ANY_NAME}." in key)

    def items(self) -> Iterator[tuple[str, Any, str]]:
        """Yield (key, JSON value, origin) for every key, section by section."""
        document = self.config.model_dump(mode="json")
        for key in self._keys():
            value: Any = document
            for name in key.split("."):
                value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
            if value is _MISSING:  # an unset value that is left out, so that older logs keep their hashes
                value = attrgetter(key)(self.config)
                value = list(value) if isinstance(value, tuple) else value
            yield key, value, self.sources.get(key, DEFAULT_ORIGIN)


@dataclass(frozen=True, slots=True)
class _ConfigEntry:
    """One value as a source gives it; `text` is true where the source can only hold strings."""

    key: str
    value: Any
    origin: str
    text: bool


def load_config(
    home: Path,
    env: Mapping[str, str],
    overrides: Mapping[str, Any] | None = None,
    *,
    look_up: Callable[[str, Any], Iterable[str]] | None = None,
    instead: Mapping[str, Any] | None = None,
) -> EffectiveConfig:
    """Merge all sources of configuration; `overrides` maps keys to the values of flags.

    `look_up` returns further faults of a key's value, as `daemon.name_checks.find_unknown_names` does.
    `instead` replaces the content of the file, which is then not read.

    Raises:
        ConfigError: the file cannot be read, or a source has an unknown key or a wrong value.
    """
    file, faults = _read_file(home / FILE_NAME) if instead is None else (instead, [])
    entries = [
        *_entries_from_file(file, FILE_NAME),
        *_entries_from_env(env),
        *(
            _ConfigEntry(key, value, _flag_of_key(key), text=False)
            for key, value in (overrides or {}).items()
        ),
    ]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for entry in entries:
        try:
            values[entry.key] = _parse_entry(entry)
            sources[entry.key] = entry.origin
            found = look_up(entry.key, values[entry.key]) if look_up else ()
            faults += (f"{entry.origin}: {entry.key}: {fault}" for fault in found)
        except ValueError as error:
            faults.append(f"{entry.origin}: {entry.key}{error}")
    if not faults:
        if any(map(is_llm_proposer, values.get("run.planner", ()))):
            values = {**MODEL_DEFAULTS, **values}
        if values.get("run.hosts"):
            values = {**HOST_DEFAULTS, **values}
        values = {**_target_defaults(values.get("run.target")), **values}
        try:
            return EffectiveConfig(Config.model_validate(nest_keys(values)), sources)
        except ValidationError as error:  # each value is valid by itself, but together they are not
            faults = section_faults("", error)
    raise ConfigError(faults)


def _target_defaults(name: str | None) -> dict[str, Any]:
    """Return who proposes and who judges by default for a target that the general defaults do not serve."""
    found = find_target(name) if name is not None else None
    if found is None:
        return {}
    general, parts = RunConfig(), found.parts
    values: dict[str, Any] = {}
    if parts.proposers and not set(general.planner) & set(parts.proposers):
        values["run.planner"] = (next(iter(parts.proposers)),)
    if parts.evaluators:
        values["run.evaluator"] = next(iter(parts.evaluators))
    return values


def read_all(*reads: Callable[[], Any]) -> list[Any]:
    """Call each of `reads` and return their results.

    Raises:
        ConfigError: with the faults of all of them.
    """
    given: list[Any] = []
    faults: list[str] = []
    for read in reads:
        try:
            given.append(read())
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(dict.fromkeys(faults))
    return given


def describe_keys() -> Iterator[tuple[str, FieldInfo, dict[str, Any]]]:
    """Yield each key with its field's metadata and the JSON schema of its values."""
    for key, info in _config_schema().items():
        yield key, info, _type_adapter(key).json_schema()


def parse_setting(name: str, value: Any) -> tuple[str, Any]:
    """Return the key that `name` stands for (`run.` may be omitted), and its typed value.

    Raises:
        ValueError: the text is the rest of the fault's line, after the name.
    """
    known = _config_schema().keys() | _section_keys()
    key = name if _schema_key(name) in known or f"run.{name}" not in known else f"run.{name}"
    return key, _parse_entry(_ConfigEntry(key, value, "--set", text=False))


def section_faults(section: str, error: ValidationError) -> list[str]:
    """Return one line for each fault in values that were valid one by one."""
    prefix = f"{section}." if section else ""
    return [f"{prefix}{'.'.join(map(str, e['loc']))}: {validation_reason(e)}" for e in error.errors()]


def render_toml(effective: EffectiveConfig) -> str:
    """Write the configuration as a file that `load_config` can read, with the origin of each value."""
    lines: list[str] = []
    section = ""
    for key, value, origin in effective.items():
        parent, _, name = key.rpartition(".")
        if parent != section:
            section = parent
            lines += ["", f"[{section}]"]
        # TOML has no null, so a key without a value is left out.
        shown = f"{name} = {_format_toml(value)}" if value is not None else f"# {name} is not set"
        lines.append(f"{shown}  # {origin}")
    return "\n".join(lines[1:]) + "\n"


def render_json(effective: EffectiveConfig) -> dict[str, Any]:
    """Return the configuration as JSON: for each key its value and its origin."""
    return {key: {"value": value, "origin": origin} for key, value, origin in effective.items()}


@cache
def _config_schema() -> dict[str, FieldInfo]:
    """Return all keys that hold a value, with the metadata of their fields.

    A section's own values come before its subsections, as TOML requires.
    """
    return dict(sorted(_walk_fields(Config, ""), key=lambda item: item[0].rpartition(".")[0]))


def _walk_fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        kind = info.annotation
        if get_origin(kind) is dict and issubclass(get_args(kind)[1], BaseModel):
            yield from _walk_fields(get_args(kind)[1], f"{prefix}{name}.{ANY_NAME}.")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk_fields(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, info


def _schema_key(key: str) -> str:
    """Return the key in the schema that a key stands for: names of one's own are `NAME` there."""
    return _NAMED_KEY.sub(rf"\1{ANY_NAME}", key)


@cache
def _section_keys() -> frozenset[str]:
    """Return the keys that hold other keys."""
    return frozenset(key[:i] for key in _config_schema() for i, letter in enumerate(key) if letter == ".")


def _read_file(path: Path) -> tuple[Mapping[str, Any], list[str]]:
    """Return the file's content (empty if there is no file) and the faults of the file."""
    try:
        return tomllib.loads(read_regular_file(path, most=MAX_BYTES).decode()), []
    except FileNotFoundError:
        return {}, []
    except NotADirectoryError:
        return {}, [f"{path.parent}: a home is a directory, this is a file"]
    except OSError as error:
        return {}, [f"{path}: cannot be read: {error.strerror}"]
    except ValueError as error:  # not UTF-8, or not TOML
        return {}, [f"{path}: not a TOML file: {error}"]
    except RecursionError:
        return {}, [f"{path}: nested too deeply"]


def _entries_from_file(table: Mapping[str, Any], origin: str, prefix: str = "") -> Iterator[_ConfigEntry]:
    for name, value in table.items():
        key = prefix + name
        if _schema_key(key) in _section_keys() and isinstance(value, dict):
            yield from _entries_from_file(value, origin, f"{key}.")
        else:
            yield _ConfigEntry(key, value, origin, text=False)


def _entries_from_env(env: Mapping[str, str]) -> Iterator[_ConfigEntry]:
    """Yield the variables that set a key: all that start with our prefix, except `FOREIGN_VARIABLES`."""
    for name, value in sorted(env.items()):
        if name.startswith(ENV_PREFIX) and name not in FOREIGN_VARIABLES:
            key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            yield _ConfigEntry(key, value, name, text=True)


def _flag_of_key(key: str) -> str:
    return FLAGS.get(key, "--set")


def _parse_entry(entry: _ConfigEntry) -> Any:
    """Return the entry's value with the type that the schema gives it.

    Raises:
        ValueError: the text is the rest of the fault's line, after the key.
    """
    info = _config_schema().get(_schema_key(entry.key))
    if info is None:
        raise ValueError(f": {_describe_unknown_key(entry)}")
    adapter = _type_adapter(entry.key)
    try:
        if entry.text or (isinstance(entry.value, str) and _takes_list(adapter)):
            return _parse_text(adapter, entry.value)
        # Strict, so that `true` is not a number and "6" not an integer. Through JSON, because tuples are
        # lists there.
        return adapter.validate_json(json.dumps(entry.value, default=str), strict=True)
    except RecursionError:
        raise ValueError(": nested too deeply") from None
    except ValidationError as error:
        reasons = "; ".join(dict.fromkeys(validation_reason(e) for e in error.errors()))
        meaning = f" ({info.description})" if info.description else ""
        # the message is printed, and logged if a file has the value
        shown = redact(json.dumps(entry.value, default=str))
        raise ValueError(f" = {shown}: {reasons}{meaning}") from None


@cache
def _type_adapter(key: str) -> TypeAdapter[Any]:
    info = _config_schema()[_schema_key(key)]
    kind: Any = Annotated[info.annotation, info]
    return TypeAdapter(kind)


def _takes_list(adapter: TypeAdapter[Any]) -> bool:
    return bool(adapter.json_schema().get("type") == "array")


def _parse_text(adapter: TypeAdapter[Any], text: str) -> Any:
    """Parse a text: commas separate a list's items, also in brackets; `none` is no value where allowed."""
    if _takes_list(adapter):
        inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        items = (item.strip() for item in inside.split(","))
        return adapter.validate_python([item for item in items if item])
    if "type" not in adapter.json_schema() and text.lower() == "none":  # a union: a value or nothing
        return adapter.validate_python(None)
    return adapter.validate_python(text)


def _describe_unknown_key(entry: _ConfigEntry) -> str:
    key = entry.key
    if _schema_key(key) in _section_keys():
        return "a section, not a value"
    names = [name for name in (*_config_schema(), *_section_keys()) if not key.startswith(f"{name}.")]
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.75)
    close += (name for name in names if name.rpartition(".")[2] == key.rpartition(".")[2])
    if key == "home":
        return "no such key; the flag --home names the home"
    if not close:
        return "no such key"
    return f"no such key; did you mean {_env_variable(close[0]) if entry.text else close[0]}?"


def _env_variable(key: str) -> str:
    return ENV_PREFIX + key.upper().replace(".", "__")


def nest_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a mapping of dotted keys into nested tables, one per section."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return tree


def _format_toml(value: Any) -> str:
    """Write a value in TOML; its strings, numbers, booleans and lists are spelled as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_format_toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
