"""The four roles, asked as the daemon asks them, through real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import seeds
from agent_core.effects import (
    ImplementRequest,
    LearningContext,
    PlanRequest,
    ReflectRequest,
    SummarizeRequest,
)
from agent_core.process_pool import ATTEMPTS, JobDeadlineError, ProcessPool
from agent_core.roles import Proposer, RoleError
from state.model import (
    Attempt,
    Benchmark,
    Candidate,
    Evaluation,
    ExperienceKind,
    LatencyBounds,
    Plan,
    Prediction,
    PredictionGrade,
    TechniqueCredit,
    Verdict,
    digest_of,
)
from targets.nki.rewrites import create

PROBLEM = seeds.load_problem("silu")
CODE = "0" * 64


class Blobs(dict[str, bytes]):
    def put(self, data: bytes) -> str:
        self[digest_of(data)] = data
        return digest_of(data)


@pytest.fixture
def blobs() -> Blobs:
    store = Blobs()
    for data in PROBLEM.files.values():
        store.put(data)
    return store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proposer() -> AsyncIterator[Proposer]:
    made = create(workers=1)
    yield made
    await made.aclose()


module = pytest.mark.asyncio(loop_scope="module")


def benchmark_of(latency_ms: float) -> Benchmark:
    return Benchmark(latency_ms=latency_ms, lo_ms=latency_ms, hi_ms=latency_ms, predicted=True, samples=1)


def candidate(
    blobs: Blobs, source: str = PROBLEM.kernel, latency_ms: float = 2.0, name: str = "r0.b0.p0.k0.f0"
) -> Candidate:
    return Candidate(
        id=name, parent=None, lineage=name, round=0, source=blobs.put(source.encode()), code=CODE,
        technique=None, title="", benchmark=benchmark_of(latency_ms), bottleneck="vector",
        profile=blobs.put(
            b'{"counters": {"vector_engine_active_time_percent": 98.0, "dma_active_time_percent": 49.0}}'
        ),
    )  # fmt: skip


def plan_request(blobs: Blobs, number: int, *, plans: int = 6, draw: int = 0, **changes: Any) -> PlanRequest:
    context = {"memory": (), "reflections": (), "attempts": (), "credits": {}} | changes.pop("context", {})
    values: dict[str, Any] = {
        "key": f"r1.b0.p{number}.k0.f0.planner", "role": "planner", "draw": draw, "plans": plans,
        "problem": PROBLEM.make_ref(), "size": "full", "target": "trn2",
        "bounds": LatencyBounds(plain_ms=1, tight_ms=1),
        "parent": candidate(blobs), "best_ms": 2.0,
        "context": blobs.put(LearningContext(**context).model_dump_json().encode()),
    }  # fmt: skip
    return PlanRequest(**(values | changes))


def implement_request(blobs: Blobs, plan: Plan, implementation: int = 0) -> ImplementRequest:
    return ImplementRequest(
        key=f"r1.b0.p0.k{implementation}.f0.executor", role="executor", draw=0, problem=PROBLEM.make_ref(),
        size="full", target="trn2", parent=candidate(blobs), plan=plan,
    )  # fmt: skip


async def make_plan(proposer: Proposer, blobs: Blobs, number: int = 0, **changes: Any) -> Plan:
    return (await proposer.plan(plan_request(blobs, number, **changes), blobs.__getitem__)).plan


@module
async def test_the_plans_of_a_parent_are_distinct_and_explain_themselves(proposer: Proposer, blobs: Blobs):
    plans = await asyncio.gather(*(make_plan(proposer, blobs, number) for number in range(6)))
    assert len({(plan.technique, plan.site) for plan in plans}) == 6
    for plan in plans:
        assert "vector" in plan.prediction.reason
        assert plan.prediction.counter
        assert plan.title
    assert plans[0].prediction.speedup > 1.5


@module
async def test_a_plan_does_not_depend_on_its_draw_or_on_who_asked_first(proposer: Proposer, blobs: Blobs):
    later = create(workers=1)
    try:
        assert await make_plan(later, blobs, 3, draw=99) == await make_plan(proposer, blobs, 3, draw=1)
    finally:
        await later.aclose()


@module
async def test_plans_carry_over_to_kernels(proposer: Proposer, blobs: Blobs):
    plan = await make_plan(proposer, blobs)
    first = await proposer.implement(implement_request(blobs, plan), blobs.__getitem__)
    again = await proposer.implement(implement_request(blobs, plan), blobs.__getitem__)
    assert first == again
    assert "nl.silu" in first.source
    assert plan.title in first.note
    assert first.usage.cost_usd == 0


@module
async def test_implementations_draw_other_parameters(proposer: Proposer, blobs: Blobs):
    other = seeds.load_problem("rmsnorm_matmul")
    for data in other.files.values():
        blobs.put(data)
    changes = {"problem": other.make_ref(), "parent": candidate(blobs, other.kernel)}
    plans = [await make_plan(proposer, blobs, number, **changes) for number in range(6)]
    plan = next(one for one in plans if isinstance(one.detail, dict) and len(one.detail["choices"]) > 1)
    requests = [implement_request(blobs, plan, k).model_copy(update=changes) for k in (0, 1, 63)]
    answers = [await proposer.implement(request, blobs.__getitem__) for request in requests[:2]]
    assert answers[0].source != answers[1].source
    with pytest.raises(RoleError, match="no_more_choices"):
        await proposer.implement(requests[2], blobs.__getitem__)


@module
async def test_tried_plans_are_not_made_again(proposer: Proposer, blobs: Blobs):
    first = await make_plan(proposer, blobs)
    attempt = Attempt(
        candidate="r1.b0.p0.k0.f0", parent="r0.b0.p0.k0.f0", technique=first.technique, site=first.site,
        code=CODE, verdict=Verdict.CORRECT, error=None, speedup=0.9, round=1,
    )  # fmt: skip
    context = {"attempts": (attempt,), "credits": {first.technique: TechniqueCredit(tries=1)}}
    plans = [await make_plan(proposer, blobs, number, context=context) for number in range(3)]
    assert (first.technique, first.site) not in {(plan.technique, plan.site) for plan in plans}


@module
async def test_when_nothing_is_left_the_reasons_are_given(proposer: Proposer, blobs: Blobs):
    with pytest.raises(RoleError, match=r"nothing_applies: \d+ rewrites left for r0.b0.p0.k0.f0: ") as caught:
        await make_plan(proposer, blobs, 63, plans=64)
    assert "out of i_m" in caught.value.info.message


@module
async def test_a_kernel_that_cannot_be_read_is_a_role_error(proposer: Proposer, blobs: Blobs):
    with pytest.raises(RoleError, match="unreadable_kernel"):
        await make_plan(proposer, blobs, parent=candidate(blobs, "x = 1"))


@module
async def test_another_planners_plan_is_refused(proposer: Proposer, blobs: Blobs):
    plan = Plan(technique="hoist", site="somewhere", title="by hand", prediction=Prediction(speedup=1.1))
    with pytest.raises(RoleError, match="no_detail"):
        await proposer.implement(implement_request(blobs, plan), blobs.__getitem__)


@module
async def test_summaries_and_reflections_need_no_model(proposer: Proposer, blobs: Blobs):
    plan = await make_plan(proposer, blobs)
    slow, fast = candidate(blobs), candidate(blobs, "# fast\n", 1.0, "r1.b0.p0.k0.f0")
    told = await proposer.summarize(
        SummarizeRequest(
            key="r1.b0.p0.k0.f0.summarizer", role="summarizer", kind=ExperienceKind.POSITIVE, slow=slow,
            fast=fast, plan=plan,
        ),
        blobs.__getitem__,
    )  # fmt: skip
    assert told.experience is not None
    assert told.experience.speedup == 2.0
    assert "2.000x" in told.experience.summary
    assert told.experience.cites == (slow.id, fast.id)
    judged = Evaluation(
        verdict=Verdict.CORRECT,
        stage="profile",
        code=CODE,
        benchmark=benchmark_of(3.0),
        target="trn2",
        toolchain="t",
    )
    note = await proposer.reflect(
        ReflectRequest(
            key="r1.b0.p0.k0.f0.reflector", role="reflector", operator="silu", parent=slow, plan=plan,
            evaluation=judged, error=None,
        ),
        blobs.__getitem__,
    )  # fmt: skip
    assert note.reflection.grade is PredictionGrade.REFUTED
    assert note.reflection.cites == ("r1.b0.p0.k0.f0",)


def pid(request: str) -> str:
    """Worker job: who runs it; `die` kills the worker first."""
    if request == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return str(os.getpid())


async def test_a_killed_worker_is_replaced():
    pool = ProcessPool(pid, workers=1)
    try:
        first = int(await pool.run("who"))
        os.kill(first, signal.SIGKILL)
        assert int(await pool.run("who")) != first
    finally:
        await pool.aclose()


async def test_a_job_that_kills_its_worker_is_given_up():
    pool = ProcessPool(pid, workers=1)
    try:
        with pytest.raises(BrokenProcessPool):
            await pool.run("die")
        assert await pool.run("who")
    finally:
        await pool.aclose()


async def test_a_worker_that_is_killed_between_jobs_is_replaced():
    pool = ProcessPool(pid, workers=1)
    try:
        for _ in range(ATTEMPTS + 1):
            worker = int(await pool.run("who"))
            os.kill(worker, signal.SIGKILL)
            executor = pool._executor
            while not executor._broken:  # noqa: ASYNC110 - until it takes no job any more
                await asyncio.sleep(0.01)
        assert int(await pool.run("who")) != worker
    finally:
        await pool.aclose()


async def test_a_closed_pool_leaves_no_process_and_takes_no_job():
    pool = ProcessPool(pid, workers=1)
    worker = int(await pool.run("who"))
    await pool.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    with pytest.raises(RuntimeError, match="closed"):
        await pool.run("who")


def sleep_or_answer(request: str) -> str:
    """Worker job: note the process, and never end if that is asked for; nothing is to be loaded."""
    if not request:
        return ""
    path, _, endless = request.partition("|")
    Path(path).write_text(f"{os.getpid()}\n", encoding="utf-8")
    while endless:
        time.sleep(0.01)
    return str(os.getpid())


def wait_for_pid(path: Path, other_than: int = 0) -> int:
    """Return the process that a job has noted."""
    while True:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text.endswith("\n") and int(text) != other_than:
            return int(text)
        time.sleep(0.01)


async def test_an_endless_job_ends_at_the_pools_deadline_and_the_next_one_works(tmp_path):
    pool = ProcessPool(sleep_or_answer, workers=1)
    try:
        await pool.prepare()
        pool.job_seconds = 1.0
        with pytest.raises(JobDeadlineError, match="more than 1 s"):
            await pool.run(f"{tmp_path / 'endless'}|endless")
        assert not is_running(wait_for_pid(tmp_path / "endless"))
        pool.job_seconds = 600.0
        assert await pool.run(str(tmp_path / "next"))
    finally:
        await pool.aclose()


async def test_a_job_that_nobody_waits_for_ends_and_those_beside_it_begin_again(tmp_path):
    pool = ProcessPool(sleep_or_answer, workers=2)
    try:
        jobs = [asyncio.create_task(pool.run(f"{tmp_path / name}|endless")) for name in ("one", "beside")]
        first, second = [await asyncio.to_thread(wait_for_pid, tmp_path / name) for name in ("one", "beside")]
        jobs[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await jobs[0]
        assert not is_running(first)
        again = await asyncio.to_thread(wait_for_pid, tmp_path / "beside", second)
    finally:
        await pool.aclose()
    assert not is_running(again)
    with pytest.raises(RuntimeError, match="closed"):
        await jobs[1]


async def test_a_pool_that_was_warmed_up_works_in_the_process_that_has_started():
    pool = ProcessPool(pid, workers=2)
    try:
        pool.warm_up()
        await pool.prepare()
        assert pool._executor is not None
        (started,) = pool._executor._processes
        assert int(await pool.run("who")) == started
    finally:
        await pool.aclose()


async def test_a_pool_that_never_worked_closes():
    pool = ProcessPool(pid, workers=1)
    await pool.aclose()


def test_importing_the_proposer_imports_no_syntax_library():
    code = (
        "import sys, targets.nki.rewrites as b; b.create(); "
        "sys.exit(any(name in sys.modules for name in ('libcst', 'numpy', 'nki_sim')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_of_the_engine_imports_little():
    """Its start takes most of a short life of the daemon."""
    code = (
        "import sys, targets.nki.rewrites as b; b.answer_in_worker(''); import agent_core.process_pool; "
        "assert 'libcst' in sys.modules; "
        "sys.exit(any(name in sys.modules for name in ('pydantic', 'numpy', 'state', 'libcst.matchers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ORPHAN = """
import asyncio, os, signal
from agent_core.process_pool import ProcessPool

def who(request):
    return str(os.getpid())

async def main():
    print(await ProcessPool(who, workers=1).run(""), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    asyncio.run(main())
"""


def is_running(process: int) -> bool:
    """A process that ended but was not waited for by anybody counts as ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    worker = int(done.stdout)
    until = time.monotonic() + 60
    while is_running(worker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(worker)
