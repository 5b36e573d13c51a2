"""Jobs on a host that behaves: done once, apart from each other, with nothing left running."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from remote.hostside import process_tree
from remote.ssh.errors import HostLacksError, HostWorkerError
from remote.ssh.jobs import JobClient, list_host_commands
from tests.remote.ssh.conftest import read_tally, spec
from tests.support.sshd import steps_of_tests, trust_host, until

pytestmark = pytest.mark.needs("sshd", package="openssh-server")


def blob(data: bytes) -> tuple[str, dict[str, bytes]]:
    digest = hashlib.sha256(data).hexdigest()
    return digest, {digest: data}


def alive(pids: list[str]) -> list[str]:
    return [pid for pid in pids if int(pid) in {process.pid for process in process_tree.list_processes()}]


async def test_a_host_says_what_it_is(jobs, sshd):
    facts = await jobs.greet_host()
    assert facts.worker == steps_of_tests().digest
    assert facts.workdir == str(sshd.workdir)
    assert facts.cpus == len(os.sched_getaffinity(0))
    assert facts.cores
    assert not facts.has_device
    assert facts.boot_id == process_tree.boot_id()


async def test_only_what_a_host_lacks_is_sent_and_less_than_it_weighs(jobs):
    digest, blobs = blob(b"kernel " * 100_000)
    assert 0 < await jobs.upload_blobs(blobs) < 20_000
    assert await jobs.upload_blobs(blobs) == 0
    other, more = blob(os.urandom(3_000_000))
    assert await jobs.upload_blobs({**blobs, **more}) == pytest.approx(3_000_000, rel=0.01)
    result = await jobs.run_job(spec("echo", inputs={"a.bin": digest, "b.bin": other}))
    assert result.answer["inputs"] == ["a.bin", "b.bin"]
    assert result.files["b.bin"] == (other, 3_000_000)
    assert await jobs.fetch_files(spec("echo").key, ["b.bin", "a.bin"]) == {
        "a.bin": blobs[digest],
        "b.bin": more[other],
    }


async def test_an_empty_content_is_a_content(jobs):
    digest, blobs = blob(b"")
    assert await jobs.upload_blobs(blobs) > 0
    result = await jobs.run_job(spec("echo", inputs={"none": digest}))
    assert await jobs.fetch_files(spec("echo").key, ["none"]) == {"none": b""}
    assert result.log_tail == "echoed\n"


async def test_a_job_is_done_once_however_often_it_is_asked_for(jobs, tmp_path):
    job = spec("echo", {"tally": str(tmp_path / "tally")})
    results = await asyncio.gather(*(jobs.run_job(job) for _ in range(5)))
    assert all(result == results[0] for result in results)
    assert await jobs.run_job(job) == results[0]
    assert len(read_tally(tmp_path / "tally")) == 1
    await jobs.forget_job(job.key)
    assert (await jobs.run_job(job)).attempts == 1
    assert len(read_tally(tmp_path / "tally")) == 2


async def test_a_job_that_fails_says_why_and_is_not_done_again(jobs, tmp_path):
    job = spec("failing", {"tally": str(tmp_path / "tally")})
    result = await jobs.run_job(job)
    assert (result.status, result.exit_status, result.answer) == ("failed", 1, None)
    assert "RuntimeError: this step fails" in result.log_tail
    assert await jobs.run_job(job) == result
    assert len(read_tally(tmp_path / "tally")) == 1


async def test_a_step_that_the_worker_does_not_know_is_named(jobs):
    result = await jobs.run_job(spec("levitate"))
    assert result.status == "failed"
    assert "no step 'levitate'" in result.log_tail


@pytest.mark.parametrize("answer", ["nan", "link"])
async def test_an_answer_that_cannot_be_sent_is_a_failure(jobs, answer):
    result = await jobs.run_job(spec("odd", {"answer": answer}))
    assert (result.status, result.answer, result.files) == ("failed", None, {})


async def test_a_step_that_points_its_folder_elsewhere_shows_nothing_of_that(jobs):
    result = await jobs.run_job(spec("odd", {"out": "link"}))
    assert (result.status, result.answer, result.files) == ("failed", None, {})
    assert "something else of its folder" in result.log_tail


async def test_of_what_a_step_leaves_only_plain_files_are_taken(jobs):
    result = await jobs.run_job(spec("odd"))
    assert (result.status, list(result.files)) == ("done", ["plain"])
    assert result.log_tail.endswith("xxx\nthe end\n")
    assert len(result.log_tail) <= 16 << 10


async def test_an_input_that_is_not_there_is_refused_before_anything_runs(jobs, sshd):
    with pytest.raises(HostLacksError, match="not in the store"):
        await jobs.run_job(spec("echo", inputs={"x": "0" * 64}))
    assert list((sshd.workdir / "jobs").iterdir()) == []
    assert list((sshd.workdir / "trash").iterdir()) == []


async def test_an_input_that_was_damaged_on_the_host_is_sent_again(jobs, sshd):
    digest, blobs = blob(b"what it was")
    await jobs.upload_blobs(blobs)
    stored = sshd.workdir / "store" / digest
    stored.chmod(0o600)
    stored.write_bytes(b"what became of it")
    with pytest.raises(HostLacksError, match="damaged"):
        await jobs.run_job(spec("echo", inputs={"x": digest}))
    assert await jobs.upload_blobs(blobs) > 0
    assert (await jobs.run_job(spec("echo", inputs={"x": digest}))).status == "done"


async def test_what_outlives_a_step_is_ended_also_orphans_in_sessions_of_their_own(jobs, tmp_path):
    result = await jobs.run_job(spec("spawning", {"pids": str(tmp_path / "pids"), "ends": True}))
    assert result.answer == "left them"
    pids = read_tally(tmp_path / "pids")
    assert len(pids) == 3
    assert alive(pids) == []


@pytest.mark.slow
async def test_a_deadline_counts_from_the_turn_and_ends_everything(jobs, tmp_path):
    result = await jobs.run_job(spec("spawning", {"pids": str(tmp_path / "pids")}, deadline_s=3))
    assert (result.status, result.answer) == ("deadline", None)
    assert alive(read_tally(tmp_path / "pids")) == []


async def test_cancelling_ends_the_job_with_everything_and_gives_the_core_back(jobs, tmp_path, sshd):
    pids = tmp_path / "pids"
    running = asyncio.create_task(jobs.run_job(spec("spawning", {"pids": str(pids)}, cores=1)))
    await until(lambda: len(read_tally(pids)) == 3, "three children")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert alive(read_tally(pids)) == []
    assert list((sshd.workdir / "jobs").iterdir()) == []
    result = await jobs.run_job(spec("echo", cores=1, queue_s=60))
    assert result.status == "done"


async def test_a_core_has_one_job_at_a_time_and_the_next_waits(sshd, home, tmp_path):
    jobs = JobClient(await trust_host(sshd.link(home, cores=(1,)), home), worker=steps_of_tests())
    gates = [tmp_path / "gate0", tmp_path / "gate1"]
    tally = tmp_path / "tally"
    running = [
        asyncio.create_task(
            jobs.run_job(spec("gated", {"gate": str(gate), "tally": str(tally)}, name=gate.name, cores=1))
        )
        for gate in gates
    ]
    await until(lambda: read_tally(tally), "the first job")
    for gate in gates:
        gate.touch()
    results = await asyncio.gather(*running)
    assert [result.core for result in results] == [1, 1]
    assert [line.split()[0] for line in read_tally(tally)] == ["begin", "end", "begin", "end"]
    await jobs.aclose()


async def test_a_preferred_core_is_taken_when_it_is_free(jobs):
    cores = (await jobs.greet_host()).cores
    for core in cores:
        result = await jobs.run_job(spec("echo", name=f"core {core}", cores=1, prefer=core))
        assert result.core == core


async def test_when_a_connection_ends_nothing_but_jobs_is_left(jobs, sshd):
    await jobs.run_job(spec("echo"))
    await jobs.aclose()
    await until(lambda: not sshd.workers(), "the worker's end")


async def test_every_command_can_be_told_beforehand(jobs, sshd, home):
    told = list_host_commands(sshd.link(home, python=None).host)
    assert told[0][:2] == ["sh", "-c"]
    assert told[-1][-2:] == ["serve", str(sshd.workdir)]
    assert all(isinstance(word, str) for command in told for word in command)


async def test_a_python_is_found_where_none_is_named(sshd, home):
    jobs = JobClient(await trust_host(sshd.link(home, python=None), home), worker=steps_of_tests())
    (sshd.workdir / "venv/bin").mkdir(parents=True)
    (sshd.workdir / "venv/bin/python").symlink_to(Path("/bin/false"))  # one that does not run is passed over
    assert (await jobs.greet_host()).python
    await jobs.aclose()


async def test_a_step_has_nothing_of_the_worker_but_its_lease(sshd, jobs):
    job = spec("bare", cores=1)
    told = (await jobs.run_job(job)).answer
    assert told == {
        "files": [str(sshd.leases / "core-0")],
        "handlers": ["SIG_DFL", "default_int_handler", "SIG_DFL", "SIG_DFL"],
        "wakes": -1,
        "leads": True,
        "folder": str(sshd.workdir / "jobs" / job.key / "work"),
        "ssh": [],
        "marked": True,
        "frames": told["frames"],
    }
    assert told["frames"] < 8  # no stack of server and runner below it


async def test_a_step_ends_as_a_program_does(jobs):
    result = await jobs.run_job(spec("parting"))
    assert (result.status, result.exit_status, result.answer) == ("done", 0, "parted")
    assert result.log_tail.split("\n") == ["in the step", "from a thread", "at the end", ""]


async def test_a_worker_that_cannot_be_put_there_says_why(sshd, home):
    sshd.workdir.write_text("a file where the folder should be")
    jobs = JobClient(await trust_host(sshd.link(home), home), worker=steps_of_tests())
    with pytest.raises(HostWorkerError, match=r"the worker cannot be put there: .*Not a directory"):
        await jobs.greet_host()
    await jobs.aclose()


async def test_a_worker_that_was_damaged_on_the_host_is_put_there_again(sshd, home, jobs):
    await jobs.greet_host()
    await jobs.aclose()
    shipped = sshd.workdir / "worker" / f"{steps_of_tests().digest}.pyz"
    shipped.write_bytes(b"")
    assert (await jobs.greet_host()).worker == steps_of_tests().digest
