"""What documents say about a device, item by item, each with its source."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum


class ItemKind(StrEnum):
    """What an item is for."""

    ARCHITECTURE = "architecture"
    INTERFACE = "interface"
    RULE = "rule"
    EXAMPLE = "example"
    TECHNIQUE = "technique"


@dataclass(frozen=True, slots=True)
class DocumentItem:
    """One item: `text` is a statement, or for an example a program; `terms` are words that call for it."""

    kind: ItemKind
    title: str
    text: str
    source: str
    terms: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A name for files and ids."""
        return re.sub(r"[^a-z0-9]+", "_", self.title.lower()).strip("_")[:40].strip("_") or "item"


def drop_repeated(items: list[DocumentItem]) -> list[DocumentItem]:
    """Return the items without those that say what an earlier one of their kind says; names are distinct."""
    kept: dict[tuple[ItemKind, str], DocumentItem] = {}
    for one in items:
        kept.setdefault((one.kind, " ".join(one.text.split()).lower()), one)
    names: Counter[tuple[ItemKind, str]] = Counter()
    found = []
    for one in kept.values():
        names[one.kind, one.name] += 1
        count = names[one.kind, one.name]
        found.append(one if count == 1 else replace(one, title=f"{one.title[:36]} {count}"))
    return found
