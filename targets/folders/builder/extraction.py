"""Finds items in documents without a model: what their form shows, in their own words.

Tables with figures are architecture, prototypes are the interface, blocks of code are examples, sentences
that say what must or must not be are rules, and entries of sections on performance are techniques. It is a
beginning for a person, not a distillate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from targets.folders.builder.documents import Chunk
from targets.folders.builder.items import DocumentItem, ItemKind, drop_repeated

_FENCED = re.compile(
    r"^[ \t]*(?:```|~~~)[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*(?:```|~~~)", re.MULTILINE | re.DOTALL
)
_TABLE = re.compile(r"(?:^[ \t]*\|.*\|[ \t]*\n?){3,}", re.MULTILINE)
_PROTOTYPE = re.compile(r"^[ \t]*((?:[\w*]+[ \t*]+){1,5}\w+\([^;{}()]{0,400}\))[ \t]*;", re.MULTILINE)
_SENTENCE = re.compile(r"[A-Z][^.!?\n|]*(?:\n[^.!?\n|]+)*[.!?](?=\s|$)")
_DUTY = re.compile(r"\b(must|must not|shall|may not|cannot|never|is not allowed|are not allowed)\b")
_ON_SPEED = re.compile(r"perform|optimi[sz]|tuning|efficien|faster|throughput", re.IGNORECASE)
_BULLET = re.compile(r"^[ \t]*(?:[-*+]|\d+\.)[ \t]+(\S.*(?:\n[ \t]{2,}\S.*)*)", re.MULTILINE)
_LONGEST_RULE = 400
_LONGEST_TITLE = 60


def extract_items(chunks: Iterable[Chunk]) -> list[DocumentItem]:
    """Return what can be found in chunks."""
    return drop_repeated([item for chunk in chunks for item in _extract(chunk)])


def _extract(chunk: Chunk) -> Iterator[DocumentItem]:
    code = [(chunk.file, chunk.text)] if chunk.is_code else _FENCED.findall(chunk.text)
    for _, text in code:
        for prototype in _PROTOTYPE.findall(text):
            yield _item(chunk, ItemKind.INTERFACE, _function_name(prototype), " ".join(prototype.split()))
        if "{" in text and "(" in text:
            yield _item(chunk, ItemKind.EXAMPLE, chunk.heading or chunk.file, text.strip("\n"))
    if chunk.is_code:
        return
    prose = _FENCED.sub("", chunk.text)
    for table in _TABLE.findall(prose):
        if re.search(r"\d", table):
            yield _item(chunk, ItemKind.ARCHITECTURE, chunk.heading or "Facts", table.strip())
    prose = _TABLE.sub("", prose)
    for sentence in _SENTENCE.findall(prose):
        text = " ".join(sentence.split())
        if _DUTY.search(text) and len(text) <= _LONGEST_RULE:
            yield _item(chunk, ItemKind.RULE, text[:_LONGEST_TITLE], text)
    if _ON_SPEED.search(chunk.heading):
        for bullet in _BULLET.findall(prose):
            text = " ".join(bullet.split())
            yield _item(chunk, ItemKind.TECHNIQUE, re.split(r"[:.;,]", text)[0][:_LONGEST_TITLE], text)


def _item(chunk: Chunk, kind: ItemKind, title: str, text: str) -> DocumentItem:
    return DocumentItem(kind, title.strip("*_` "), text, chunk.source)


def _function_name(prototype: str) -> str:
    return prototype.partition("(")[0].split()[-1].lstrip("*")
