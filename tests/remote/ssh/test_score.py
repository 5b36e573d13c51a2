"""The end-to-end score: what is read from a command's output, when a gate holds, what becomes of a kernel."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import pytest
from pydantic import ValidationError

import seeds
from remote.errors import InfrastructureError
from remote.pool import WorkerLimits, WorkerPool
from remote.registry import EvaluatorSpec, create_evaluator
from remote.ssh.evaluator import HostEvaluator
from remote.ssh.score import EndToEndScore, ScoreError, parse_samples, percentiles
from state.model import Level, RunConfig, ScoreConfig, Verdict
from tests.remote.conftest import Bench
from tests.support.hostside import LocalJobs
from tests.support.sweeps import parametrize_sweep

COMMAND = ("bench", "{kernel}")


@pytest.fixture
async def workers() -> AsyncIterator[WorkerPool]:
    made = WorkerPool(WorkerLimits(memory_bytes=4 << 30))
    yield made
    await made.aclose()


def ran(output: str = "", *, status: int | None = 0, errors: str = "", wall_s: float = 1.5) -> dict:
    return {"status": status, "output": output, "errors": errors, "wall_s": wall_s}


@pytest.mark.parametrize(
    ("fields", "output", "samples"),
    [
        ({"pattern": r"throughput: ([\d.]+) tokens/s"}, "warm\nthroughput: 12.5 tokens/s\n", (12.5,)),
        ({"pattern": r"p50=(\S+)"}, "p50=1.0\np50=3e0", (1.0, 3.0)),
        ({"json_path": "latency.p50"}, 'log line\n{"latency": {"p50": 7}}\n', (7.0,)),
        ({"json_path": "runs[1].ms"}, '{\n "runs": [{"ms": 1}, {"ms": 2.5}]\n}', (2.5,)),
        ({"json_path": "samples"}, '{"samples": [1, 2, "3"]}', (1.0, 2.0, 3.0)),
        ({}, "whatever", (1500.0,)),
    ],
    ids=["pattern", "several matches", "json", "json over lines", "json list", "wall time"],
)
async def test_the_metric_is_found(fields, output, samples, workers):
    assert await parse_samples([ran(output)], ScoreConfig(command=COMMAND, **fields), workers) == samples


@pytest.mark.slow
async def test_a_pattern_that_takes_for_ever_on_an_output_is_the_commands_failure_and_stops_nobody(workers):
    config = ScoreConfig(command=COMMAND, pattern=r"(?:a|aa)+\s+(\d+) ms$")
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.05)
            beats += 1

    beating = asyncio.create_task(beat())
    with pytest.raises(ScoreError, match="more than 5 s of processor time"):
        await parse_samples([ran("a" * 200)], config, workers)
    beating.cancel()
    assert beats > 20
    assert await parse_samples([ran("aa 7 ms")], config, workers) == (7.0,)


@pytest.mark.parametrize(
    ("fields", "run", "why"),
    [
        (
            {},
            ran(status=3, errors="Traceback\nValueError: no such layer"),
            "status 3: ValueError: no such layer",
        ),
        ({}, ran(status=None), "did not end within 600 s"),
        ({"pattern": "x=(.)"}, ran("y=1"), "nothing in its output matches"),
        ({"pattern": "x=(.)"}, ran("x=y"), "'y' is not a number"),
        ({"json_path": "a.b"}, ran('{"a": 1}'), "no a.b"),
        ({"json_path": "a"}, ran("no json"), "no JSON object"),
        ({"json_path": "a"}, ran('{"a": true}'), "not a number"),
        ({"json_path": "a"}, ran('{"a": -1}'), "not positive"),
        ({"json_path": "a"}, ran('{"a": 1e999}'), "not positive"),
        ({"json_path": "a"}, ran(f'{{"a": {10**400}}}'), "not a number"),
        ({"json_path": "a"}, ran('{"a": 1e-320}'), "no measurement"),
        ({}, {}, "did not end"),
    ],
    ids=range(12),
)
async def test_a_command_that_tells_no_number_is_named_with_why(fields, run, why, workers):
    with pytest.raises(ScoreError, match=why):
        await parse_samples([run], ScoreConfig(command=COMMAND, **fields), workers)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"command": ("bench",)}, "no kernel would be swapped in"),
        ({"command": COMMAND, "pattern": "x" }, "one group"),
        ({"command": COMMAND, "pattern": "(("}, "not a regular expression"),
        ({"command": COMMAND, "pattern": "(x)", "json_path": "a"}, "either"),
        ({"command": COMMAND, "json_path": "a..b"}, "pattern"),
    ],
    ids=range(5),
)  # fmt: skip
def test_a_configuration_that_cannot_work_is_refused(fields, why):
    with pytest.raises(ValidationError, match=why):
        ScoreConfig(**fields)


def test_without_a_command_there_is_no_score():
    assert RunConfig().score.command == ()


def test_a_score_without_a_host_to_run_it_on_is_refused():
    with pytest.raises(ValidationError, match="hosts names no host"):
        RunConfig(score=ScoreConfig(command=COMMAND))
    assert RunConfig(score=ScoreConfig(command=COMMAND), hosts=("a-host",)).score.command == COMMAND


def test_hosts_get_the_score_of_the_configuration(home, monkeypatch):
    made = []
    monkeypatch.setattr("remote.fleet.hosts.HostEvaluator", lambda *_, **options: made.append(options))
    config = RunConfig(evaluator="ssh", hosts=("a-host",), score=ScoreConfig(command=COMMAND))
    create_evaluator(EvaluatorSpec.from_config(config), home=home)
    assert [options["scoring"] for options in made] == [config.score]


def test_better_is_the_way_that_the_metric_points():
    slower = EndToEndScore(candidate=(12.0, 12.0), baseline=(10.0, 10.0), better="lower")
    assert slower.ratio == pytest.approx(10 / 12)
    assert not slower.meets_ratio(1.0)
    assert EndToEndScore((12.0, 12.0), (10.0, 10.0), "higher").meets_ratio(1.1)
    assert EndToEndScore((12.0, 12.0), (10.0, 10.0), "higher").latency_ms == pytest.approx(1000 / 12)


def test_a_loss_within_the_scatter_contradicts_nothing():
    scattered = EndToEndScore(candidate=(9.0, 10.2, 11.0), baseline=(9.0, 10.0, 11.0), better="lower")
    assert scattered.ratio < 1
    assert scattered.meets_ratio(1.0)


def test_percentiles_are_those_of_the_samples():
    told = percentiles([float(value) for value in range(1, 101)])
    assert (told["p50"], told["p90"], told["p99"]) == pytest.approx((50.5, 90.1, 99.01))
    assert percentiles([7.0]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0}


PROGRAM = """
import glob, json, os, sys
source = open(sys.argv[1]).read()
assert os.environ["NKI_KERNEL"] == sys.argv[1]
if "# crashes" in source:
    raise SystemExit("the model does not load this kernel")
if "# spoils" in source:
    for path in glob.glob(os.path.join(os.path.dirname(sys.argv[1]), "..", "kernel-*", "kernel.py")):
        if not os.path.samefile(path, sys.argv[1]):
            open(path, "a").write("# bad")
print(json.dumps({"ms": 8.0 if "# good" in source else 12.0 if "# bad" in source else 10.0}))
"""


@pytest.fixture
def evaluator(judge, tmp_path):
    def make(**fields) -> HostEvaluator:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        settings = {"command": (sys.executable, str(program), "{kernel}"), "json_path": "ms", "runs": 2}
        config = ScoreConfig(**{**settings, **fields})
        jobs = LocalJobs(tmp_path / "workdir")
        return HostEvaluator(
            jobs, address="a host", judge=judge, target="trn2", allow_weak_jail=True, scoring=config
        )

    return make


@parametrize_sweep(
    ("mark", "verdict", "code"),
    [
        ("# good", Verdict.CORRECT, None),
        ("# bad", Verdict.UNSTABLE, "score_contradicts"),
        ("# crashes", Verdict.RUNTIME_ERROR, "score_failed"),
    ],
    ids=["holds", "contradicts", "fails"],
    quick=1,
)
async def test_a_gate_is_for_kernels_that_are_judged_on_everything(mark, verdict, code, evaluator):
    silu = Bench(seeds.load_problem("silu"))
    request = silu.request(f"{mark}\n{silu.kernel}", level=Level.WHOLE)
    found = (await evaluator().evaluate(request, silu.blobs)).evaluation
    assert (found.verdict, found.error and found.error.code) == (verdict, code), found.error
    assert (found.benchmark is None) == (verdict is not Verdict.CORRECT)


@pytest.mark.slow
async def test_a_kernel_that_spoils_the_others_file_gains_nothing(evaluator):
    silu = Bench(seeds.load_problem("silu"))
    request = silu.request(f"# spoils\n{silu.kernel}", level=Level.WHOLE)
    found = (await evaluator(least_ratio=1.1).evaluate(request, silu.blobs)).evaluation
    assert (found.verdict, found.error and found.error.code) == (Verdict.UNSTABLE, "score_contradicts")


@pytest.mark.slow
async def test_as_the_objective_the_score_is_the_latency(evaluator):
    silu = Bench(seeds.load_problem("silu"))
    request = silu.request(f"# good\n{silu.kernel}", level=Level.SLICES)
    made = evaluator(use="objective")
    answer = await made.evaluate(request, silu.blobs)
    found = answer.evaluation
    told = json.loads(answer.artefacts[found.profile])["score"]
    assert (told["ratio"], told["better"]) == (1.25, "lower")
    assert told["candidate"] == {"p50": 8.0, "p90": 8.0, "p99": 8.0}
    assert told["baseline"] == {"p50": 10.0, "p90": 10.0, "p99": 10.0}
    assert found.benchmark.latency_ms == 8.0
    assert not found.benchmark.predicted
    assert "scored by" in made.toolchain()


@pytest.mark.slow
async def test_a_command_that_fails_with_the_first_kernel_too_is_nobodys_fault(evaluator):
    silu = Bench(seeds.load_problem("silu"))
    made = evaluator(command=("/no/such/program", "{kernel}"))
    with pytest.raises(InfrastructureError, match="No such file") as caught:
        await made.evaluate(silu.request(f"# good\n{silu.kernel}", level=Level.WHOLE), silu.blobs)
    assert caught.value.code == "score_command"
