"""What-ifs held against pairs of measured kernels, and the counts that come with the simulator."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import nki_sim
from benchmarks.measured import what_if_pairs
from benchmarks.measured.what_if_pairs import BoundedKernel, find_pairs
from nki_sim import targets
from nki_sim.timing.activity import QUEUES_OF
from nki_sim.timing.what_if import NO_DEPENDENCES, load_measured_pairs, name_free

SLOW = BoundedKernel(
    name="slow.py",
    family="silu",
    group="silu",
    target="trn2",
    measured_ms=2.0,
    predicted_ms=2.0,
    busy_ms={"vector": 1.8, "dma": 0.8},
    saved_percent={"vector free": 50.0, "dma free": 0.0, NO_DEPENDENCES: 10.0},
)
FAST = replace(SLOW, name="fast.py", measured_ms=1.2, predicted_ms=1.3, busy_ms={"vector": 1.1, "dma": 0.8})


def test_less_work_on_one_engine_shows_that_engine() -> None:
    (pair,) = find_pairs([FAST, SLOW])
    assert (pair.assumption, pair.bound_percent) == ("vector free", 50.0)
    assert pair.gained_percent == pytest.approx(40.0)
    assert pair.is_held


def test_the_same_work_in_less_time_shows_waits_and_may_pass_the_bound() -> None:
    (pair,) = find_pairs([replace(FAST, busy_ms=SLOW.busy_ms), SLOW])
    assert pair.assumption == NO_DEPENDENCES
    assert not pair.is_held


@pytest.mark.parametrize(
    "other",
    [
        replace(FAST, busy_ms={"vector": 1.1, "dma": 0.5}),  # less of both
        replace(FAST, busy_ms={"vector": 1.1, "dma": 1.1}),  # more of the other
        replace(FAST, busy_ms={"vector": 2.1, "dma": 0.8}),  # faster with more work
        replace(FAST, measured_ms=1.9),  # too near to tell
        replace(FAST, predicted_ms=1.9),  # not told apart by the model
        replace(FAST, group="another size"),
        replace(FAST, target="trn1"),
    ],
)
def test_other_pairs_show_nothing(other: BoundedKernel) -> None:
    assert list(find_pairs([SLOW, other])) == []


def test_what_ifs_without_a_pair_are_in_the_report() -> None:
    rows = what_if_pairs.report_pairs(list(find_pairs([SLOW, FAST])), [SLOW, FAST])
    assert [(row["what_if"], row["pairs"], row["held"]) for row in rows] == [
        ("dma free", 0, 0),
        (NO_DEPENDENCES, 0, 0),
        ("vector free", 1, 1),
    ]
    text = "\n".join(what_if_pairs.lines(rows))
    assert text.count("no measured pair") == 2
    assert "50 %" in text


def test_the_counts_that_come_with_the_simulator_are_of_this_model() -> None:
    told = json.loads(what_if_pairs.TABLE.read_text())
    assert told["model_version"] == nki_sim.MODEL_VERSION
    known = {NO_DEPENDENCES, *map(name_free, QUEUES_OF)}
    table = load_measured_pairs()
    assert table
    assert set(table) <= set(targets.names())
    for cases in table.values():
        assert set(cases) <= known
        assert all(0 <= within <= pairs for pairs, within in cases.values())
        assert any(pairs for pairs, _ in cases.values())
