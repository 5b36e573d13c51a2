"""What a set of prompts consists of: which blocks each role is told, in which order, naming which values.

A value lasts for a run, a round, a candidate (all plans for one kernel) or a call. A block lasts as long as
the shortest-lived value that it names, and a block never follows one that lasts less: providers cache what
two requests have in common from the beginning on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

NAME = "manifest.toml"
TARGET = "@target"
"""In the path of a block: the device that the kernel is for."""


class Lasts(IntEnum):
    """How long a text stays the same, the longest first."""

    RELEASE = 0
    RUN = 1
    ROUND = 2
    CANDIDATE = 3
    CALL = 4


@dataclass(frozen=True, slots=True)
class Value:
    """Something that templates may name."""

    lasts: Lasts
    means: str


@dataclass(frozen=True, slots=True)
class Role:
    """What one role is told: the paths of its blocks, and the values that these must and may name."""

    blocks: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """What a prompt of the role is rendered with: all that its blocks may name."""
        return (*self.required, *self.optional)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The set as a whole; `max_bytes` is what one file may take."""

    max_bytes: int
    targets: tuple[str, ...]
    values: Mapping[str, Value]
    roles: Mapping[str, Role]

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """Read a manifest; it is this program's own, so that it is right."""
        table = tomllib.loads(text)
        return cls(
            max_bytes=table["max_bytes"],
            targets=tuple(table["targets"]),
            values={name: _value(entry) for name, entry in table["values"].items()},
            roles={name: _role(entry) for name, entry in table["roles"].items()},
        )

    def files(self) -> Iterator[str]:
        """Yield the paths of all blocks, each once, with every target in the place of `@target`."""
        blocks = dict.fromkeys(block for role in self.roles.values() for block in role.blocks)
        for block in blocks:
            yield from dict.fromkeys(place(block, target) for target in self.targets)

    def users(self, path: str) -> list[str]:
        """Return the roles that are told what is in a file."""
        return [
            name
            for name, role in self.roles.items()
            if any(path == place(block, target) for block in role.blocks for target in self.targets)
        ]


def place(block: str, target: str) -> str:
    """Return the path of a block's file for a target."""
    return block.replace(TARGET, target)


def _value(entry: Mapping[str, Any]) -> Value:
    return Value(Lasts[entry["lasts"].upper()], entry["means"])


def _role(entry: Mapping[str, Any]) -> Role:
    return Role(tuple(entry["blocks"]), tuple(entry["required"]), tuple(entry.get("optional", ())))
