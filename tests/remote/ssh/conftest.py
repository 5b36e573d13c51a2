"""What tests of hosts share: a server that nobody breaks, servers to break, and a look at what is left."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from remote.jail_backends import JailLimits
from remote.judge_service import JudgeService
from remote.pool import WorkerLimits
from remote.ssh.job import JobSpec
from remote.ssh.jobs import JobClient
from tests.support.sshd import Sshd, steps_of_tests, trust_host


@pytest.fixture
def sshd(tmp_path) -> Iterator[Sshd]:
    """A server of this test alone; nothing of it may be left running when its jobs are closed."""
    with Sshd(tmp_path / "server") as server:
        yield server


@pytest.fixture
async def jobs(sshd, home) -> AsyncIterator[JobClient]:
    """Jobs on that server."""
    made = JobClient(await trust_host(sshd.link(home), home), worker=steps_of_tests())
    yield made
    await made.aclose()


@pytest.fixture
async def judge(shared_home) -> AsyncIterator[JudgeService]:
    """What evaluations on hosts compute here: references and judgements."""
    made = JudgeService(
        home=shared_home,
        slots=1,
        allow_weak_jail=True,
        secret="a secret of tests",
        jail_limits=JailLimits(cpu_s=20, memory_bytes=1 << 30),
        worker_limits=WorkerLimits(memory_bytes=4 << 30),
    )
    yield made
    await made.aclose()


def spec(step: str, payload: object = None, *, name: str = "", **fields: object) -> JobSpec:
    """Return a job; jobs of different names have different keys."""
    key = hashlib.sha256(f"{step} {name}".encode()).hexdigest()
    return JobSpec(key=key, step=step, payload={} if payload is None else payload, **fields)


def read_tally(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
