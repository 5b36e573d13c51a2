"""Faults at every step of the routes of SDK 2.32 and later, and what is made of each.

Compiling by the kernel's call, loading, running and timing by nrtpy, capturing and reading a profile: each
step raises, crashes, ends, or leaves nothing or nonsense. A kernel's fault is a verdict, and a profile that
cannot be had leaves the measurement. The stand-in of the SDK breaks where a comment of the kernel
(`# fault: STEP KIND`) or the environment says.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote.errors import InfrastructureError
from remote.ssh.evaluator import HostEvaluator
from state.model import Level, Verdict
from tests.support.hostside import LocalJobs
from tests.support.stand_in_sdk import make_python, make_runtime, make_tools
from tests.support.sweeps import parametrize_sweep
from tests.targets.nki.hosts.test_tables import write_table

RIGHT = "# computes: x / (1 + np.exp(-x))\n# takes: 0.5 0.501\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    return make_python(tmp_path_factory.mktemp("sdk_2_33"), "2.33")


@pytest.fixture
def jobs(python, tmp_path):
    environment = {**make_tools(tmp_path / "tools"), "HOME": str(make_runtime(tmp_path / "home"))}
    return LocalJobs(tmp_path / "workdir", python=python, environment=environment)


@pytest.fixture
def evaluator(jobs, judge, silu, monkeypatch) -> HostEvaluator:
    # The kernel that hosts are compared by, with which a kernel's fault is told from a broken device.
    calibration = f"{RIGHT}{silu.kernel}".encode()
    monkeypatch.setattr("remote.ssh.evaluator.starting_kernel", lambda *_: calibration)
    return HostEvaluator(jobs, address="a host", judge=judge, target="trn2", allow_weak_jail=True)


async def judge_with(evaluator: HostEvaluator, bench, *faults: str):
    source = "".join(f"# fault: {fault}\n" for fault in faults) + RIGHT + bench.kernel
    return await evaluator.evaluate(bench.request(source, level=Level.ONE_SEED), bench.blobs)


VERDICTS = {
    # step and kind: verdict, stage, code
    "compile raise": (Verdict.COMPILE_ERROR, "compile", "vendor_compiler"),
    "compile crash": (Verdict.COMPILE_ERROR, "compile", "no_artefact"),
    "compile exit": (Verdict.COMPILE_ERROR, "compile", "no_artefact"),
    "compile nothing": (Verdict.COMPILE_ERROR, "compile", "no_artefact"),
    "compile empty": (Verdict.COMPILE_ERROR, "compile", "no_artefact"),
    "load raise": (Verdict.RUNTIME_ERROR, "execute", "device_load"),
    "load crash": (Verdict.RUNTIME_ERROR, "execute", "device_crash"),
    "load names": (Verdict.RUNTIME_ERROR, "numerics", "device_error"),
    "run raise": (Verdict.RUNTIME_ERROR, "numerics", "device_error"),
    "run crash": (Verdict.RUNTIME_ERROR, "execute", "device_crash"),
    "run nothing": (Verdict.RUNTIME_ERROR, "numerics", "output_size"),
    "benchmark raise": (Verdict.RUNTIME_ERROR, "benchmark", "device_error"),
    "benchmark crash": (Verdict.RUNTIME_ERROR, "benchmark", "device_crash"),
}
QUICK = ["compile nothing", "load raise", "run nothing"]


@parametrize_sweep("fault", VERDICTS, quick=QUICK)
async def test_a_step_that_fails_is_a_verdict_with_its_stage_and_code(fault, evaluator, silu):
    found = (await judge_with(evaluator, silu, fault)).evaluation
    assert (found.verdict, found.stage, found.error and found.error.code) == VERDICTS[fault], found.error
    assert found.benchmark is None
    assert found.error.message


HOSTS = {
    # what no kernel does: its process ends by itself, or takes times that no device can have taken
    "load exit": "step execute ended without an answer",
    "run exit": "step execute ended without an answer",
    "benchmark exit": "step benchmark ended without an answer",
    "benchmark nan": "step benchmark ended without an answer",
    "benchmark negative": "samples are positive numbers",
    "benchmark zero": "samples are positive numbers",
    "benchmark many": "a round has 10 samples",
}


@parametrize_sweep("fault", HOSTS, quick=["benchmark negative"])
async def test_what_no_kernel_does_is_the_hosts_fault_and_no_verdict(fault, evaluator, silu):
    with pytest.raises(InfrastructureError, match=HOSTS[fault]) as caught:
        await judge_with(evaluator, silu, fault)
    assert "a host" in str(caught.value)


PROFILER = ["capture", "untraced", "view", "nonsense"]


@parametrize_sweep("fault", PROFILER, quick=["untraced"])
async def test_a_profile_that_cannot_be_had_leaves_the_measurement(fault, evaluator, jobs, silu):
    jobs._environment["NEURON_STAND_IN_FAULT"] = fault
    found = (await judge_with(evaluator, silu)).evaluation
    assert found.verdict is Verdict.CORRECT, found.error
    assert not found.benchmark.predicted
    assert 0.5 <= found.benchmark.latency_ms <= 0.501
    assert (found.profile, found.bottleneck) == (None, None)


ROWS = {
    "ActiveTime": ("engine, start_ts, end_ts", "('vector', 0, 500)"),
    "Instruction": (
        "engine, opcode, duration_ns, evt_wait_time_ns, nki_source_location",
        "('vector', 'TENSOR_TENSOR', 500, 100, 'kernel.py:9')",
    ),
}
DAMAGES = {
    # how the tables are damaged: the fields that are left
    "not written": set(),
    "empty file": set(),
    "no rows": {"missing_fields"},
    "another type": set(),
    "another table": {"timeline", "missing_fields"},
}


@parametrize_sweep("damage", DAMAGES, quick=["no rows"])
async def test_tables_that_cannot_be_read_leave_the_summary(damage, evaluator, jobs, silu, tmp_path):
    pytest.importorskip("duckdb")
    tables = tmp_path / "their tables"
    tables.mkdir()
    for name, (columns, row) in ROWS.items():
        write_table(tables, f"{name}.parquet", columns, row)
    columns = ROWS["Instruction"][0]
    if damage == "not written":
        jobs._environment["NEURON_STAND_IN_FAULT"] = "tables"
    elif damage == "empty file":
        (tables / "Instruction.parquet").write_bytes(b"")
    elif damage == "no rows":
        (tables / "ActiveTime.parquet").unlink()
        write_table(tables, "Instruction.parquet", columns, "(NULL, NULL, NULL, NULL, NULL)")
    elif damage == "another type":
        write_table(tables, "Instruction.parquet", columns, "(1, 2, 'long', 'longer', 3)")
    else:
        (tables / "Instruction.parquet").rename(tables / "Instructions.parquet")
    jobs._environment["NEURON_STAND_IN_TABLES"] = str(tables)
    answer = await judge_with(evaluator, silu)
    profile = json.loads(answer.artefacts[answer.evaluation.profile])
    assert profile["bottleneck"] == "dma"
    read = {"timeline", "waits_ms", "busy_lines", "missing_fields"}
    assert {name for name in read if profile.get(name)} == DAMAGES[damage]
    unread = damage in {"empty file", "another type"}
    assert [note.partition(":")[0] for note in profile.get("table_notes", ())] == [
        "the full profile was not read"
    ] * unread
