"""A folder's prompts as a pack (`prompts.manifest`), made when prompts are read.

For kernels in C, what a folder does not say is told as for this machine's CPU: interface, rules and words.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import targets.c
from targets.folders.description import SECTIONS, Item
from targets.folders.target import FolderTarget, load_folder_target

_C_PROMPTS = Path(targets.c.__file__).parent / "prompts"
_SHARED_BLOCKS = ("interface", "rules")
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
    for part in _SHARED_BLOCKS:
        if part not in texts and shared:
            texts[part] = (_C_PROMPTS / "c" / f"{part}.md").read_text()
            items[part] = shared["items"][f"c/{part}.md"]
    manifest = {
        "family": family,
        "targets": [target.name],
        "blocks": {part: f"{family}/{part}.md" for part in texts if "/" not in part},
        "words": _choose_words(target, shared.get("words", {})),
        "items": {f"{family}/{part}.md": entry for part, entry in items.items()},
    }
    files = {f"{family}/{part}.md": text for part, text in texts.items()}
    return {f"{family}/manifest.toml": render_toml(manifest), **files}


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
