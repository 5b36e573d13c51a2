"""Describes the keys of the configuration; all of it is derived from the configuration's models.

The last word of a key's name gives its unit. When a change takes effect depends on what the key decides:
how the process works, how a run searches, or how its kernels are judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from daemon.config import describe_keys
from daemon.run_settings import EVALUATION_KEYS

UNITS = {
    "seconds": "s",
    "percent": "% (0 to 100)",
    "ms": "ms",
    "usd": "US$",
    "rounds": "rounds",
    **dict.fromkeys(("ratio", "speedup", "pos", "neg"), "ratio"),
}
"""The unit of a key's values, by the last word of its name."""

AT_ONCE = "at once"
NEXT_ROUND = "from a run's next round on"
NEW_RUNS = "runs to come, and forks"

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minItems": "at least {} of them",
}


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key: its values in words, its default in TOML, its unit, and when a change takes effect."""

    key: str
    values: str
    default: str
    unit: str
    counts: str
    meaning: str


def list_config_keys() -> list[ConfigKey]:
    """Return all keys, section by section."""
    return [
        ConfigKey(
            key=key,
            values=", ".join(_describe_values(schema)),
            default=_format_default(info),
            unit=UNITS.get(key.rpartition(".")[2].rpartition("_")[2], ""),
            counts=_when_effective(key),
            meaning=info.description or "",
        )
        for key, info, schema in describe_keys()
    ]


def format_key_table(found: Sequence[ConfigKey]) -> list[str]:
    """Return keys as the lines of a Markdown table."""
    return [
        "| key | values | default | unit | a change counts | means |",
        "|---|---|---|---|---|---|",
        *(
            f"| `{one.key}` | {one.values} | {one.default} | {one.unit} | {one.counts} | {one.meaning} |"
            for one in found
        ),
    ]


def _when_effective(key: str) -> str:
    if key == "run.starts":
        return "runs to come"
    if key in EVALUATION_KEYS:
        return NEW_RUNS
    return NEXT_ROUND if key.startswith("run.") else AT_ONCE


def _format_default(info: FieldInfo) -> str:
    if info.default_factory is not None:
        return str(info.default_factory.__doc__)  # the default differs between machines, so describe it
    if info.default is None or info.default is PydanticUndefined:
        return "not set"
    return f"`{json.dumps(info.default)}`"


def _describe_values(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values that a JSON schema allows, in words."""
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _describe_values(one) if one.get("type") != "null" else ("or not set",)
    elif "const" in schema:
        yield json.dumps(schema["const"])
    elif "enum" in schema:
        yield " or ".join(map(json.dumps, schema["enum"]))
    else:
        inner = f" of {' '.join(_describe_values(schema['items']))}" if "items" in schema else ""
        yield {"array": "list", "boolean": "true or false"}.get(schema["type"], schema["type"]) + inner
    yield from (text.format(_format_number(schema[name])) for name, text in _BOUNDS.items() if name in schema)


def _format_number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
