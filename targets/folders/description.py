"""What the folder of a target says: `target.toml`, its menu, its prompts, and where each item comes from.

    target.toml      facts, how kernels are evaluated, counters of profiles, words for prompts
    menu.toml        techniques (as in targets/c/menu.toml), each with its `source`
    items.toml       of every text in prompts/: version, source, and the digest that this version had
    prompts/         architecture.md, interface.md, rules.md, glossary.md, examples/*.md, api/*.md

Everything is read when the target is loaded, and checked as a whole. The digest covers all files.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from state.model import FrozenModel, validation_reason
from targets.base import UnknownTargetError

TARGET_FILE, MENU_FILE, ITEMS_FILE, PROMPTS_FOLDER = "target.toml", "menu.toml", "items.toml", "prompts"
NAME_PATTERN = r"[a-z][a-z0-9_-]{0,39}"
MAX_FILES, MAX_FILE_BYTES = 500, 1 << 20
SECTIONS = ("examples", "api")
"""Folders of prompts whose texts are told where they fit a problem; the others are always told."""
_BLOCKS = ("architecture", "interface", "rules", "glossary")
ModelT = TypeVar("ModelT", bound=FrozenModel)
_REASONS = {"extra_forbidden": "unknown key", "missing": "required"}


class TargetFolderError(UnknownTargetError):
    """A folder is no target; the message names every fault."""

    code = "bad_target"

    def __init__(self, folder: Path, faults: list[str]) -> None:
        Exception.__init__(self, f"{folder} is no target: {'; '.join(faults)}")
        self.faults = faults


class Rates(FrozenModel):
    """Peak rates of one core: memory in GB/s, float32 multiply-adds and other operations in GFLOPS."""

    bandwidth_gb_s: float = Field(gt=0)
    multiply_add_gflops: float = Field(gt=0)
    other_gflops: float = Field(gt=0)
    source: str = ""


class CPipeline(FrozenModel):
    """Kernels in C: compiled and run in the jail, as those of this machine's CPU are.

    `compilers` and `cpp_compilers` are programs, best first. `flags` are always given; `replace` says what a
    flag that kernels ask for becomes. `runner` starts a program of the device on this machine. With `counts`
    the runner is qemu, and a kernel is predicted to take its instructions over `instructions_per_second`;
    without, the CPU time of the runner is measured. `packages` are what to install.
    """

    compilers: tuple[str, ...] = Field(min_length=1)
    cpp_compilers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    replace: dict[str, str] = Field(default_factory=dict)
    runner: tuple[str, ...] = ()
    counts: Literal["instructions"] | None = None
    instructions_per_second: float | None = Field(default=None, gt=0)
    packages: str = ""

    @model_validator(mode="after")
    def _counting_needs_a_rate(self) -> CPipeline:
        if (self.counts is None) != (self.instructions_per_second is None):
            raise ValueError("counts and instructions_per_second come together")
        if self.counts and not self.runner:
            raise ValueError("counts needs a runner")
        return self


class Command(FrozenModel):
    """A command that runs kernels: a request as JSON on stdin, an answer as JSON on stdout.

    It starts in the folder and is trusted. `version` prints what it runs kernels with.
    """

    run: tuple[str, ...] = Field(min_length=1)
    version: tuple[str, ...] = ()
    deadline_s: float = Field(default=600.0, gt=0)


class FolderLanguage(FrozenModel):
    """The language of kernels that a command runs.

    `entry` is a regular expression that finds the definition of the kernel and whose first group is its name.
    `operators` finds what kernels are tagged with. `comment` begins a comment that ends with its line.
    """

    name: str = Field(min_length=1)
    fence: str = ""
    kernel_file: str = Field(pattern=r"[\w.-]+\.[\w.-]+")
    entry: str
    operators: str = r"\b[A-Za-z_]\w*(?=\()"
    comment: str = "#"

    @model_validator(mode="after")
    def _patterns_are_right(self) -> FolderLanguage:
        for name, pattern in (("entry", self.entry), ("operators", self.operators)):
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"{name} is no regular expression: {error}") from error
            if name == "entry" and groups != 1:
                raise ValueError("entry needs one group: the kernel's name")
        return self


class Description(FrozenModel):
    """`target.toml`."""

    format: Literal[1]
    name: str = Field(pattern=rf"^{NAME_PATTERN}$")
    version: int = Field(ge=1)
    title: str = Field(min_length=1)
    rates: Rates
    c: CPipeline | None = None
    command: Command | None = None
    language: FolderLanguage | None = None
    counters: dict[str, str] = Field(default_factory=dict)
    words: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_way_to_evaluate(self) -> Description:
        if (self.c is None) == (self.command is None):
            raise ValueError("there must be one of [c] and [command]")
        if (self.command is None) != (self.language is None):
            raise ValueError("[language] belongs to [command]: kernels of [c] are in C")
        return self


class Item(FrozenModel):
    """Where a text of the prompts comes from, and which version of it this is.

    `digest` is that of the text when this version was given; a text that differs needs a new version.
    `terms` are words of problems that call for a section.
    """

    version: int = Field(ge=1)
    source: str = Field(min_length=1)
    digest: str = ""
    terms: tuple[str, ...] = ()


class MenuEntry(FrozenModel):
    """A technique of the menu."""

    title: str = Field(min_length=1)
    description: str = Field(min_length=1)
    bottlenecks: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class TargetFolder:
    """A folder as it was read; `texts` are the prompts by path below `prompts/`, without `.md`."""

    path: Path
    description: Description
    menu: Mapping[str, MenuEntry]
    items: Mapping[str, Item]
    texts: Mapping[str, str]
    digest: str

    def changed_items(self) -> Iterator[str]:
        """Yield the texts that are not those of the version that `items.toml` gives them."""
        for name, text in self.texts.items():
            item = self.items.get(name)
            if item is not None and item.digest and item.digest != text_digest(text):
                yield name


def text_digest(text: str) -> str:
    """Return the short digest of a text, as `items.toml` has it."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_folder(folder: Path) -> TargetFolder:
    """Read and check a target's folder.

    Raises:
        TargetFolderError: it names every fault.
    """
    faults: list[str] = []
    files = _read_files(folder, faults)
    description = _parse(files, TARGET_FILE, Description, faults=faults)
    menu = _parse_table(files, MENU_FILE, MenuEntry, faults=faults)
    items = _parse_table(files, ITEMS_FILE, Item, faults=faults)
    texts = {
        path.removeprefix(f"{PROMPTS_FOLDER}/").removesuffix(".md"): _decode(path, data, faults)
        for path, data in files.items()
        if path.startswith(f"{PROMPTS_FOLDER}/") and path.endswith(".md")
    }
    faults += _item_faults(items, texts)
    if faults or description is None:
        raise TargetFolderError(folder, faults)
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    return TargetFolder(folder, description, menu, items, texts, digest)


def list_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, sorted; hidden ones, caches and editor backups are left out."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        ignored = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not ignored and not path.name.endswith("~"):
            yield path


def _read_files(folder: Path, faults: list[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for number, path in enumerate(list_files(folder)):
        if number == MAX_FILES:
            faults.append(f"more than {MAX_FILES} files")
            break
        name = path.relative_to(folder).as_posix()
        try:
            data = path.read_bytes()
        except OSError as error:
            faults.append(f"{name}: {error.strerror}")
            continue
        if len(data) > MAX_FILE_BYTES:
            faults.append(f"{name}: {len(data)} bytes, at most {MAX_FILE_BYTES} are allowed")
        found[name] = data
    return found


def _decode(path: str, data: bytes, faults: list[str]) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        faults.append(f"{path}: not UTF-8, at byte {error.start}")
        return ""


def _load_table(files: Mapping[str, bytes], name: str, faults: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(files.get(name, b"").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(f"{name}: not TOML: {error}")
        return {}


def _parse(
    files: Mapping[str, bytes], name: str, model: type[Description], *, faults: list[str]
) -> Description | None:
    before = len(faults)
    table = _load_table(files, name, faults)
    return _validate(table, model, name, faults=faults) if len(faults) == before else None


def _parse_table(
    files: Mapping[str, bytes], name: str, model: type[ModelT], *, faults: list[str]
) -> dict[str, ModelT]:
    found = {
        key: _validate(entry, model, f"{name}: {key}", faults=faults)
        for key, entry in _load_table(files, name, faults).items()
    }
    return {key: entry for key, entry in found.items() if entry is not None}


def _validate(table: Any, model: type[ModelT], place: str, *, faults: list[str]) -> ModelT | None:
    try:
        return model.model_validate(table)
    except ValidationError as error:
        for item in error.errors():
            where = ".".join(map(str, item["loc"]))
            reason = _REASONS.get(item["type"]) or validation_reason(item)
            faults.append(f"{place}: {where}: {reason}" if where else f"{place}: {reason}")
        return None


def _item_faults(items: Mapping[str, Item], texts: Mapping[str, str]) -> Iterator[str]:
    for name in texts:
        folder, _, _ = name.rpartition("/")
        if folder not in SECTIONS and name not in _BLOCKS:
            known = ", ".join((*_BLOCKS, *(f"{part}/NAME" for part in SECTIONS)))
            yield f"{PROMPTS_FOLDER}/{name}.md: no such prompt; there may be {known}"
        elif name not in items:
            yield f"{ITEMS_FILE}: {PROMPTS_FOLDER}/{name}.md has no entry {name!r} with its source"
    yield from (f"{ITEMS_FILE}: {name}: there is no such prompt" for name in items if name not in texts)
