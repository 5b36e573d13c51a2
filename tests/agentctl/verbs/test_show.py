"""What `agentctl show --what profile` says of an end-to-end score; a profile may be anybody's."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl.verbs.show import _finding_lines, _score_lines

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


def test_a_profile_says_what_is_in_vain_and_what_could_not_be_read():
    profile = {
        "inefficiencies": [{"code": "redundant_dma", "percent": 75.0, "message": "reads x 4 times"}],
        "busy_lines": [{"line": 12, "engine": "tensor", "ms": 0.25, "op": "MATMUL"}],
        "table_notes": ["the full profile was not read: damaged"],
        "missing_fields": {"fields": ["Flow", "TensorInfo.size"], "schema_version": "13.0.0"},
    }
    assert list(_finding_lines(profile)) == [
        "  in vain: reads x 4 times",
        "  line 12 keeps tensor busy for 0.25 ms, mostly MATMUL",
        "  note: the full profile was not read: damaged",
        "  note: the tables (schema 13.0.0) lack Flow, TensorInfo.size",
    ]


@pytest.mark.parametrize(
    "profile",
    [
        None,
        [],
        {"inefficiencies": {"message": "no list"}, "table_notes": 4, "busy_lines": [{"line": "12"}]},
        {"inefficiencies": [{"message": 3}, "text"], "missing_fields": ["Flow"], "table_notes": [None]},
    ],
)
def test_a_profile_of_another_form_says_nothing(profile):
    assert list(_finding_lines(profile)) == []
