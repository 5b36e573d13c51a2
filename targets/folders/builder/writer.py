"""Writes items as the files of a target's folder; what a person has edited is kept.

Every text gets a version and its digest in `items.toml`. When a folder is built again, a text that still has
its digest is replaced, with the next version; one that somebody edited stays, and the new text goes to
`drafts/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from targets.folders.builder.items import DocumentItem, ItemKind
from targets.folders.description import (
    ITEMS_FILE,
    MENU_FILE,
    PROMPTS_FOLDER,
    TARGET_FILE,
    Item,
    TargetFolder,
    text_digest,
)
from targets.folders.toml_text import render_toml

DRAFTS_FOLDER = "drafts"
_BLOCKS = {
    ItemKind.ARCHITECTURE: ("architecture", "Hardware"),
    ItemKind.INTERFACE: ("interface", "The interface"),
    ItemKind.RULE: ("rules", "Rules and pitfalls"),
}
_ALL = ["memory", "compute", "latency"]

_TARGET = """# What this device is, and how kernels for it are evaluated (docs/own-targets.md). As it stands,
# kernels in C are compiled by this machine's compiler and run here. For another device name its
# compiler and a runner, or replace [c] by [command] and [language].

format = 1
name = "{name}"
version = 1
title = "{name}"

[rates] # of one core; bounds and percentages follow from these: put in those of your device
bandwidth_gb_s = 10
multiply_add_gflops = 10
other_gflops = 5
source = "placeholders"

[c]
compilers = ["gcc", "clang"]
"""


@dataclass
class WrittenFolder:
    """What was written, kept because somebody edited it, and put aside."""

    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    drafts: list[str] = field(default_factory=list)


def write_folder(
    folder: Path,
    name: str,
    items: Sequence[DocumentItem],
    *,
    unusable: Mapping[str, str],
    known: TargetFolder | None,
) -> WrittenFolder:
    """Write a target's folder; `known` is the folder as it was, `unusable` says why examples are drafts."""
    done = WrittenFolder()
    folder.mkdir(parents=True, exist_ok=True)
    if known is None:
        (folder / TARGET_FILE).write_text(_TARGET.format(name=name))
        done.written.append(TARGET_FILE)
    entries = (
        {part: item.model_dump(exclude_defaults=True) for part, item in known.items.items()} if known else {}
    )
    for part, (text, item) in _render_texts(items, unusable).items():
        _write_text(folder, part, text, item, known=known, entries=entries, done=done)
    for one in items:
        if one.name in unusable and one.kind is ItemKind.EXAMPLE:
            _write_draft(folder, one, unusable[one.name], done=done)
    (folder / ITEMS_FILE).write_text(render_toml(entries))
    _write_menu(folder, [one for one in items if one.kind is ItemKind.TECHNIQUE], known, done=done)
    return done


def _render_texts(
    items: Iterable[DocumentItem], unusable: Mapping[str, str]
) -> dict[str, tuple[str, dict[str, Any]]]:
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    by_kind = {kind: [one for one in items if one.kind is kind] for kind in ItemKind}
    for kind, (part, heading) in _BLOCKS.items():
        if chosen := by_kind[kind]:
            body = "\n\n".join(_render_statement(one) for one in chosen)
            files = dict.fromkeys(one.source.partition(", line")[0] for one in chosen)
            found[part] = (f"# {heading}\n\n{body}\n", {"source": ", ".join(files)})
    for one in by_kind[ItemKind.EXAMPLE]:
        if one.name not in unusable:
            text = f"# {one.title}\n\n```c\n{one.text}\n```\n"
            terms = {"terms": list(one.terms)} if one.terms else {}
            found[f"examples/{one.name}"] = (text, {"source": one.source, **terms})
    return found


def _render_statement(one: DocumentItem) -> str:
    """A statement with its source; tables stay tables."""
    if one.text.lstrip().startswith("|"):
        return f"{one.title} ({one.source}):\n\n{one.text}"
    return f"- {one.text} [{one.source}]"


def _write_text(
    folder: Path,
    part: str,
    text: str,
    item: dict[str, Any],
    *,
    known: TargetFolder | None,
    entries: dict[str, dict[str, Any]],
    done: WrittenFolder,
) -> None:
    before = known.texts.get(part) if known else None
    told = known.items.get(part) if known else None
    file = f"{PROMPTS_FOLDER}/{part}.md"
    if before == text:
        return
    if before is not None and not _is_untouched(before, told):
        draft = f"{DRAFTS_FOLDER}/{part}.md"
        _write(folder / draft, text)
        done.kept.append(file)
        done.drafts.append(draft)
        return
    _write(folder / file, text)
    version = told.version + 1 if told else 1
    entries[part] = {"version": version, **item, "digest": text_digest(text)}
    done.written.append(file)


def _is_untouched(text: str, told: Item | None) -> bool:
    return told is not None and told.digest == text_digest(text)


def _write_draft(folder: Path, one: DocumentItem, why: str, *, done: WrittenFolder) -> None:
    draft = f"{DRAFTS_FOLDER}/examples/{one.name}.md"
    _write(
        folder / draft,
        f"# {one.title}\n\nFrom {one.source}. Not told to models: {why}\n\n```c\n{one.text}\n```\n",
    )
    done.drafts.append(draft)


def _write_menu(
    folder: Path, items: Sequence[DocumentItem], known: TargetFolder | None, *, done: WrittenFolder
) -> None:
    """Add techniques; those of the menu stay as they are, because ids are for ever."""
    menu = {name: entry.model_dump() for name, entry in known.menu.items()} if known else {}
    fresh = {
        one.name: {"title": one.title, "description": one.text, "bottlenecks": _ALL, "source": one.source}
        for one in items
        if one.name not in menu
    }
    if fresh or not (folder / MENU_FILE).exists():
        path = folder / MENU_FILE
        before = path.read_text() if path.exists() else "# Techniques. Ids are for ever: credits name them.\n"
        path.write_text(f"{before}{render_toml(fresh)}")
        done.written.append(MENU_FILE)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
