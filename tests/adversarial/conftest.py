"""One evaluator for all attacks, as a daemon has: none of them may harm what comes after.

Kernels are judged at the reduced size, where tiles of all input sets are whole outputs, so that whole outputs
of the seeds would add nothing but time.
"""

from __future__ import annotations

from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

import nki_sim
import remote.local
import remote.pool
import seeds
import targets.nki.tracer
from remote import sandbox
from remote.jail_backends import JailLimits
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from remote.pool import WorkerLimits
from seeds import Problem
from state.model import Evaluation, EvaluationRequest
from tests.adversarial.model import ENDED_OTHERWISE, INSTALLATION, SECRET
from tests.support.blobs import Blobs

MAX_INSTRUCTIONS, MAX_WORK = 50_000, 1 << 30
"""What tracing and running may take: less than outside of tests, so that what is endless ends soon."""

WORKER = f"""
from remote import worker
from remote.judge import work_limits
work_limits.LEAST_LIMIT = {MAX_WORK}
worker.main()
"""


async def _start(start, python: str, *command: str, **options) -> Process:
    """Start a worker that has the limit of tests."""
    assert command[1:3] == ("-m", "remote.worker")
    return await start(python, command[0], "-c", WORKER, *command[3:], **options)


LIMITS = (
    (targets.nki.tracer, "MAX_INSTRUCTIONS", MAX_INSTRUCTIONS),
    (sandbox, "LOOK_S", 0.1),
    (sandbox, "LOOKS", 8),
    (remote.pool, "start_process", partial(_start, remote.pool.start_process)),
)
"""What is endless ends sooner with these: (module, name, value)."""


class Judge:
    """The evaluator as the daemon calls it."""

    def __init__(self, evaluator: LocalEvaluator, secret: Path) -> None:
        self.evaluator = evaluator
        self.secret = secret
        self.blobs = Blobs()
        self.judged = 0

    async def __call__(
        self,
        problem: str | Problem,
        kernel: str | bytes,
        level: str = "slices",
        *,
        limits: JailLimits = ENDED_OTHERWISE,
    ) -> Evaluation:
        if isinstance(kernel, str):
            kernel = kernel.replace("SECRET_FILE", str(self.secret)).encode(errors="surrogatepass")
        found = problem if isinstance(problem, Problem) else seeds.load_problem(problem)
        for data in found.files.values():
            self.blobs.put(data)
        request = EvaluationRequest(
            candidate="r0.b0.p0.k0.f0",
            author="model",
            source=self.blobs.put(kernel),
            problem=found.make_ref(),
            size="reduced",
            target="trn2",
            toolchain=nki_sim.toolchain(),
            level=level,
        )
        self.evaluator.judge.jail_limits = limits
        answer = await self.evaluator.evaluate(request, self.blobs)
        return answer.evaluation


@pytest.fixture(scope="session")
def secret(tmp_path_factory) -> Iterator[Path]:
    """A file of the user's."""
    path = tmp_path_factory.mktemp("user") / "key"
    path.write_text(SECRET)
    yield path
    assert path.read_text() == SECRET


@pytest.fixture(autouse=True)
def limits(monkeypatch) -> None:
    """Set the limits of tests, and the user's secret in the environment, for one test at a time.

    A process that runs tests goes on to those of other folders, which want the limits of users.
    """
    monkeypatch.setenv("NKI_TEST_SECRET", SECRET)
    for place, name, value in LIMITS:
        monkeypatch.setattr(place, name, value)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def judge(secret, tmp_path_factory) -> AsyncIterator[Judge]:
    evaluator = LocalEvaluator(
        JudgeService(
            home=tmp_path_factory.mktemp("evaluator-home"),
            slots=1,
            allow_weak_jail=True,
            secret=INSTALLATION,
            jail_limits=ENDED_OTHERWISE,
            worker_limits=WorkerLimits(memory_bytes=4 << 30, wall_s=200),
        ),
        target="trn2",
    )
    yield Judge(evaluator, secret)
    await evaluator.aclose()
