"""The benchmark of the log runs, small, and says what it is documented to say."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import event_log

TINY = ["event_log.py", "--quick", "--events", "300", "--appends", "48", "--json"]


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """Measure once, and no optional package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_log, "REPEATS", 1)
        patch.setattr(event_log, "HAVE_EVENTSOURCING", False)
        patch.setattr(sys, "argv", TINY)
        yield


@pytest.fixture(scope="module")
def result(alone: None) -> dict[str, Any]:
    kept, output = event_log.RESULT.read_bytes(), io.StringIO()
    with contextlib.redirect_stdout(output):
        event_log.main()
    assert event_log.RESULT.read_bytes() == kept, "a quick run must not replace the full result"
    return json.loads(output.getvalue())


@pytest.mark.slow
def test_it_runs_and_its_result_has_the_documented_shape(result: dict[str, Any]) -> None:
    assert set(result) == {"machine", "appends", "replay", "start_up"}
    assert set(result["machine"]) == {"python", "sqlite", "system", "cpus"}
    assert [row["callers"] for row in result["appends"]] == [1, 8, 32]
    names = {"callers", "log_per_s", "eventsourcing_per_s", "sqlite3_per_s", "sqlite3_same_table_per_s"}
    assert all(set(row) == names for row in result["appends"])
    assert set(result["replay"]) == {"verified", "verified_and_folded", "eventsourcing"}
    sizes = {"events", "import_s", "ready_s", "peak_rss_bytes", "log_bytes"}
    assert all(set(row) == sizes for row in result["start_up"])
    assert [row["events"] for row in result["start_up"]] == [30, 300]


def test_the_kept_result_is_of_a_full_run() -> None:
    kept = json.loads(event_log.RESULT.read_text(encoding="utf-8"))
    assert [row["callers"] for row in kept["appends"]] == [1, 8, 32]
    assert [row["events"] for row in kept["start_up"]] == [100_000, 1_000_000]


@pytest.mark.slow
def test_what_was_measured_is_positive_and_what_was_not_is_null(result: dict[str, Any]) -> None:
    assert all(row["log_per_s"] > 0 and row["eventsourcing_per_s"] is None for row in result["appends"])
    single, *together = result["appends"]
    for name in ("sqlite3_per_s", "sqlite3_same_table_per_s"):
        assert single[name] > 0
        assert [row[name] for row in together] == [None, None]
    assert result["replay"]["eventsourcing"] is None
    assert result["replay"]["verified"] > 0 < result["replay"]["verified_and_folded"]
    lines = "\n".join(event_log.report(result))
    assert "eventsourcing is not installed" in lines
    assert all(heading in lines for heading in ("durable appends/s", "replayed events/s", "opening a log"))
