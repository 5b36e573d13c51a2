"""The benchmark of fleets runs, counts what it does, and says so."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks import fleet

KEPT = json.loads(fleet.RESULT.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.needs("sshd", package="openssh-server")
@pytest.mark.needs("nsenter", package="util-linux")
@pytest.mark.needs("ip", package="iproute2")
def test_a_small_fleet_is_measured(capsys):
    assert os.geteuid() == 0, "network namespaces need root"
    fleet.main(["--hosts", "2", "--jobs", "1", "--seconds", "0.05", "--json"])
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert (row["hosts"], row["jobs"]) == (2, 2)
    assert row["seconds"] > 0.05
    assert min(row["home_cpu_ms"], row["host_cpu_ms"]) > 0
    assert found["alone"]["beyond_ms"] >= found["alone"]["outside_ms"] > 0
    assert 0 < found["transferred"]["repeated_kb"] < 100


def test_what_was_measured_is_what_the_document_says():
    text = (fleet.ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    for row in KEPT["rows"]:
        assert f"| {row['hosts']} | {row['per_second']:.2f} | {row['used_percent']:.1f} % |" in text
    assert f"{KEPT['transferred']['repeated_kb']} KB" in text
    assert fleet.table(KEPT)[1].split()[6:8] == ["100.0", "%"]
