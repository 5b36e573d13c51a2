"""The manifest of a prompt set: which blocks each role is told, in which order, with which values.

A role is always told its blocks. Sections are included only if they fit the problem and the kernel: parts of
the interface, examples, techniques. For every file the manifest gives its version, the source of its facts,
and how far they were checked.

What speaks of a target's language or device is its family's pack, with a manifest of its own: blocks by the
names that roles use, words by the names that shared texts use, and sections.

A value stays the same for a run, a round, a candidate (all plans for one kernel) or a call. A block stays the
same as long as its shortest-lived value, and no block follows one that changes more often, because providers
cache the common beginning of two requests.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

MANIFEST_FILE = "manifest.toml"
TARGET_PLACEHOLDER = "@target"
"""In the path of a block: stands for the target device."""
PACK_MARK = "@"
"""Before the name of a block that the target's pack provides."""


class TextLifetime(IntEnum):
    """How long a text stays the same, longest first."""

    RELEASE = 0
    RUN = 1
    ROUND = 2
    CANDIDATE = 3
    CALL = 4


@dataclass(frozen=True, slots=True)
class TemplateValue:
    """A value that templates may use."""

    lasts: TextLifetime
    means: str


@dataclass(frozen=True, slots=True)
class RolePrompt:
    """A role's prompt: the paths of its blocks, and the values that these must and may use."""

    blocks: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """All values that the role's blocks may use; rendering needs all of them."""
        return (*self.required, *self.optional)


class FileKind(StrEnum):
    """The purpose of a file: a block, or a kind of section that is chosen by problem."""

    BLOCK = "block"
    API = "api"
    EXAMPLE = "example"
    MENU = "menu"
    APPROACH = "approach"
    VARIATION = "variation"


class ReviewStatus(StrEnum):
    """How far a file's statements were checked."""

    WORDS = "words"
    """It states no facts about the hardware; it describes tasks or answer formats."""
    DOCUMENTED = "documented"
    """Its names are those of the simulator's tables; the rest follows its source."""
    COMPARED = "compared"
    """Tests compare its names, arguments and figures with the simulator's tables."""
    RUN = "run"
    """A test runs its code in the simulator, on numbers."""


@dataclass(frozen=True, slots=True)
class ManifestItem:
    """An entry for a file: `version` rises with each change, `source` names the origin of its facts.

    For a section: the `targets` it is for, the `terms` in a problem or kernel that select it, and, for a
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
class PromptPack:
    """What a family of targets adds: paths of blocks and short texts, each by name."""

    family: str
    targets: tuple[str, ...]
    blocks: Mapping[str, str]
    words: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PromptManifest:
    """The set as a whole; `max_bytes` is the limit for one file."""

    max_bytes: int
    packs: tuple[PromptPack, ...]
    values: Mapping[str, TemplateValue]
    roles: Mapping[str, RolePrompt]
    items: Mapping[str, ManifestItem]

    @classmethod
    def parse(cls, text: str, packs: Iterable[str] = ()) -> PromptManifest:
        """Parse a manifest and those of packs. They are not checked: they are always this program's own.

        A set of an older version has no packs, and names its targets itself.
        """
        table, added = tomllib.loads(text), [tomllib.loads(pack) for pack in packs]
        found = [_parse_pack(entry) for entry in added]
        if "targets" in table:
            found.append(PromptPack("", tuple(table["targets"]), {}, {}))
        every = [name for pack in found for name in pack.targets]
        items = {path: _parse_item(entry, every) for path, entry in table.get("items", {}).items()}
        for entry in added:
            of_pack = entry.get("items", {}).items()
            items |= {path: _parse_item(item, entry["targets"]) for path, item in of_pack}
        return cls(
            max_bytes=table["max_bytes"],
            packs=tuple(found),
            values={name: _parse_value(entry) for name, entry in table["values"].items()},
            roles={name: _parse_role(entry) for name, entry in table["roles"].items()},
            items=items,
        )

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that prompts can be rendered for."""
        return tuple(name for pack in self.packs for name in pack.targets)

    def pack_of(self, target: str) -> PromptPack:
        """Return the pack of a target's family.

        Raises:
            KeyError: no pack is for this target.
        """
        found = next((pack for pack in self.packs if target in pack.targets), None)
        if found is None:
            raise KeyError(target)
        return found

    def block_paths(self, role: str, target: str) -> list[str]:
        """Return the paths of a role's blocks for a target, in order; a pack may leave out blocks."""
        paths = (self.block_path(block, target) for block in self.roles[role].blocks)
        return [path for path in paths if path is not None]

    def block_path(self, block: str, target: str) -> str | None:
        """Return the path of a block, as roles name it, for a target; None if the target's pack has none."""
        name = block.removeprefix(PACK_MARK)
        path = block if name == block or "/" in name else self.pack_of(target).blocks.get(name)
        return None if path is None else path.replace(TARGET_PLACEHOLDER, target)

    def list_files(self) -> Iterator[str]:
        """Yield the paths of all blocks, each once, then of sections."""
        yield from dict.fromkeys(
            path for role in self.roles for target in self.targets for path in self.block_paths(role, target)
        )
        yield from (path for path, item in self.items.items() if item.kind is not FileKind.BLOCK)

    def select_sections(self, kind: FileKind, target: str) -> dict[str, ManifestItem]:
        """Return the sections of a kind for a target, by path, in the order of the manifest."""
        return {
            path: item for path, item in self.items.items() if item.kind is kind and target in item.targets
        }

    def roles_using(self, path: str) -> list[str]:
        """Return the roles that use a file."""
        return [
            role for role in self.roles if any(path in self.block_paths(role, one) for one in self.targets)
        ]


def _parse_pack(entry: Mapping[str, Any]) -> PromptPack:
    return PromptPack(entry["family"], tuple(entry["targets"]), entry["blocks"], entry["words"])


def _parse_value(entry: Mapping[str, Any]) -> TemplateValue:
    return TemplateValue(TextLifetime[entry["lasts"].upper()], entry["means"])


def _parse_role(entry: Mapping[str, Any]) -> RolePrompt:
    return RolePrompt(tuple(entry["blocks"]), tuple(entry["required"]), tuple(entry.get("optional", ())))


def _parse_item(entry: Mapping[str, Any], targets: Iterable[str]) -> ManifestItem:
    return ManifestItem(
        kind=FileKind(entry.get("kind", FileKind.BLOCK)),
        version=entry["version"],
        source=entry["source"],
        status=ReviewStatus(entry["status"]),
        targets=tuple(entry.get("targets", targets)),
        terms=tuple(entry.get("terms", ())),
        bottlenecks=tuple(entry.get("bottlenecks", ())),
    )
