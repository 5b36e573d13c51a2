"""The vendor's device behind a stand-in of its SDK: what is asked of it, and what is made of its answers.

The stand-in (`tests/support/neuron_sdk`) has the entry points and tools of the SDK; it computes with NumPy
what a comment of the kernel says. So these tests show that verdicts follow from what came back, not that
real hardware answers like this.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from remote.errors import InfrastructureError
from remote.ssh.errors import HostCalibrationError
from remote.ssh.evaluator import HostEvaluator
from remote.ssh.measure import TimingProtocol
from state.model import Level, Verdict
from targets.nki.hosts.neuron import protocol_for
from targets.nki.hostside import neuron
from tests.adversarial.attacks.repeats import RIGHT_IN_ONE_PROCESS
from tests.remote.conftest import Bench
from tests.support.hostside import LocalJobs
from tests.support.stand_in_sdk import make_python, make_runtime, make_tools
from tests.support.sweeps import parametrize_sweep
from tests.targets.nki.hosts.test_tables import write_table

SDK = Path(__file__).parents[3] / "support" / "neuron_sdk"
GOLDEN = Path(__file__).parent / "golden"
RIGHT = "x / (1 + np.exp(-x))"


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An environment of the stand-in SDK with NumPy, as a host has one."""
    return make_python(tmp_path_factory.mktemp("sdk"))


@pytest.fixture
def jobs(python, tmp_path):
    return LocalJobs(tmp_path / "workdir", python=python, environment=make_tools(tmp_path / "tools"))


@pytest.fixture
def evaluator(jobs, judge) -> HostEvaluator:
    return HostEvaluator(jobs, address="a host", judge=judge, target="trn2", allow_weak_jail=True)


def kernel(bench: Bench, computes: str = RIGHT, takes: str = "0.5 0.501") -> str:
    return f"# computes: {computes}\n# takes: {takes}\n{bench.kernel}"


async def judge_on_device(evaluator: HostEvaluator, bench: Bench, source: str, **fields):
    request = bench.request(source, level=Level.ONE_SEED, **fields)
    return await evaluator.evaluate(request, bench.blobs)


async def test_the_probe_names_device_toolchain_and_routes(evaluator):
    facts = await evaluator.device_facts()
    assert (facts.device, facts.is_predicted, facts.cores) == ("trn2 (trn2.48xlarge)", False, 8)
    assert facts.routes == ("standalone beta2", "standalone beta3")
    assert facts.profiler == "neuron-explorer neuron-explorer 2.30.0.0"
    assert evaluator.toolchain() == "trn2 (trn2.48xlarge) neuronx-cc 2.31.1 nki 0.5.0"


@pytest.mark.slow
async def test_outputs_of_another_size_are_the_kernels_fault_and_not_the_hosts(evaluator, silu):
    found = (await judge_on_device(evaluator, silu, f"# stores: float16\n{kernel(silu)}")).evaluation
    assert (found.verdict, found.error and found.error.code) == (Verdict.RUNTIME_ERROR, "output_size")


async def test_a_right_kernel_is_measured_and_profiled(evaluator, jobs, silu):
    answer = await judge_on_device(evaluator, silu, kernel(silu))
    found = answer.evaluation
    assert found.verdict is Verdict.CORRECT, found.error
    assert found.benchmark is not None
    assert not found.benchmark.predicted
    assert 0.5 <= found.benchmark.latency_ms <= 0.501
    assert found.benchmark.samples == 10
    assert found.identity is not None
    assert found.identity.verdict == "proven"
    assert found.bottleneck == "dma"
    assert found.profile is not None
    profile = json.loads(answer.artefacts[found.profile])
    assert profile["tool"] == "neuron-explorer"
    assert profile["counters"]["hbm_read_bytes"] == 50331648
    assert [job.step for job in jobs.asked if job.cores] == ["execute", "benchmark", "profile"]
    assert answer.device_seconds
    assert answer.device_seconds < sum(answer.stage_ms.values()) / 1000


@pytest.mark.slow
async def test_a_child_is_measured_in_turns_with_its_parent(evaluator, jobs, silu):
    parent = (await judge_on_device(evaluator, silu, kernel(silu))).evaluation
    child = kernel(silu, takes="0.4").replace("out", "res")
    answer = await judge_on_device(evaluator, silu, child, base_ms=parent.benchmark.latency_ms)
    assert answer.evaluation.benchmark.latency_ms == 0.4
    rounds = [job for job in jobs.asked if job.step == "benchmark"]
    assert [len(job.payload["artefacts"]) for job in rounds] == [1, 2]
    profile = json.loads(answer.artefacts[answer.evaluation.profile])
    assert 0.5 <= profile["base_remeasured_ms"] <= 0.501


DESERVED = {
    # what it computes, how long it takes, verdict, stage, code
    "wrong": ("x / (1.001 + np.exp(-x))", "0.5", Verdict.INCORRECT, "numerics", "wrong_result"),
    "not finite": ("np.log(x)", "0.5", Verdict.INCORRECT, "numerics", "not_finite"),
    "fails": ("1 / 0", "0.5", Verdict.RUNTIME_ERROR, "numerics", "device_error"),
    "crashes": (
        "os.kill(os.getpid(), signal.SIGSEGV)", "0.5", Verdict.RUNTIME_ERROR, "execute", "device_crash",
    ),
    "unsteady": (RIGHT, "0.5 0.6", Verdict.UNSTABLE, "benchmark", "unsteady"),
}  # fmt: skip


@parametrize_sweep("case", DESERVED.values(), ids=DESERVED.keys(), quick=["wrong"])
async def test_a_kernel_gets_what_it_deserves(case, evaluator, jobs, silu, monkeypatch):
    computes, takes, verdict, stage, code = case
    # The kernel that hosts are compared by, with which a crash is told from a broken device.
    calibration = kernel(silu)
    protocol = TimingProtocol(rounds=3, spread_ratio=0.04)
    monkeypatch.setattr("targets.nki.hosts.neuron.protocol_for", lambda _: protocol)
    monkeypatch.setattr("remote.ssh.evaluator.starting_kernel", lambda *_: calibration.encode())
    found = (await judge_on_device(evaluator, silu, kernel(silu, computes, takes))).evaluation
    assert (found.verdict, found.stage, found.error and found.error.code) == (verdict, stage, code), found
    assert found.benchmark is None
    rounds = [job.prefer for job in jobs.asked if job.step == "benchmark"]
    if verdict is Verdict.UNSTABLE:
        assert rounds == [1, 2, 3]


async def test_a_kernel_that_builds_another_program_in_another_process_is_not_measured(evaluator, jobs, silu):
    source = f"# computes: {RIGHT}\n# takes: 0.5\n{RIGHT_IN_ONE_PROCESS}"
    found = (await judge_on_device(evaluator, silu, source)).evaluation
    assert (found.verdict, found.error and found.error.code) == (Verdict.COMPILE_ERROR, "trace_differs")
    assert "benchmark" not in [job.step for job in jobs.asked]


async def test_a_measurement_below_the_bound_is_repeated_and_warned_of_but_not_refused(evaluator, jobs, silu):
    found = (await judge_on_device(evaluator, silu, kernel(silu, takes="0.0001"))).evaluation
    assert found.is_correct
    assert found.benchmark.latency_ms == 0.0001
    (warning,) = found.warnings
    assert warning.code == "faster_than_bound"
    assert "measured 0.0001 ms" in warning.message
    assert "GB/s of HBM" in warning.message
    assert [job.step for job in jobs.asked if job.cores].count("benchmark") == 2


REFUSED = {"load": ("execute", "device_load"), "benchmarked": ("benchmark", "device_error")}


@parametrize_sweep("refused", REFUSED, quick=1)
async def test_what_the_runtime_refuses_is_the_kernels_fault_where_another_still_runs(
    refused, evaluator, jobs, silu, monkeypatch
):
    calibration = kernel(silu)
    monkeypatch.setattr("remote.ssh.evaluator.starting_kernel", lambda *_: calibration.encode())
    found = (await judge_on_device(evaluator, silu, f"# refused: {refused}\n{kernel(silu)}")).evaluation
    assert found.verdict is Verdict.RUNTIME_ERROR
    assert (found.stage, found.error.code) == REFUSED[refused]
    assert "status" in found.error.message
    tried, calibrated = [job for job in jobs.asked if job.cores][-2:]
    assert (tried.step, calibrated.step) == (found.stage, "benchmark")


@pytest.mark.slow
async def test_what_a_broken_device_refuses_is_the_hosts_fault(evaluator, jobs, silu, monkeypatch):
    calibration = kernel(silu)
    monkeypatch.setattr("remote.ssh.evaluator.starting_kernel", lambda *_: calibration.encode())
    jobs._environment["NEURON_STAND_IN_BROKEN"] = "1"
    with pytest.raises(HostCalibrationError, match="nrt_load failed"):
        await judge_on_device(evaluator, silu, kernel(silu))


@pytest.mark.slow
async def test_a_run_that_fails_on_a_broken_device_is_no_verdict(evaluator, silu, monkeypatch):
    calibration = f"# refused: benchmarked\n{kernel(silu)}"
    monkeypatch.setattr("remote.ssh.evaluator.starting_kernel", lambda *_: calibration.encode())
    with pytest.raises(HostCalibrationError):
        await judge_on_device(evaluator, silu, kernel(silu, "1 / 0"))


class Hanging(LocalJobs):
    """A host on whose device the first kernel never ends: its job is ended at its deadline."""

    async def run_job(self, job):
        result = await super().run_job(job)
        hangs = job.step == "execute" and [item.step for item in self.asked].count("execute") == 1
        return replace(result, status="deadline", answer=None) if hangs else result


@parametrize_sweep(
    "broken", [False, True], ids=["the kernel's fault", "the device's fault"], quick=["the kernel's fault"]
)
async def test_a_kernel_that_hangs_the_device_is_timed_out_where_another_still_runs(
    broken, jobs, judge, silu, monkeypatch
):
    calibration = silu.kernel if broken else kernel(silu)
    monkeypatch.setattr("remote.ssh.evaluator.starting_kernel", lambda *_: calibration.encode())
    hanging = Hanging(jobs.workdir, python=Path(jobs._python), environment=jobs._environment)
    evaluator = HostEvaluator(hanging, address="a host", judge=judge, target="trn2", allow_weak_jail=True)
    if broken:
        with pytest.raises(InfrastructureError) as caught:
            await judge_on_device(evaluator, silu, kernel(silu))
        assert caught.value.code == "host_calibration"
    else:
        found = (await judge_on_device(evaluator, silu, kernel(silu))).evaluation
        assert (found.verdict, found.error.code) == (Verdict.TIMEOUT, "device_hang")


@pytest.mark.slow
async def test_a_crash_on_a_broken_device_is_no_verdict(evaluator, silu):
    """The calibration kernel of a device that lost its mind fails too: its file has no comment here."""
    with pytest.raises(InfrastructureError) as caught:
        await judge_on_device(evaluator, silu, kernel(silu, "os.kill(os.getpid(), signal.SIGSEGV)"))
    assert caught.value.code == "host_calibration"


@parametrize_sweep(
    ("source", "code"),
    [
        (lambda bench: f"# refused: compile\n{kernel(bench)}", "vendor_compiler"),
        (lambda bench: kernel(bench).replace("import nki", "import neuronxcc.nki"),
         "unsupported_namespace"),
        (lambda bench: kernel(bench).replace("def silu(x)", "def silu()"), "arguments"),
    ],
    ids=["refused by the compiler", "legacy", "too few arguments"],
)  # fmt: skip
async def test_what_does_not_compile_says_why(source, code, evaluator, silu):
    found = (await judge_on_device(evaluator, silu, source(silu))).evaluation
    assert (found.verdict, found.stage) == (Verdict.COMPILE_ERROR, "compile")
    assert found.error.code == code, found.error


@pytest.mark.slow
async def test_what_was_compiled_is_not_compiled_again(evaluator, jobs, silu):
    await judge_on_device(evaluator, silu, kernel(silu))
    sent = jobs.sent
    await judge_on_device(evaluator, silu, kernel(silu))
    answers = [
        json.loads((jobs.workdir / "jobs" / job.key / "work" / "answer.json").read_text())
        for job in jobs.asked
        if job.step == "compile"
    ]
    assert [answer["cached"] for answer in answers] == [False, True]
    assert jobs.sent == sent


@pytest.mark.parametrize(("listing", "cores"), [("ls_list.json", 2), ("ls_object.json", 8)])
async def test_both_shapes_of_the_listing_are_read(listing, cores, jobs, judge):
    jobs._environment["NEURON_STAND_IN_LS"] = str(SDK / listing)
    facts = await HostEvaluator(jobs, address="a host", judge=judge, target="trn2").device_facts()
    assert facts.cores == cores


@pytest.mark.parametrize(
    ("instance", "device"),
    [
        ("trn3.48xlarge", "trn3 (trn3.48xlarge)"),
        ("trn3pds98.3xlarge", "trn3 (trn3pds98.3xlarge)"),
        ("trn2u.48xlarge", "trn2 (trn2u.48xlarge)"),
    ],
)
async def test_instances_are_recognised_by_their_family(instance, device, jobs, judge, tmp_path):
    listing = json.loads((SDK / "ls_object.json").read_text()) | {"instance_type": instance}
    (tmp_path / "ls.json").write_text(json.dumps(listing))
    jobs._environment["NEURON_STAND_IN_LS"] = str(tmp_path / "ls.json")
    evaluator = HostEvaluator(jobs, address="a host", judge=judge, target=device.partition(" ")[0])
    assert (await evaluator.device_facts()).device == device


@pytest.mark.slow
async def test_a_kernel_is_compiled_and_measured_for_trainium3(newer_jobs, judge, silu, tmp_path):
    """The compiler is told the target; what is measured is judged like everywhere."""
    listing = json.loads((SDK / "ls_object.json").read_text()) | {"instance_type": "trn3.48xlarge"}
    (tmp_path / "ls.json").write_text(json.dumps(listing))
    newer_jobs._environment["NEURON_STAND_IN_LS"] = str(tmp_path / "ls.json")
    evaluator = HostEvaluator(newer_jobs, address="a host", judge=judge, target="trn3", allow_weak_jail=True)
    found = (await judge_on_device(evaluator, silu, kernel(silu), target="trn3")).evaluation
    assert found.verdict is Verdict.CORRECT, found.error
    assert (found.target, found.benchmark.predicted) == ("trn3", False)


def test_the_protocol_is_the_papers():
    told = {target: protocol_for(target) for target in ("trn1", "trn2")}
    assert {(item.warmups, item.runs, item.rounds) for item in told.values()} == {(2, 10, 10)}
    assert (told["trn1"].spread_ratio, told["trn2"].spread_ratio) == (0.01, 0.04)


@pytest.mark.parametrize("chosen", ["", "1", "2"])
def test_neuron_cores_are_counted_as_the_run_time_numbers_them(tmp_path, monkeypatch, chosen):
    """We tell the runtime that a logical core is one physical core, whatever the host's environment says."""
    for device in ("neuron0", "neuron1"):
        for core in range(2):
            (tmp_path / device / f"neuron_core{core}").mkdir(parents=True)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", chosen)
    assert neuron.list_cores(tmp_path) == [0, 1, 2, 3]
    assert neuron.list_cores(tmp_path / "none") == []


# --- SDK 2.33: compiled by the decorated kernel's call, run by nrtpy from another environment ---


@pytest.fixture(scope="module")
def newer_python(tmp_path_factory) -> Path:
    return make_python(tmp_path_factory.mktemp("sdk_2_33"), "2.33")


@pytest.fixture
def newer_jobs(newer_python, tmp_path):
    environment = {**make_tools(tmp_path / "tools"), "HOME": str(make_runtime(tmp_path / "home"))}
    return LocalJobs(tmp_path / "workdir", python=newer_python, environment=environment)


@pytest.fixture
def newer(newer_jobs, judge) -> HostEvaluator:
    return HostEvaluator(newer_jobs, address="a host", judge=judge, target="trn2", allow_weak_jail=True)


async def test_the_probe_finds_the_runtime_of_another_environment(newer, newer_jobs):
    facts = await newer.device_facts()
    assert facts.routes == ("jit 0.7.0",)
    assert facts.runtime.startswith("nrtpy in ")
    assert facts.runtime.endswith("site-packages")
    assert facts.lacking == ()
    assert newer.toolchain() == "trn2 (trn2.48xlarge) neuronx-cc 2.33.0 nki 0.7.0"


async def test_without_a_runtime_the_probe_says_what_is_missing(newer, newer_jobs, tmp_path):
    newer_jobs._environment["HOME"] = str(tmp_path / "elsewhere")
    facts = await newer.device_facts()
    assert facts.is_predicted
    assert any("nrtpy" in text and "environment of its own" in text for text in facts.lacking)


@parametrize_sweep("executor", [True, False], ids=["not run", "run without a device"], quick=["not run"])
async def test_the_call_of_a_kernel_leaves_its_neff(executor, newer, silu):
    """The artefact is what counts, whether or not the call went on to a device that is not there."""
    source = kernel(silu) if executor else f"# executor: none\n{kernel(silu)}"
    found = (await judge_on_device(newer, silu, source)).evaluation
    assert found.verdict is Verdict.CORRECT, found.error
    assert not found.benchmark.predicted
    assert 0.5 <= found.benchmark.latency_ms <= 0.501


@parametrize_sweep("refused", ["compile", "load", "benchmarked"], quick=["compile"])
async def test_what_the_newer_sdk_refuses(refused, newer, newer_jobs, silu, monkeypatch):
    monkeypatch.setattr("remote.ssh.evaluator.starting_kernel", lambda *_: kernel(silu).encode())
    found = (await judge_on_device(newer, silu, f"# refused: {refused}\n{kernel(silu)}")).evaluation
    codes = {"compile": "vendor_compiler", **{name: code for name, (_, code) in REFUSED.items()}}
    assert found.error.code == codes[refused], found.error


@pytest.mark.slow
async def test_a_newer_sdk_compiles_no_legacy_kernel(newer, silu):
    source = kernel(silu).replace("import nki", "import neuronxcc.nki")
    found = (await judge_on_device(newer, silu, source)).evaluation
    assert (found.verdict, found.error.code) == (Verdict.COMPILE_ERROR, "unsupported_namespace")


# --- SDK 2.27: kernels of the legacy namespace, by baremetal ---


@pytest.mark.slow
async def test_baremetal_compiles_legacy_kernels(tmp_path, judge, silu):
    python = make_python(tmp_path / "sdk", "2.27")
    jobs = LocalJobs(tmp_path / "workdir", python=python, environment=make_tools(tmp_path / "tools"))
    evaluator = HostEvaluator(jobs, address="a host", judge=judge, target="trn2", allow_weak_jail=True)
    assert (await evaluator.device_facts()).routes == ("baremetal",)
    legacy = kernel(silu).replace("import nki\n", "import neuronxcc.nki as nki\n")
    legacy = legacy.replace("import nki.", "import neuronxcc.nki.")
    found = (await judge_on_device(evaluator, silu, legacy)).evaluation
    assert found.verdict is Verdict.CORRECT, found.error
    assert 0.5 <= found.benchmark.latency_ms <= 0.501
    current = (await judge_on_device(evaluator, silu, kernel(silu))).evaluation
    assert (current.verdict, current.error.code) == (Verdict.COMPILE_ERROR, "no_compiler")


# --- full profiles ---


async def test_a_full_profile_says_when_engines_are_busy_and_for_which_line(
    newer, newer_jobs, tmp_path, silu
):
    pytest.importorskip("duckdb")
    tables = tmp_path / "their tables"
    tables.mkdir()
    write_table(
        tables, "ActiveTime.parquet", "engine, start_ts, end_ts", "('vector', 0, 500), ('scalar', 400, 1000)"
    )
    columns = "engine, opcode, duration_ns, evt_wait_time_ns, nki_source_location"
    write_table(
        tables, "Instruction.parquet", columns, "('vector', 'TENSOR_TENSOR', 500, 100, 'kernel.py:9')"
    )
    write_table(tables, "Metadata.parquet", "profile_schema_version", "('12.0.1')")
    newer_jobs._environment["NEURON_STAND_IN_TABLES"] = str(tables)
    answer = await judge_on_device(newer, silu, kernel(silu))
    profile = json.loads(answer.artefacts[answer.evaluation.profile])
    assert not profile["predicted"]
    assert profile["timeline"]["busy_percent"].keys() == {"vector", "scalar"}
    assert profile["waits_ms"] == {"vector": {"semaphores": 1e-4}}
    assert [one["line"] for one in profile["busy_lines"]] == [9]
    assert {one["code"] for one in profile["inefficiencies"]} == {"redundant_dma"}


@pytest.mark.slow
async def test_a_damaged_full_profile_leaves_the_summary(newer, newer_jobs, tmp_path, silu):
    tables = tmp_path / "their tables"
    tables.mkdir()
    (tables / "Instruction.parquet").write_bytes(b"PAR1 not really")
    newer_jobs._environment["NEURON_STAND_IN_TABLES"] = str(tables)
    answer = await judge_on_device(newer, silu, kernel(silu))
    profile = json.loads(answer.artefacts[answer.evaluation.profile])
    assert profile["bottleneck"] == "dma"
    assert "timeline" not in profile
