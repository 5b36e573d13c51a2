"""What `agentctl show --what profile` says of an end-to-end score; a profile may be anybody's."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl.verbs.show import _score_lines

TOLD: dict[str, Any] = {
    "ratio": 1.25,
    "noise_ratio": 0.02,
    "better": "lower",
    "candidate": {"p50": 8.0, "p90": 8.5, "p99": 9.0},
    "baseline": {"p50": 10.0, "p90": 10.5, "p99": 12.25},
}


def test_a_score_is_told_with_its_percentiles():
    assert list(_score_lines({"counters": {}, "score": TOLD})) == [
        "end to end: 1.25x as good as the first kernel, give or take 2.0%",
        "  this kernel: p50 8, p90 8.5, p99 9 (lower is better)",
        "  the first: p50 10, p90 10.5, p99 12.25 (lower is better)",
    ]


@pytest.mark.parametrize(
    "profile",
    [None, {}, {"score": 3}, {"score": {**TOLD, "ratio": "\x1b[2J"}}, {"score": {**TOLD, "candidate": {}}}],
)
def test_what_is_no_score_is_not_told(profile):
    assert list(_score_lines(profile)) == []
