"""`benchmarks/llm_faults.py` in short: some kills of the sweep, and that a wrong story would be told."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import llm_faults
from benchmarks.buying.lives import CAP_USD, FORMATS, Lives
from benchmarks.buying.story import FAULTS, Story, script
from benchmarks.llm_faults import Struck
from tests.support.llm_server import Asked


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a disk that is fast, if there is one: only processes are killed here."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if os.access(fast, os.W_OK) else None) as name:
        yield Path(name)


POINTS = (3, 31, 58, 86, 120)
"""Where the short sweep kills, where the run is not over before."""


@pytest.mark.slow
@pytest.mark.parametrize("wire", FORMATS.values(), ids=FORMATS)
def test_no_kill_makes_a_run_buy_an_answer_again_or_end_otherwise(folder, wire):
    lives = Lives()
    try:
        result = llm_faults.sweep(folder, lives, wire, POINTS)
    finally:
        lives.close()
    assert result.wrong == []
    assert result.kills > 0
    assert result.repeats <= result.in_flight
    assert result.answers == result.kills * result.calm.answered
    assert result.calm.failed == result.calm.recovered
    assert 0 < result.most_usd <= CAP_USD


def test_every_third_request_has_a_fault_and_all_kinds_come_round():
    def asked(number: int) -> Asked:
        return Asked(vendor="openai", body={"stream": True}, headers={}, count=2, number=number)

    faults = [script(first)(asked(3)) for first in range(len(FAULTS))]
    assert faults == list(FAULTS)
    assert [script(0)(asked(3 * turn)) for turn in (1, 2, 3)] == list(FAULTS[:3])


CALM = Story(hash="a", decisions="b", ended=True, started=4, answered=3, lost=1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"ended": False}, "did not end"),
        ({"hash": "c"}, "another state"),
        ({"bought_again": 1}, "bought again"),
        ({"lost": 2}, "2 calls were repeated"),
        ({"started": 9}, "requests were sent"),
        ({"over": [7]}, "exceeded the cap"),
        ({"faults": ("a row is missing",)}, "a row is missing"),
    ],
)
def test_what_must_not_be_is_told(changes, told):
    struck = Struck(point=5, in_flight=1, requests=4, story=replace(CALM, **changes))
    found = list(struck.wrong(CALM))
    assert len(found) == (told is not None)
    assert told is None or told in found[0]
