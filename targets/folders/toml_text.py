"""Writes TOML, of which the standard library only reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def render_toml(table: Mapping[str, Any], place: str = "") -> str:
    """Return a table of texts, numbers, lists and tables as TOML."""
    lines = [
        f"{_key(name)} = {_value(value)}" for name, value in table.items() if not isinstance(value, dict)
    ]
    text = "".join(f"{line}\n" for line in lines)
    for name, value in table.items():
        if isinstance(value, dict):
            inner = f"{place}.{_key(name)}" if place else _key(name)
            text += f"\n[{inner}]\n{render_toml(value, inner)}"
    return text


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _value(name)


def _value(value: Any) -> str:
    """JSON's texts, numbers, booleans and lists are TOML's, but for the escape of DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
