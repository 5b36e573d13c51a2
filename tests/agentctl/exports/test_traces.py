"""Kernels as one Chrome trace: what tracing tools ask of the format, and kernels beside one another."""

from __future__ import annotations

import json

import pytest

from agentctl.exports.traces import merge_traces
from tests.support import fakes


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


HOSTILE = "</script>\u202e\n"


def traced(latency_ms: float, kernel: str = "silu") -> bytes:
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": f"trn2 core 0: {kernel}"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "Tensor"}},
        {
            "ph": "X",
            "name": "matmul",
            "cat": "predicted",
            "pid": 1,
            "tid": 2,
            "ts": 0.0,
            "dur": 2.5,
            "args": {},
        },
        {"ph": "C", "name": "SBUF", "pid": 1, "tid": 1, "ts": 0.0, "args": {"used": 3}},
    ]
    about = {"predicted": True, "kernel": kernel, "latency_ms": latency_ms}
    return json.dumps({"otherData": about, "traceEvents": events}).encode()


def test_each_kernel_has_processes_of_its_own():
    made = json.loads(merge_traces("run", {"r0": traced(2.0), "r1": traced(1.0, HOSTILE)}))
    assert made["otherData"]["predicted"] is True
    assert [one["candidate"] for one in made["otherData"]["kernels"]] == ["r0", "r1"]
    names = {one["pid"]: one["args"]["name"] for one in made["traceEvents"] if one["name"] == "process_name"}
    assert names == {1: "r0: trn2 core 0: silu", 1001: "r1: trn2 core 0: </script>\\u202e"}
    assert [one["pid"] for one in made["traceEvents"] if one["ph"] == "X"] == [1, 1001]
    order = {
        one["pid"]: one["args"]["sort_index"]
        for one in made["traceEvents"]
        if one["name"].endswith("sort_index")
    }
    assert order[1] < order[1001]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--trace",), 2, "-o PATH"),
        (("--trace", "--git"), 2, "one of --trace"),
        ((), 2, "one of --trace"),
        (("--layout", "other"), 2, "nki-kernel-agent"),
        (("--trace", "--kernel", "r9.b0.p0.k0.f0", "-o", "t.json"), 3, "no kernel"),
    ],
)
@pytest.mark.usefixtures("finished")
def test_what_cannot_be_done_is_said_in_a_line(ctl, in_a_folder, arguments, status, said):
    called = ctl("export", *arguments)
    assert called.status == status
    assert said in called.err
    assert list(in_a_folder.iterdir()) == []


def test_kernels_that_are_none_have_no_trace(ctl, finished, tmp_path):
    """The fake judge's kernels are constants: the simulator cannot trace them, and says why."""
    called = ctl("export", finished, "--trace", "-o", tmp_path / "t.json")
    assert called.status == 1
    assert called.err.startswith("agentctl: ")
    assert not (tmp_path / "t.json").exists()


def test_of_no_run_there_is_no_export(ctl, home, tmp_path):
    assert ctl("export", "--trace", "-o", tmp_path / "t.json").status == 3
    fakes.submit_run(home)
    fakes.take_commands(home)
    assert ctl("export", "none", "--trace", "-o", tmp_path / "t.json").status == 3
