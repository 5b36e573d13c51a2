"""Finds and escapes invisible characters in untrusted text; they can hide text or reorder a line."""

from __future__ import annotations

from unicodedata import category

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that are invisible or change the direction of text."""


def is_hidden(mark: str) -> bool:
    """Return whether a character is invisible; line ends and tabs are not."""
    return mark not in "\n\t" and category(mark) in _HIDDEN


def escape_hidden(text: str) -> str:
    """Return a text with each hidden character written as its code, because direction marks can hide code."""
    if text.isprintable():
        return text
    return "".join(f"\\u{ord(mark):04x}" if is_hidden(mark) else mark for mark in text)
