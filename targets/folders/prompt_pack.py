"""A folder's prompts as a pack (`prompts.manifest`), made when prompts are read.

For kernels in C, models are told the interface and rules of this machine's CPU first, then the folder's own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import targets.c
from targets.folders.description import SECTIONS, Item
from targets.folders.target import FolderTarget, load_folder_target
from targets.folders.toml_text import render_toml

_C_PROMPTS = Path(targets.c.__file__).parent / "prompts"
_OWN_RULES = "rules_of_device"
_SHARED_BLOCKS = {"interface": "interface_of_device", "rules": _OWN_RULES}
_SHARED_EXAMPLES = {
    "plan_example": "unroll",
    "edit_example": None,
    "session_example": None,
    "experience_example": None,
    "lesson_example": None,
}
"""Worked examples of kernels in C, each with the technique that a folder's menu must have for it."""
_KINDS = {"examples": "example", "api": "api"}
_WORDS = {
    "kernels": "kernels for {title}",
    "what_a_kernel_is": "A kernel is one file in {language} that computes a formula, run on {title}.",
    "checks_before_outputs": "runs the kernel by the command that the target's folder names",
    "what_bounds_a_kernel": "the profile's counters say what the kernel waits for.",
    "bottlenecks": "those of the profile",
    "limits": "sizes and bounds",
    "last_look": "each output is written whole, on every input",
}


def render_pack(name: str) -> dict[str, str]:
    """Return the files of a target's pack by path, its manifest among them.

    Raises:
        TargetFolderError: the folder is no target any more.
    """
    target = load_folder_target(name)
    folder, family = target.folder, target.family
    shared = tomllib.loads((_C_PROMPTS / "manifest.toml").read_text()) if folder.description.c else {}
    texts = dict(folder.texts)
    items = {part: _render_item(part, item) for part, item in folder.items.items()}
    if shared:
        _add_shared_blocks(texts, items, shared["items"])
        _add_shared_examples(texts, items, shared["items"], techniques=target.menu())
    manifest = {
        "family": family,
        "targets": [target.name],
        "blocks": {part: f"{family}/{part}.md" for part in texts if "/" not in part},
        "words": _choose_words(target, shared.get("words", {})),
        "items": {f"{family}/{part}.md": entry for part, entry in items.items()},
    }
    files = {f"{family}/{part}.md": text for part, text in texts.items()}
    return {f"{family}/manifest.toml": render_toml(manifest), **files}


def _add_shared_blocks(texts: dict[str, str], items: dict[str, Any], shared: Mapping[str, Any]) -> None:
    """Add what all kernels in C have: the interface before the device's own, and rules before its own."""
    for part, own in _SHARED_BLOCKS.items():
        if part in texts:
            texts[own], items[own] = texts.pop(part), items.pop(part)
        texts[part] = (_C_PROMPTS / "c" / f"{part}.md").read_text()
        items[part] = shared[f"c/{part}.md"]
    if _OWN_RULES in texts:
        texts["rules"] = f"{texts['rules']}\n{texts.pop(_OWN_RULES)}"
        items["rules"] = items.pop(_OWN_RULES)


def _add_shared_examples(
    texts: dict[str, str], items: dict[str, Any], shared: Mapping[str, Any], *, techniques: Collection[str]
) -> None:
    """Add the worked examples of all kernels in C, without that of a technique which the folder lacks."""
    for part, technique in _SHARED_EXAMPLES.items():
        if technique is None or technique in techniques:
            texts[part] = (_C_PROMPTS / "c" / f"{part}.md").read_text()
            items[part] = shared[f"c/{part}.md"]


def _render_item(name: str, item: Item) -> dict[str, Any]:
    folder, _, _ = name.rpartition("/")
    entry = {"version": item.version, "source": item.source, "status": "documented"}
    return {**entry, "kind": _KINDS[folder], "terms": list(item.terms)} if folder in SECTIONS else entry


def _choose_words(target: FolderTarget, shared: Mapping[str, str]) -> dict[str, str]:
    told = target.folder.description
    general = {
        name: text.format(title=told.title, language=target.language.name) for name, text in _WORDS.items()
    }
    own = {"kernels": f"C kernels for {told.title}"} if told.c else {}
    return {**general, **shared, **own, "fence": target.language.fence, **told.words}
