"""What tests of this room share: blobs, requests, evaluators that clean up, and a look at what is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import nki_sim
import seeds
from remote.jail_backends import JailLimits
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from remote.pool import WorkerLimits
from state.model import EvaluationRequest
from tests.support.blobs import Blobs


class Bench:
    """Requests over one problem's blobs."""

    def __init__(self, problem: seeds.Problem) -> None:
        self.problem = problem
        self.blobs = Blobs()
        for data in problem.files.values():
            self.blobs.put(data)

    @property
    def kernel(self) -> str:
        return self.problem.kernel

    def request(self, source: str | bytes | None = None, /, **changes) -> EvaluationRequest:
        text = self.kernel if source is None else source
        fields = {
            "candidate": "r0.b0.p0.k0.f0",
            "author": "person",
            "source": self.blobs.put(text if isinstance(text, bytes) else text.encode()),
            "problem": self.problem.make_ref(),
            "size": "reduced",
            "target": "trn2",
            "toolchain": nki_sim.toolchain(),
        }
        return EvaluationRequest(**{**fields, **changes})


@pytest.fixture
def silu() -> Bench:
    return Bench(seeds.load_problem("silu"))


@pytest.fixture
def bench() -> Callable[[seeds.Problem], Bench]:
    return Bench


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory) -> Path:
    """A home whose reference outputs are computed once for all tests."""
    return tmp_path_factory.mktemp("evaluator-home")


@pytest.fixture
async def make_evaluator(shared_home, processes):
    """Makes evaluators with test-sized limits; closes them and checks that no process is left."""
    made = []

    def make(**options) -> LocalEvaluator:
        defaults = {
            "home": shared_home,
            "slots": 1,
            "allow_weak_jail": True,
            "secret": "a secret of tests",
            "jail_limits": JailLimits(cpu_s=20, memory_bytes=1 << 30),
            "worker_limits": WorkerLimits(memory_bytes=4 << 30, wall_s=120),
        }
        made.append(LocalEvaluator(JudgeService(**{**defaults, **options}), target="trn2"))
        return made[-1]

    yield make
    for evaluator in made:
        await evaluator.aclose()
    assert processes() == set()


@pytest.fixture
def evaluator(make_evaluator) -> LocalEvaluator:
    return make_evaluator()


def descendants() -> set[int]:
    """Process ids of all living descendants of this process (Linux); zombies count, they were not reaped."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended while we looked
                continue
            parents[int(entry.name)] = int(fields[1])
    found, frontier = set(), {os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


@pytest.fixture
def processes() -> Callable[[], set[int]]:
    """Returns the descendants that this test has started; other tests' servers are none of its business."""
    before = descendants()
    return lambda: descendants() - before


@pytest.fixture
def running(processes) -> Callable[[], Awaitable[None]]:
    """Waits until the test has a process running."""

    async def wait() -> None:
        while not processes():  # noqa: ASYNC110  processes send no event when they appear
            await asyncio.sleep(0.01)

    return wait
