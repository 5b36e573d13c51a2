"""Hosts that are shared, full, chatty, badly behaved, or left by their home."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remote.hostside import process_tree
from remote.ssh.errors import (
    HostFullError,
    HostProtocolError,
    HostPythonError,
    HostQueueError,
    HostUnreachableError,
    HostWorkerError,
)
from remote.ssh.jobs import JobClient
from tests.remote.ssh.conftest import read_tally, spec
from tests.support.host_faults import cores_free
from tests.support.sshd import steps_of_tests, trust_host, until

pytestmark = [
    pytest.mark.needs("sshd", package="openssh-server"),
    pytest.mark.needs("setpriv", package="util-linux"),
]


@pytest.fixture
async def neighbours(sshd, home, tmp_path):
    """Two homes on one host, each with a key of its own for the same user."""
    made = [
        JobClient(await trust_host(sshd.link(where, cores=(0,)), where), worker=steps_of_tests())
        for where in (home, tmp_path / "another home")
    ]
    yield made
    for jobs in made:
        await jobs.aclose()


async def test_two_homes_never_have_a_core_at_the_same_time(neighbours, tmp_path):
    tally, gate = tmp_path / "tally", tmp_path / "gate"
    gate.touch()
    payload = {"gate": str(gate), "tally": str(tally)}
    results = await asyncio.gather(
        *(
            jobs.run_job(spec("gated", payload, name=f"{number} {turn}", cores=1))
            for turn in range(3)
            for number, jobs in enumerate(neighbours)
        )
    )
    assert {result.status for result in results} == {"done"}
    assert [line.split()[0] for line in read_tally(tally)] == ["begin", "end"] * 6


async def test_a_home_that_forgets_a_job_takes_it_from_nobody(neighbours, tmp_path):
    job = spec("gated", {"gate": str(tmp_path / "gate"), "tally": str(tmp_path / "tally")})
    running = [asyncio.create_task(jobs.run_job(job)) for jobs in neighbours]
    await until(lambda: read_tally(tmp_path / "tally"), "the job")
    leases = neighbours[0].host.workdir + f"/jobs/{job.key}/leases"
    await until(lambda: len(list(Path(leases).iterdir())) == 2, "both leases")
    running[0].cancel()
    await asyncio.gather(running[0], return_exceptions=True)
    (tmp_path / "gate").touch()
    assert (await running[1]).answer == "through"
    assert [line.split()[0] for line in read_tally(tmp_path / "tally")] == ["begin", "end"]


async def test_no_core_within_the_time_to_wait_is_an_error_of_its_own(neighbours, tmp_path):
    held = spec("gated", {"gate": str(tmp_path / "gate"), "tally": str(tmp_path / "tally")}, cores=1)
    running = asyncio.create_task(neighbours[0].run_job(held))
    await until(lambda: read_tally(tmp_path / "tally"), "the job that has it")
    with pytest.raises(HostQueueError, match=r"echo\) got no core within 0.5 s"):
        await neighbours[1].run_job(spec("echo", cores=1, queue_s=0.5))
    (tmp_path / "gate").touch()
    await running
    assert (await neighbours[1].run_job(spec("echo", cores=1))).status == "done"


@pytest.mark.slow
async def test_a_home_that_is_killed_leaves_no_job_and_no_core(sshd, home, tmp_path):
    """The lease is what ends it, so it is short here; nobody waits for less than its end."""
    await trust_host(sshd.link(home), home)
    program = tmp_path / "home.py"
    program.write_text(HOME.format(root=str(Path(__file__).parents[3]), port=sshd.port, folder=tmp_path))
    arguments = [str(program), str(home), str(sshd.ssh_config), str(sshd.workdir)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        pids = tmp_path / "pids"
        await until(
            lambda: len(read_tally(pids)) == 3 or process.returncode is not None, "the job's children"
        )
        process.kill()
        await process.wait()
        await until(lambda: not living(read_tally(pids)), "the job's end")
        await until(lambda: not sshd.workers(), "the worker's end")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert read_tally(pids)
    assert cores_free(sshd)


HOME = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
import pwd, os
from remote.ssh.host import HostSpec
from remote.ssh.jobs import JobClient
from remote.ssh.link import SshLink
from tests.remote.ssh.conftest import spec
from tests.support.sshd import steps_of_tests

async def main(home, config, workdir):
    user = pwd.getpwuid(os.geteuid()).pw_name
    host = HostSpec.parse(f"{{user}}@127.0.0.1:{port}", python=sys.executable, workdir=workdir)
    jobs = JobClient(SshLink(host, home=Path(home), config=Path(config)), worker=steps_of_tests())
    await jobs.run_job(spec("spawning", {{"pids": "{folder}/pids"}}, cores=1, lease_s=2))

asyncio.run(main(*sys.argv[1:]))
"""


def living(pids: list[str]) -> list[str]:
    return [pid for pid in pids if int(pid) in {process.pid for process in process_tree.list_processes()}]


@pytest.fixture
def small_disk(sshd):
    """The host's workdir on a disk of eight megabytes."""
    sshd.workdir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tests", str(sshd.workdir)], check=True)
    yield sshd.workdir
    subprocess.run(["umount", "-l", str(sshd.workdir)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on a disk; return what takes it."""
    hog = disk / "hog"
    with contextlib.suppress(OSError), hog.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass
    assert os.statvfs(disk).f_bavail == 0
    return hog


async def test_a_full_disk_is_told_and_everything_works_again_when_there_is_room(jobs, small_disk):
    job = spec("filling", cores=1)
    with pytest.raises(HostFullError, match="the disk there is full"):
        await jobs.run_job(job)
    await jobs.forget_job(job.key)
    hog = fill(small_disk)
    data = os.urandom(100_000)
    digest = hashlib.sha256(data).hexdigest()
    with pytest.raises(HostFullError):
        await jobs.upload_blobs({digest: data})
    with pytest.raises(HostFullError):
        await jobs.run_job(spec("echo", cores=1))
    hog.unlink()
    assert await jobs.upload_blobs({digest: data})
    assert (await jobs.run_job(spec("echo", inputs={"x": digest}, cores=1))).status == "done"
    assert list(small_disk.rglob("*.part")) == []
    assert list((small_disk / "trash").iterdir()) == []


async def test_a_worker_that_has_no_room_is_told(sshd, home, small_disk):
    jobs = JobClient(await trust_host(sshd.link(home), home), worker=steps_of_tests())
    fill(small_disk)
    with pytest.raises(HostFullError, match="no room for the worker"):
        await jobs.greet_host()
    await jobs.aclose()


def wrapper(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def test_what_a_login_prints_before_the_worker_speaks_is_passed_over(sshd, home, tmp_path):
    python = wrapper(tmp_path, f'echo "Welcome! You have mail."; echo noise >&2; exec {sys.executable} "$@"')
    jobs = JobClient(await trust_host(sshd.link(home, python=python), home), worker=steps_of_tests())
    assert (await jobs.run_job(spec("echo"))).status == "done"
    await jobs.aclose()


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("exec yes", HostProtocolError),
        ("exit 127", HostPythonError),
        ("echo it is broken >&2; exit 5", HostWorkerError),
    ],
)
async def test_a_python_that_is_none_is_told(sshd, home, tmp_path, script, error):
    python = wrapper(tmp_path, script)
    jobs = JobClient(await trust_host(sshd.link(home, python=python), home), worker=steps_of_tests())
    with pytest.raises(error) as raised:
        await jobs.greet_host()
    assert raised.value.message.startswith(jobs.host.address)
    await jobs.aclose()


@pytest.mark.slow
async def test_processes_that_cannot_be_ended_are_named_and_keep_their_core(sshd, home, tmp_path):
    """The worker runs without the right to kill other users' processes, and the step becomes another user."""
    if os.geteuid() != 0:
        pytest.fail("this test makes processes of another user, so it needs to be run by root")
    python = wrapper(tmp_path, f'exec setpriv --bounding-set=-kill --inh-caps=-kill {sys.executable} "$@"')
    jobs = JobClient(
        await trust_host(sshd.link(home, python=python, cores=(0,)), home), worker=steps_of_tests()
    )
    pids = tmp_path / "pids"
    result = await jobs.run_job(spec("escaping", {"pids": str(pids)}, cores=1))
    assert result.status == "unending"
    assert f"(pid {read_tally(pids)[0]})" in result.log_tail
    with pytest.raises(HostQueueError):
        await jobs.run_job(spec("echo", cores=1, queue_s=0.5))
    os.kill(int(read_tally(pids)[0]), signal.SIGKILL)
    assert (await jobs.run_job(spec("echo", name="after", cores=1))).status == "done"
    await jobs.aclose()


async def test_a_host_that_is_away_for_longer_than_the_lease_is_somebody_elses_problem(jobs, sshd, tmp_path):
    job = spec("gated", {"gate": str(tmp_path / "gate"), "tally": str(tmp_path / "tally")}, lease_s=1)
    running = asyncio.create_task(jobs.run_job(job))
    await until(lambda: read_tally(tmp_path / "tally"), "the job")
    sshd.stop()
    with pytest.raises(HostUnreachableError, match="out of reach for"):
        await running
