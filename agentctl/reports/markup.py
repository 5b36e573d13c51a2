"""Builds markup from values: every text is escaped, and invisible characters are written as codes.

Only this module makes `Html`. A plain string is never markup, whoever wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from agentctl.hidden_characters import escape_hidden
from agentctl.plots import SvgNode

_VOID = frozenset({"meta", "br", "hr", "img", "link"})
_NAME = re.compile(r"[a-z][a-z0-9-]*", re.IGNORECASE)


class Html(str):
    """Text that is already markup."""

    __slots__ = ()


Child = str | None | Iterable["Child"]


def element(tag: str, /, *children: Child, **attributes: object) -> Html:
    """Return an element. Attributes that are None or False are left out; `_` in their names becomes `-`.

    A trailing `_` is dropped, so that you can write `class_`.
    """
    told = "".join(_render_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{told}>")
    return Html(f"<{tag}{told}>{join_html(children)}</{tag}>")


def render_svg(node: SvgNode) -> Html:
    """Return a drawing as markup."""
    inside = [render_svg(child) if isinstance(child, SvgNode) else child for child in node.children]
    return element(node.tag, inside, **node.attributes)


def join_html(children: Child, separator: str = "") -> Html:
    """Join pieces into one; texts among them are escaped."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return Html(escape(escape_hidden(children), quote=False))
    return Html(separator.join(join_html(child) for child in children))


def _render_attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    spelt = name.rstrip("_").replace("_", "-")
    assert _NAME.fullmatch(spelt), spelt
    if value is True:
        return f" {spelt}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {spelt}="{escape(escape_hidden(text))}"'
