"""What is not seen, in texts of others: characters that hide text, or have a line read as another."""

from __future__ import annotations

from unicodedata import category

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that nobody sees, or that change the direction of what stands beside them."""


def is_hidden(mark: str) -> bool:
    """Return whether a character is one that nobody sees; ends of lines and tabs are none."""
    return mark not in "\n\t" and category(mark) in _HIDDEN


def escape_hidden(text: str) -> str:
    """Return a text in which what is not seen is written as its code: marks of direction hide code."""
    if text.isprintable():
        return text
    return "".join(f"\\u{ord(mark):04x}" if is_hidden(mark) else mark for mark in text)
