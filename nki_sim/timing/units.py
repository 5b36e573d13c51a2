"""Formats times and sizes; figures shown together use one unit."""

from __future__ import annotations

_SIZES = (("GB", 1e9), ("MB", 1e6), ("KB", 1e3))


def format_size(nbytes: float) -> str:
    """Format bytes in a readable unit."""
    unit, scale = next(((unit, scale) for unit, scale in _SIZES if nbytes >= scale), ("B", 1.0))
    return f"{nbytes / scale:.4g} {unit}"


def format_time(ms: float, among: float | None = None) -> str:
    """Format a time in us, or in ms if it, or the total `among` of which it is a part, is 1 ms or more."""
    longest = ms if among is None else among
    return f"{_format_figure(ms)} ms" if longest >= 1.0 else f"{_format_figure(ms * 1e3)} us"


def _format_figure(value: float) -> str:
    """Four digits, never with an exponent."""
    text = f"{value:.4g}"
    if "e" not in text:
        return text
    return f"{value:.0f}" if value > 1.0 else f"{value:.4f}".rstrip("0").rstrip(".")
