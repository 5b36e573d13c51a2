"""What a host says is believed as far as it can be checked: one that is wrong, or lies, decides nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from remote.errors import InfrastructureError
from remote.fleet.hosts import describe_host
from remote.hostside.limits import ANSWER_BYTES
from remote.judge import suite
from remote.local import LocalEvaluator
from remote.ssh.device_facts import parse_device_facts
from remote.ssh.errors import HostProtocolError, HostPythonError
from remote.ssh.evaluator import HostEvaluator
from remote.ssh.host_config import host_from_config
from remote.ssh.job import AnswerReader, read_facts, read_result
from state.model import PERSON, HostConfig, Level, Verdict
from tests.adversarial.attacks.repeats import RIGHT_IN_ONE_PROCESS
from tests.support.hostside import LocalJobs
from tests.support.sweeps import parametrize_sweep


class Tampering(LocalJobs):
    """A host whose answers to some steps are changed on the way: `answers` and `files` by step."""

    def __init__(self, workdir, answers=None, files=None) -> None:
        super().__init__(workdir)
        self._answers, self._files = answers or {}, files or {}
        self._steps: dict[str, str] = {}

    async def run_job(self, job):
        self._steps[job.key] = job.step
        result = await super().run_job(job)
        change = self._answers.get(job.step)
        return replace(result, answer=change(dict(result.answer))) if change else result

    async def fetch_files(self, key, names):
        found = await super().fetch_files(key, names)
        change = self._files.get(self._steps[key])
        return {name: change(data) for name, data in found.items()} if change else found


def on(jobs, judge) -> HostEvaluator:
    return HostEvaluator(jobs, address="a host", judge=judge, target="trn2", allow_weak_jail=True)


async def judge_on_host(jobs, judge, bench, source=None):
    return (await on(jobs, judge).evaluate(bench.request(source, level=Level.SLICES), bench.blobs)).evaluation


def other_inputs(answer):
    first = next(iter(answer["digests"]))
    return {**answer, "digests": {**answer["digests"], first: ["0" * 64]}}


def faster(answer):
    return {**answer, "samples_ms": [[ms / 2 for ms in answer["samples_ms"][0]]]}


class Recording(LocalJobs):
    """A host whose payloads are kept."""

    def __init__(self, workdir) -> None:
        super().__init__(workdir)
        self.payloads = []

    async def run_job(self, job):
        self.payloads.append((job.step, job.payload))
        return await super().run_job(job)


async def test_a_host_runs_the_secret_set_and_is_not_told_the_secret(judge, silu, tmp_path):
    jobs = Recording(tmp_path)
    assert (await judge_on_host(jobs, judge, silu)).is_correct
    name = suite.secret_set(judge.references.secret)
    for wanted in ("draw", "execute"):
        assert any(step == wanted and name in payload["sets"] for step, payload in jobs.payloads)
    assert judge.references.secret not in repr(jobs.payloads)


LIES = {
    "draws other inputs": ({"draw": other_inputs}, {}, "host_inputs"),
    "says nothing of a set": ({"execute": lambda _: {"sets": {}}}, {}, "host_protocol"),
    "shows too little": ({}, {"compare": lambda data: data[:-1]}, "host_protocol"),
    "shows sketches out of range": ({}, {"compare": lambda data: b"\xff" * len(data)}, "host_protocol"),
    "is faster than its own model": ({"benchmark": faster}, {}, "host_disagrees"),
    "has too few samples": ({"benchmark": lambda _: {"samples_ms": [[1.0]]}}, {}, "host_protocol"),
    "has a time that no float can be": (
        {"benchmark": lambda _: {"samples_ms": [[10**400] * 10]}}, {}, "host_protocol"
    ),
    "has packages whose names fill the log": (
        {"probe": lambda answer: {**answer, "packages": {"x" * (1 << 20): "1"}}}, {}, "host_protocol"
    ),
    "probes nonsense": ({"probe": lambda _: {"device": "abacus"}}, {}, "host_protocol"),
}  # fmt: skip


@parametrize_sweep(
    "lie",
    LIES.values(),
    ids=LIES.keys(),
    quick=["draws other inputs", "has packages whose names fill the log", "probes nonsense"],
)
async def test_a_host_that_is_wrong_decides_nothing(lie, judge, silu, tmp_path):
    answers, files, code = lie
    with pytest.raises(InfrastructureError) as caught:
        await judge_on_host(Tampering(tmp_path / "workdir", answers, files), judge, silu)
    assert caught.value.code == code


async def test_a_host_whose_python_builds_no_jail_is_refused_with_what_mends_it(judge, tmp_path):
    old = {"probe": lambda answer: {**answer, "python": "3.9.18", "jail": "none"}}
    with pytest.raises(HostPythonError, match=r"Python 3\.9\.18 there builds no jail.*3\.10 or later"):
        await on(Tampering(tmp_path / "workdir", old), judge).prepare()


GREETING = {
    "worker": "w", "hostname": "h", "system": "Linux", "python": "3.11", "boot_id": "b", "cpus": 192,
    "memory_bytes": 2 << 40, "free_disk_bytes": 8 << 40, "cores": [0, 1], "has_device": True, "walls": [],
    "workdir": "/w",
}  # fmt: skip


@pytest.mark.parametrize(
    "boast",
    [
        {"cpus": 1 << 20}, {"cores": list(range(5000))}, {"cores": [1 << 20]}, {"cores": [0, 0]},
        {"cores": [True]}, {"free_disk_bytes": 1 << 62}, {"memory_bytes": 1 << 62}, {"cpus": True},
    ],
)  # fmt: skip
def test_a_host_that_claims_to_be_more_than_machines_are_is_refused(boast):
    assert read_facts(GREETING, "a host").cpus == 192
    with pytest.raises(HostProtocolError, match=next(iter(boast))):
        read_facts({**GREETING, **boast}, "a host")


def test_a_configuration_lowers_what_a_host_is_given():
    named = host_from_config(HostConfig(address="a", slots=2))
    facts = parse_device_facts({"device": "nki_sim", "python": "3.11", "jail": "weak"}, "a")
    assert describe_host(named, facts, toolchain="t", slots=192).slots == 2
    assert describe_host(named, facts, toolchain="t", slots=1).slots == 1


@pytest.mark.slow
async def test_where_a_sketch_does_not_tell_the_outputs_come_home(judge, silu, tmp_path):
    """An error just under the tolerance, where a sketch could say either: the verdict is the exact one."""
    tolerance = silu.problem.spec.rel_l2

    def off_by(share: float) -> str:
        return silu.kernel.replace("scale=-1.0", f"scale={-1.0 - share!r}")

    local = LocalEvaluator(judge, target="trn2")
    known = await local.evaluate(silu.request(off_by(1e-3), level=Level.SLICES), silu.blobs)
    near = off_by(1e-3 * 0.97 * tolerance / known.evaluation.rel_l2[silu.problem.spec.seeds[0]])
    here = (await local.evaluate(silu.request(near, level=Level.SLICES), silu.blobs)).evaluation
    jobs = LocalJobs(tmp_path / "workdir")
    there = await judge_on_host(jobs, judge, silu, near)
    assert there.verdict is here.verdict
    first = silu.problem.spec.seeds[0]
    assert there.rel_l2[first] == pytest.approx(here.rel_l2[first], rel=1e-6)
    sketched, exact = (job for job in jobs.asked if job.step == "compare")
    in_full = [[piece["bins"] for piece in job.payload["pieces"]].count(0) for job in (sketched, exact)]
    assert in_full[0] < in_full[1]


@pytest.mark.slow
async def test_what_a_host_threw_away_is_sent_again(judge, silu, tmp_path):
    class Tidied(LocalJobs):
        async def run_job(self, job):
            if job.step == "execute" and len(self.asked) == 3:
                self.tidy()
            return await super().run_job(job)

    jobs = Tidied(tmp_path / "workdir")
    found = await judge_on_host(jobs, judge, silu)
    assert found.is_correct
    assert [job.step for job in jobs.asked].count("execute") == 2


@pytest.mark.slow
async def test_a_candidate_that_comes_again_costs_little_on_the_link(judge, silu, tmp_path):
    jobs = LocalJobs(tmp_path / "workdir")
    evaluator = on(jobs, judge)
    request = silu.request(level=Level.ONE_SEED)
    await evaluator.evaluate(request, silu.blobs)
    before = jobs.sent + jobs.fetched
    first = len(jobs.asked)
    await evaluator.evaluate(request, silu.blobs)
    asked = sum(len(json.dumps(job.payload)) for job in jobs.asked[first:])
    assert jobs.sent + jobs.fetched - before + asked < 100_000


async def test_what_is_drawn_with_the_secret_stays_home_until_the_kernel_has_ended(judge, silu, tmp_path):
    jobs = LocalJobs(tmp_path / "workdir")
    await judge_on_host(jobs, judge, silu)
    steps = [job.step for job in jobs.asked]
    assert steps == ["probe", "compile", "draw", "execute", "compare", "compile", "benchmark"]
    for job in jobs.asked:
        told = json.dumps(job.payload)
        assert "a secret of tests" not in told
        assert ("seed" in job.payload) == (job.step == "compare")
        if job.step in {"compile", "draw", "execute"}:
            assert "box" not in told


async def test_a_kernel_is_traced_there_again_in_another_process(judge, silu, tmp_path):
    jobs = LocalJobs(tmp_path / "workdir")
    found = await judge_on_host(jobs, judge, silu, RIGHT_IN_ONE_PROCESS)
    assert (found.verdict, found.error and found.error.code) == (Verdict.COMPILE_ERROR, "trace_differs")
    seeds = [job.payload["hash_seed"] for job in jobs.asked if job.step == "compile"]
    assert seeds[0] is None
    assert seeds[1:]
    assert all(seeds[1:])


async def test_a_host_with_a_weak_jail_compiles_no_kernel_of_a_model(judge, silu, tmp_path):
    jobs = Tampering(tmp_path / "workdir", {"probe": lambda answer: {**answer, "jail": "weak"}})
    evaluator = HostEvaluator(jobs, address="a host", judge=judge, target="trn2")
    with pytest.raises(InfrastructureError) as caught:
        await evaluator.evaluate(silu.request(author="a model"), silu.blobs)
    assert caught.value.code == "weak_jail"
    assert [job.step for job in jobs.asked] == ["probe"]


@parametrize_sweep(("step", "name"), [("compile", "artefact"), ("compare", "pieces.bin")], quick=1)
async def test_a_file_larger_than_it_can_be_is_not_even_asked_for(step, name, judge, silu, tmp_path):
    class Announcing(LocalJobs):
        async def run_job(self, job):
            result = await super().run_job(job)
            files = {**result.files, name: ("0" * 64, ANSWER_BYTES)} if job.step == step else result.files
            return replace(result, files=files)

        async def fetch_files(self, key, names):
            assert name not in names
            return await super().fetch_files(key, names)

    with pytest.raises(InfrastructureError, match=f"{name} has {ANSWER_BYTES} bytes"):
        await judge_on_host(Announcing(tmp_path / "workdir"), judge, silu)


@pytest.mark.parametrize("result", [None, "done", ["done"], 7])
def test_a_result_that_is_no_object_is_the_hosts_fault(result):
    with pytest.raises(InfrastructureError, match="'result' that is none"):
        read_result(result, "a host")


def test_a_duration_that_no_float_can_be_is_refused():
    with pytest.raises(InfrastructureError, match="ran_s"):
        AnswerReader({"ran_s": 10**400}, "a host").read_span("ran_s")


@parametrize_sweep(("author", "held"), [("a model", False), (PERSON, True)], quick=1)
async def test_a_host_whose_walls_are_gone_since_it_was_probed_compiles_no_kernel_of_a_model(
    author, held, judge, silu, tmp_path
):
    jobs = Tampering(tmp_path / "workdir", {"probe": lambda answer: {**answer, "jail": "bubblewrap"}})
    jobs._environment["PATH"] = str(tmp_path)  # nothing that builds walls is found there
    evaluating = HostEvaluator(jobs, address="a host", judge=judge, target="trn2").evaluate(
        silu.request(author=author, level=Level.SLICES), silu.blobs
    )
    if held:
        assert (await evaluating).evaluation.is_correct
    else:
        with pytest.raises(InfrastructureError, match="only a weak jail works here now"):
            await evaluating
