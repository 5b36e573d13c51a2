"""Markup from values: every text is escaped as it goes in, and what cannot be seen is written out.

`Html` is what this module made; a plain string is never markup, whoever wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from agentctl.visible import visible

_VOID = frozenset({"meta", "br", "hr", "img", "link"})
_NAME = re.compile(r"[a-z][a-z0-9-]*", re.IGNORECASE)


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None | Iterable["Child"]


def el(tag: str, /, *children: Child, **attributes: object) -> Html:
    """Return an element. Attributes that are None or False are left out; `_` in their names is `-`.

    A trailing `_` is dropped, so that `class_` can be said.
    """
    told = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{told}>")
    return Html(f"<{tag}{told}>{join(children)}</{tag}>")


def join(children: Child, separator: str = "") -> Html:
    """Return several pieces as one, the texts among them escaped."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return Html(escape(visible(children), quote=False))
    return Html(separator.join(join(child) for child in children))


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    spelt = name.rstrip("_").replace("_", "-")
    assert _NAME.fullmatch(spelt), spelt
    if value is True:
        return f" {spelt}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {spelt}="{escape(visible(text))}"'
