"""A run in the files of the nki-kernel-agent design: what its readers look for, with its meaning."""

from __future__ import annotations

import json
import re

import pytest

from agentctl.views.improvement_path import load_improvement_path
from daemon import experience_files
from state.reader import LogReader
from tests.support import fakes

KEYS = {"round", "status", "latency_ms", "score", "plan", "error", "profile"}
STATUSES = {"improved", "no_improvement", "correctness_fail", "compile_fail", "divergence_revert"}


@pytest.fixture
def written(ctl, finished, tmp_path):
    called = ctl("export", "--layout", "nki-kernel-agent", "-o", tmp_path / "out", "--json")
    assert called.status == 0, called.err
    assert called.json["run"] == finished
    return tmp_path / "out"


def lines(root) -> list[dict]:
    return [json.loads(line) for line in (root / "experiments.jsonl").read_text().splitlines()]


def test_checkpoints_are_the_bests_in_order(written, home, finished):
    with LogReader.open(home) as reader:
        sources = [
            reader.get_blob(one.source).decode() for one in load_improvement_path(reader, finished).bests
        ]
    found = sorted((written / "checkpoints").iterdir(), key=lambda path: path.name)
    assert all(re.fullmatch(r"best_r\d+_\d{8}_\d{6}(_\d+)?\.py", path.name) for path in found)
    assert sorted(path.read_text() for path in found) == sorted(sources)


def test_experiments_have_a_line_for_each_attempt(written, home, finished):
    with LogReader.open(home) as reader:
        rows = [row for row in reader.attempt_rows(finished) if row["round"]]
        state = reader.run_state(finished)
    found = lines(written)
    assert [one["candidate"] for one in found] == [row["candidate"] for row in rows]
    assert all(one.keys() >= KEYS for one in found)
    assert {one["status"] for one in found} <= STATUSES
    best = next(one for one in found if one["candidate"] == state.best.id)
    assert best["status"] == "improved"
    assert best["latency_ms"] == state.best.latency_ms
    assert best["score"] == pytest.approx(state.initial.latency_ms / state.best.latency_ms)
    wrong = [one for one in found if one["status"] == "correctness_fail"]
    assert wrong
    assert all(one["latency_ms"] == 0.0 == one["score"] for one in wrong)
    assert all(one["error"] for one in wrong)


def test_the_memory_is_what_a_home_takes_in(written, home, finished):
    path = written / "optimization_memory" / "rewrites.json"
    with LogReader.open(home) as reader:
        memory = reader.run_state(finished).memory
    told = json.loads(path.read_text())
    assert memory
    assert [one["summary"] for one in told] == [one.summary for one in memory]
    assert all(one["slow"] and one["fast"] and one["title"] for one in told)
    taken, without = experience_files.read_experiences(path)
    assert (len(taken), without) == (len(memory), 0)


def test_a_refuted_kernel_failed(ctl, home, tmp_path):
    run = fakes.submit_run(home, fakes.REFUTING)
    fakes.finish_runs(home, run, workers=fakes.refuting_workers())
    assert ctl("export", run, "--layout", "nki-kernel-agent", "-o", tmp_path / "out").status == 0
    with LogReader.open(home) as reader:
        wrong = {row["candidate"] for row in reader.attempt_rows(run) if row["reason"] == "refuted"}
    assert wrong
    found = {one["candidate"]: one for one in lines(tmp_path / "out")}
    assert {found[name]["status"] for name in wrong} == {"correctness_fail"}


def test_exporting_again_is_quiet_and_edited_files_stay(ctl, written, finished):
    again = ("export", finished, "--layout", "nki-kernel-agent", "-o", written)
    assert ctl(*again).status == 0
    (written / "experiments.jsonl").write_text("mine")
    refused = ctl(*again)
    assert refused.status == 2
    assert "was edited" in refused.err
    assert ctl(*again, "--force").status == 0
