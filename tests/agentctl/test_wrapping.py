"""How lines go on where a terminal is narrow, and tables that are as wide as what they hold."""

from __future__ import annotations

import pytest

from agentctl.text_layout import wrap_line


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (
            "  best     0.93 ms predicted, faster in 100.0 % of draws",
            ["  best     0.93 ms predicted, faster in", "           100.0 % of draws"],
        ),
        (
            "  1. hoist the load of a tile [hoist]: 0.93 ms predicted",
            ["  1. hoist the load of a tile [hoist]:", "     0.93 ms predicted"],
        ),
        (
            "  discarded 32: 16 uncertain, 8 not faster, 4",
            ["  discarded 32: 16 uncertain, 8 not", "    faster, 4"],
        ),
        ("short", ["short"]),
    ],
    ids=["label", "list", "sentence", "short"],
)
def test_a_line_goes_on_below_what_it_says_and_keeps_numbers_with_their_units(line, lines):
    assert wrap_line(line, 42).splitlines() == lines
    assert wrap_line(line, 40).replace("\n", " ").split() == line.split()
