"""Prompt sets: this program's own files and packs, with replacements from a home, checked as a whole.

A set is one value: its files by path, the manifests among them. Its version is the SHA-256 of their canonical
JSON, and a log stores the set under that version. A set never changes after the check, so every version of
the program that can read a set from a log can render it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from prompts import manifest, template
from prompts.manifest import FileKind, ManifestItem, PromptManifest, TextLifetime
from prompts.template import PromptsInvalid, RenderError

_FOLDER = Path(__file__).parent
_PACK_MANIFEST = f"/{manifest.MANIFEST_FILE}"
"""Behind a family's name: the path of its pack's manifest in a set."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PromptBlock:
    """A part of a prompt: the path of its file, its text, and how long the text stays the same."""

    path: str
    text: str
    lasts: TextLifetime


@dataclass(frozen=True, slots=True)
class PromptSection:
    """A text that is included if it fits: `name` is its file's, `title` its heading, `text` the rest."""

    name: str
    title: str
    text: str
    item: ManifestItem


@dataclass(frozen=True)
class PromptSet:
    """A valid set of prompts; `files` are texts by path."""

    files: Mapping[str, str]

    @classmethod
    def from_json(cls, data: bytes) -> PromptSet:
        """Parse what `to_json` wrote.

        Raises:
            ValueError: it is not a set of prompts.
        """
        files = json.loads(data)
        if not isinstance(files, dict) or manifest.MANIFEST_FILE not in files:
            raise ValueError(f"not a set of prompts: it has no {manifest.MANIFEST_FILE}")
        return cls(files)

    def to_json(self) -> bytes:
        """Return the set as bytes; equal sets give equal bytes."""
        return json.dumps(self.files, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def version(self) -> str:
        """The SHA-256 of `to_json`, in hexadecimal."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @cached_property
    def manifest(self) -> PromptManifest:
        """The set's parsed manifests."""
        packs = [self.files[path] for path in sorted(self.files) if path.endswith(_PACK_MANIFEST)]
        return PromptManifest.parse(self.files[manifest.MANIFEST_FILE], packs)

    def changed_paths(self, own: PromptSet) -> tuple[str, ...]:
        """Return the paths of files that differ from those of another set."""
        return tuple(path for path, text in sorted(self.files.items()) if own.files.get(path) != text)

    def role_blocks(self, role: str, target: str) -> tuple[PromptBlock, ...]:
        """Return a role's blocks in order, with the target's words and with no values filled in.

        Raises:
            RenderError: no such role or target.
        """
        _require_known(role, self.manifest.roles, "role")
        _require_known(target, dict.fromkeys(self.manifest.targets), "target")
        words = self.manifest.pack_of(target).words
        return tuple(
            PromptBlock(path, template.fill_words(self.files[path], words), self._text_lifetime(path))
            for path in self.manifest.block_paths(role, target)
        )

    def render_role(self, role: str, target: str, values: Mapping[str, str]) -> tuple[PromptBlock, ...]:
        """Return a prompt as its blocks, those that stay the same longest first.

        `values` are exactly those of the role in the manifest, even if a replaced file uses fewer.

        Raises:
            RenderError: no such role or target, or values are missing or unknown.
        """
        wanted = set(_require_known(role, self.manifest.roles, "role").values)
        wrong = [f"{name} is missing" for name in sorted(wanted - values.keys())]
        wrong += [f"{name} is none of its values" for name in sorted(values.keys() - wanted)]
        if wrong:
            raise RenderError(f"prompt of the {role}: {', '.join(wrong)}")
        return tuple(
            PromptBlock(block.path, template.fill_template(block.text, values), block.lasts)
            for block in self.role_blocks(role, target)
        )

    def pack_blocks(self, target: str) -> dict[str, PromptBlock]:
        """Return the blocks of a target's pack by name, with the target's words filled in.

        Raises:
            RenderError: no such target.
        """
        _require_known(target, dict.fromkeys(self.manifest.targets), "target")
        pack = self.manifest.pack_of(target)
        paths = {
            name: path.replace(manifest.TARGET_PLACEHOLDER, target) for name, path in pack.blocks.items()
        }
        return {
            name: PromptBlock(
                path, template.fill_words(self.files[path], pack.words), self._text_lifetime(path)
            )
            for name, path in paths.items()
        }

    def list_sections(self, kind: FileKind, target: str) -> tuple[PromptSection, ...]:
        """Return the sections of a kind for a target, in the order of the manifest."""
        return tuple(
            _parse_section(path, self.files[path], item)
            for path, item in self.manifest.select_sections(kind, target).items()
        )

    def _text_lifetime(self, path: str) -> TextLifetime:
        named = (self.manifest.values[name].lasts for _, name in template.find_value_names(self.files[path]))
        return max(named, default=TextLifetime.RELEASE)


def _parse_section(path: str, text: str, item: ManifestItem) -> PromptSection:
    """Parse a section: its first line is its heading; without a heading, the file's name is the title."""
    name = Path(path).stem
    heading, _, rest = text.strip().partition("\n")
    if not heading.startswith("# "):
        return PromptSection(name, name, text.strip(), item)
    return PromptSection(name, heading.removeprefix("# ").strip(), rest.strip(), item)


def read_prompts(packs: Mapping[str, Path], generated: Mapping[str, str] | None = None) -> PromptSet:
    """Return the set of the texts that all targets share and of packs, which are folders by family.

    `generated` are files of packs that are made when they are read, by path.
    """
    folders = (_FOLDER, *packs.values())
    files = {manifest.MANIFEST_FILE: _read_first((_FOLDER,), manifest.MANIFEST_FILE)}
    for family, folder in packs.items():
        files[f"{family}{_PACK_MANIFEST}"] = _read_first((folder,), manifest.MANIFEST_FILE)
    paths = PromptSet(files).manifest.list_files()
    made = generated or {}
    texts = {path: made[path] if path in made else _read_first(folders, path) for path in paths}
    return PromptSet({**files, **texts})


def _read_first(folders: Iterable[Path], path: str) -> str:
    """Return the text of a file, from the first folder that has it."""
    place = next((folder / path for folder in folders if (folder / path).is_file()), _FOLDER / path)
    return place.read_text(encoding="utf-8")


def assemble_prompts(own: PromptSet, replacing: Mapping[str, bytes]) -> PromptSet:
    """Return this program's own set with some files replaced by a home's, checked as a whole.

    Raises:
        PromptsInvalid: names every fault of every file.
    """
    faults: list[str] = []
    texts: dict[str, str] = {}
    for path, data in sorted(replacing.items()):
        found = list(_file_faults(path, data, own))
        faults += found
        if not found:
            texts[path] = data.decode().replace("\r\n", "\n")
    fresh = PromptSet({**own.files, **texts})
    faults += _set_faults(fresh, texts, own)
    if faults:
        raise PromptsInvalid(faults)
    return fresh


def _file_faults(path: str, data: bytes, own: PromptSet) -> Iterator[str]:
    """Yield the faults of a file that show before it is parsed as a template."""
    most = own.manifest.max_bytes
    if path == manifest.MANIFEST_FILE or path.endswith(_PACK_MANIFEST):
        yield f"{path}: says what there must be, and cannot be replaced"
    elif path not in own.files:
        close = get_close_matches(path, own.files, n=1)
        yield f"{path}: no such prompt" + (f"; did you mean {close[0]}?" if close else "")
    elif len(data) > most:
        yield f"{path}: {len(data)} bytes, at most {most} are allowed"
    elif not data.strip():
        yield f"{path}: is empty; remove it to have the program's own"
    else:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            yield f"{path}: not UTF-8, at byte {error.start}"


def _set_faults(fresh: PromptSet, texts: Mapping[str, str], own: PromptSet) -> Iterator[str]:
    """Yield the faults of the templates in `texts`, and of the roles that use them."""
    said = [fault for path, text in texts.items() for fault in _template_faults(fresh.manifest, path, text)]
    said = said or [fault for path in texts for fault in _missing_value_faults(fresh, path, own)]
    touched = dict.fromkeys(role for path in texts for role in fresh.manifest.roles_using(path))
    yield from said or dict.fromkeys(
        fault for role in touched for fault in _cache_order_faults(fresh, role, texts)
    )


def _template_faults(known: PromptManifest, path: str, text: str) -> Iterator[str]:
    """Yield stray braces, secrets, words that a pack lacks, and values that a role using the file lacks."""
    for line in template.find_stray_braces(text):
        yield f"{path}, line {line}: '{{{{' and '}}}}' go around the name of a value, as in {{{{kernel}}}}"
    for line in template.find_secrets(text):
        yield f"{path}, line {line}: looks like a secret key, and prompts are kept in the log for good"
    words = sorted(set.intersection(*(set(pack.words) for pack in known.packs)))
    for line, name in template.find_word_names(text):
        if name not in words:
            there = ", ".join(words) or "none"
            yield f"{path}, line {line}: {{{{@{name}}}}}: no such words of the targets; there are {there}"
    users = [set(known.roles[role].values) for role in known.roles_using(path)]
    offered = sorted(set.intersection(*users)) if users else []  # sections have no values
    for line, name in template.find_value_names(text):
        if name not in offered:
            close = get_close_matches(name, offered, n=1)
            there = f"did you mean {close[0]}?" if close else f"there are {', '.join(offered) or 'none'}"
            yield f"{path}, line {line}: {{{{{name}}}}}: no such value here; {there}"


def _missing_value_faults(fresh: PromptSet, path: str, own: PromptSet) -> Iterator[str]:
    """Yield values that a role requires and only this program's own file would have used."""
    had = {name for _, name in template.find_value_names(own.files[path])}
    for role in fresh.manifest.roles_using(path):
        told = {
            name
            for target in fresh.manifest.targets
            for block in fresh.role_blocks(role, target)
            for _, name in template.find_value_names(block.text)
        }
        for name in fresh.manifest.roles[role].required:
            if name in had and name not in told:
                yield f"{path}: the {role} needs {{{{{name}}}}}: {fresh.manifest.values[name].means}"


def _cache_order_faults(fresh: PromptSet, role: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield files that now change more often than a file after them, which then cannot be cached."""
    for target in fresh.manifest.targets:
        blocks = [one for one in fresh.role_blocks(role, target) if one.lasts or one.path not in texts]
        for before, after in pairwise(blocks):
            if before.lasts > after.lasts:
                how = f"{before.lasts.name.lower()} to {before.lasts.name.lower()}"
                yield f"{before.path}: changes from {how}, so that {after.path} behind it cannot be cached"


def _require_known(name: str, table: Mapping[str, _T], what: str) -> _T:
    if name not in table:
        raise RenderError(f"no {what} {name!r}; there are {', '.join(table)}")
    return table[name]
