"""What is dropped when a prompt is too large: the least important first, by the table, and no more."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.roles import RoleError
from agent_core.roles.ask_protocol import TokenBudget
from agent_core.roles.llm.fitting import PromptItems, ShedStep, fit_values

ORDER = (ShedStep("old", 2), ShedStep("weak", 0), ShedStep("old", 0))


def room(tokens: int) -> TokenBudget:
    return TokenBudget(tokens, len, "trn2")


def piece(name: str, number: int) -> str:
    return f"{name} {number} ".ljust(60, ".")


def values(old: int, weak: int) -> dict[str, str | PromptItems]:
    return {
        "kernel": "k" * 40,
        "old": PromptItems(tuple(piece("old", number) for number in range(old)), "(no old)"),
        "weak": PromptItems(
            tuple(piece("weak", number) for number in range(weak)),
            "(no weak)",
            ranks=tuple(float(number % 3) for number in range(weak)),
        ),
    }


def find_remaining_numbers(found: Mapping[str, str], name: str) -> list[int]:
    return [int(number) for number in re.findall(rf"^{name} (\d+)", found[name], re.MULTILINE)]


def test_what_fits_is_whole():
    found = fit_values(values(2, 1), ORDER, room(1000))
    assert found == {
        "kernel": "k" * 40,
        "old": f"{piece('old', 0)}\n{piece('old', 1)}",
        "weak": piece("weak", 0),
    }
    assert fit_values(values(0, 0), ORDER, room(1000))["old"] == "(no old)"


def test_pieces_go_step_by_step_the_last_first_unless_ranks_say_otherwise():
    whole = sum(map(len, fit_values(values(6, 5), ORDER, room(10_000)).values()))
    kept = [fit_values(values(6, 5), ORDER, room(whole - gone)) for gone in (0, 60, 280, 400, 520)]
    assert [
        (find_remaining_numbers(found, "old"), find_remaining_numbers(found, "weak")) for found in kept
    ] == [
        ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4]),
        ([0, 1, 2, 3], [0, 1, 2, 3, 4]),
        ([0, 1], [0, 1, 3]),
        ([0, 1], [0]),
        ([0], []),
    ]
    assert kept[1]["old"].endswith("\n(2 more left out for want of room)")
    assert kept[4]["weak"] == "(5 left out for want of room)"


def test_what_may_not_go_is_refused_by_name_when_it_is_too_large():
    with pytest.raises(RoleError) as raised:
        fit_values(values(3, 3), ORDER, room(39))
    assert raised.value.info.code == "no_room"
    assert "most of them are the kernel (40)" in raised.value.info.message


@given(st.integers(0, 12), st.integers(0, 12), st.integers(150, 1600))
def test_what_is_told_fits_and_less_room_tells_no_more(old, weak, tokens):
    found = fit_values(values(old, weak), ORDER, room(tokens))
    assert sum(map(len, found.values())) <= tokens
    less = fit_values(values(old, weak), ORDER, room(tokens - 20))
    for name in ("old", "weak"):
        assert less[name].count(f"{name} ") <= found[name].count(f"{name} ")
    assert found == fit_values(values(old, weak), ORDER, room(tokens))
