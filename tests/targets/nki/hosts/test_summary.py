"""Summaries of the vendor's profilers, in every shape that is known, become the same counters.

The golden files were written from the documented schema, not captured: names, units and nesting are those of
the releases that their names say, the numbers are made up.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from targets.nki.hosts.profile_summary import SummaryError, parse_summary
from targets.nki.target import COUNTERS

GOLDEN = Path(__file__).with_name("golden")
FILES = sorted(GOLDEN.iterdir())


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_shape_gives_the_counters_that_planners_are_shown(path):
    found = parse_summary(path.read_text(), "a tool 1.0")
    assert set(COUNTERS) <= found.counters.keys()
    assert found.latency_ms == pytest.approx(0.512)
    assert found.counters["tensor_engine_active_time_percent"] == pytest.approx(100 * 0.195 / 0.512, rel=1e-3)
    assert found.counters["hfu_estimated_percent"] == pytest.approx(18.28)
    assert found.bottleneck == "dma"
    assert found.busy_ms["vector"] == pytest.approx(0.122)
    assert "instance_type" not in found.counters


def test_a_profile_says_that_it_was_measured_and_by_what():
    found = parse_summary(FILES[0].read_text(), "neuron-explorer 2.30")
    told = json.loads(found.render_profile("trn2", base_ms=0.6))
    assert (told["predicted"], told["tool"], told["target"]) == (False, "neuron-explorer 2.30", "trn2")
    assert told["base_remeasured_ms"] == 0.6
    assert told["counters"]["hbm_read_bytes"] == 50331648


def test_idle_kernels_are_not_taken_for_shares():
    """With percents as 0 to 100, none of which is above 1, the times beside them decide."""
    lazy = {"total_time": 1.0, "vector_engine_active_time": 0.005, "vector_engine_active_time_percent": 0.5}
    assert parse_summary(json.dumps(lazy), "t").counters["vector_engine_active_time_percent"] == 0.5
    shares = {**lazy, "vector_engine_active_time_percent": 0.005}
    assert parse_summary(json.dumps(shares), "t").counters["vector_engine_active_time_percent"] == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no such option: --output-format",
        "[]",
        "{}",
        '{"total_time": "fast"}',
        '{"total_time": 0}',
        '{"total_time": -1}',
        '{"total_time": NaN}',
        "[" * 100_000,
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
    ids=range(10),
)
def test_what_is_no_summary_is_refused(text):
    with pytest.raises(SummaryError, match="a tool printed"):
        parse_summary(text, "a tool")
