"""The menu: the closed vocabulary of techniques that proposers share, read from `menu.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Technique:
    """One way to make a kernel faster; `bottlenecks` are the classes of the profile that it relieves."""

    id: str
    title: str
    description: str
    bottlenecks: frozenset[str]


@cache
def menu() -> dict[str, Technique]:
    """All techniques by id, in the order of the file."""
    table = tomllib.loads((Path(__file__).parent / "menu.toml").read_text())
    return {
        name: Technique(name, entry["title"], entry["description"], frozenset(entry["bottlenecks"]))
        for name, entry in table.items()
    }
