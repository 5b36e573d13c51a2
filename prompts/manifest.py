"""What a set of prompts consists of: which blocks each role is told, in which order, naming which values.

Beside blocks, which a role is always told, there are sections, of which those are told that fit the problem
and the kernel at hand: parts of the interface, examples, techniques. Of every file the manifest says its
version, where its facts are from, and how far they were checked.

A value lasts for a run, a round, a candidate (all plans for one kernel) or a call. A block lasts as long as
the shortest-lived value that it names, and a block never follows one that lasts less: providers cache what
two requests have in common from the beginning on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

MANIFEST_FILE = "manifest.toml"
TARGET_PLACEHOLDER = "@target"
"""In the path of a block: the device that the kernel is for."""


class TextLifetime(IntEnum):
    """How long a text stays the same, the longest first."""

    RELEASE = 0
    RUN = 1
    ROUND = 2
    CANDIDATE = 3
    CALL = 4


@dataclass(frozen=True, slots=True)
class TemplateValue:
    """Something that templates may name."""

    lasts: TextLifetime
    means: str


@dataclass(frozen=True, slots=True)
class RolePrompt:
    """What one role is told: the paths of its blocks, and the values that these must and may name."""

    blocks: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """What a prompt of the role is rendered with: all that its blocks may name."""
        return (*self.required, *self.optional)


class FileKind(StrEnum):
    """What a file is there for: a block, or one of the sections that are chosen per problem."""

    BLOCK = "block"
    API = "api"
    EXAMPLE = "example"
    MENU = "menu"
    APPROACH = "approach"
    VARIATION = "variation"


class ReviewStatus(StrEnum):
    """How far what a file says was checked."""

    WORDS = "words"
    """It states no facts about the hardware: tasks, forms of answers."""
    DOCUMENTED = "documented"
    """Its names are those of the simulator's tables; the rest is as the source has it."""
    COMPARED = "compared"
    """Its names, arguments and figures are compared with the simulator's tables by tests."""
    RUN = "run"
    """Its code runs in the simulator, on numbers, in a test."""


@dataclass(frozen=True, slots=True)
class ManifestItem:
    """What is known of a file: `version` is raised with its text, `source` is where its facts are from.

    Of a section: for which `targets` it is, the `terms` in a problem or kernel that call for it, and, of a
    technique, the `bottlenecks` that it relieves.
    """

    kind: FileKind
    version: int
    source: str
    status: ReviewStatus
    targets: tuple[str, ...]
    terms: tuple[str, ...]
    bottlenecks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptManifest:
    """The set as a whole; `max_bytes` is what one file may take."""

    max_bytes: int
    targets: tuple[str, ...]
    values: Mapping[str, TemplateValue]
    roles: Mapping[str, RolePrompt]
    items: Mapping[str, ManifestItem]

    @classmethod
    def parse(cls, text: str) -> PromptManifest:
        """Read a manifest; it is this program's own, so that it is right."""
        table = tomllib.loads(text)
        return cls(
            max_bytes=table["max_bytes"],
            targets=tuple(table["targets"]),
            values={name: _parse_value(entry) for name, entry in table["values"].items()},
            roles={name: _parse_role(entry) for name, entry in table["roles"].items()},
            items={
                path: _parse_item(entry, table["targets"]) for path, entry in table.get("items", {}).items()
            },
        )

    def list_files(self) -> Iterator[str]:
        """Yield the paths of all blocks, each once, with all targets for `@target`, and of sections."""
        blocks = dict.fromkeys(block for role in self.roles.values() for block in role.blocks)
        for block in blocks:
            yield from dict.fromkeys(resolve_block_path(block, target) for target in self.targets)
        yield from (path for path, item in self.items.items() if item.kind is not FileKind.BLOCK)

    def select_sections(self, kind: FileKind, target: str) -> dict[str, ManifestItem]:
        """Return the sections of a kind that are for a target, by path, in the order of the manifest."""
        return {
            path: item for path, item in self.items.items() if item.kind is kind and target in item.targets
        }

    def roles_using(self, path: str) -> list[str]:
        """Return the roles that are told what is in a file."""
        return [
            name
            for name, role in self.roles.items()
            if any(
                path == resolve_block_path(block, target) for block in role.blocks for target in self.targets
            )
        ]


def resolve_block_path(block: str, target: str) -> str:
    """Return the path of a block's file for a target."""
    return block.replace(TARGET_PLACEHOLDER, target)


def _parse_value(entry: Mapping[str, Any]) -> TemplateValue:
    return TemplateValue(TextLifetime[entry["lasts"].upper()], entry["means"])


def _parse_role(entry: Mapping[str, Any]) -> RolePrompt:
    return RolePrompt(tuple(entry["blocks"]), tuple(entry["required"]), tuple(entry.get("optional", ())))


def _parse_item(entry: Mapping[str, Any], targets: list[str]) -> ManifestItem:
    return ManifestItem(
        kind=FileKind(entry.get("kind", FileKind.BLOCK)),
        version=entry["version"],
        source=entry["source"],
        status=ReviewStatus(entry["status"]),
        targets=tuple(entry.get("targets", targets)),
        terms=tuple(entry.get("terms", ())),
        bottlenecks=tuple(entry.get("bottlenecks", ())),
    )
