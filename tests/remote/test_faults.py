"""When the machinery fails, hangs or is cancelled: no verdict, nothing left behind, and it works again."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest

import seeds
from remote.errors import InfrastructureError
from remote.jail_backends import JailStrength, jail_strength
from remote.judge import suite
from remote.judge.job import JudgeJob
from remote.pool import WorkerLimits
from remote.references import ReferenceStore
from state.model import Verdict
from targets.nki.judge import rules
from tests.support.sweeps import parametrize_sweep


async def correct(evaluator, silu) -> bool:
    answer = await evaluator.evaluate(silu.request(), silu.blobs)
    return answer.evaluation.is_correct


async def stopped_worker(evaluator, silu) -> int:
    """A worker that will not answer: so the next evaluation stays under way."""
    assert await correct(evaluator, silu)
    (pid,) = evaluator.judge.worker_pids
    os.kill(pid, signal.SIGSTOP)
    return pid


async def busy(evaluator) -> None:
    """Wait until a worker has a job."""
    while not evaluator.judge.workers._busy:  # noqa: ASYNC110  the pool tells nobody
        await asyncio.sleep(0.01)


async def test_a_worker_killed_under_way_is_no_verdict_and_the_next_evaluation_works(silu, make_evaluator):
    evaluator = make_evaluator()
    pid = await stopped_worker(evaluator, silu)
    task = asyncio.create_task(evaluator.evaluate(silu.request(), silu.blobs))
    await busy(evaluator)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError) as caught:
        await task
    assert caught.value.code == "worker_died"
    assert caught.value.retryable
    assert await correct(evaluator, silu)
    assert pid not in evaluator.judge.worker_pids


async def test_a_worker_that_died_while_idle_is_replaced(silu, make_evaluator, processes):
    evaluator = make_evaluator()
    assert await correct(evaluator, silu)
    (pid,) = evaluator.judge.worker_pids
    os.kill(pid, signal.SIGKILL)
    while pid in processes():  # noqa: ASYNC110  the loop reaps it
        await asyncio.sleep(0.01)
    assert await correct(evaluator, silu)


async def test_a_worker_that_hangs_is_killed_at_its_deadline(silu, make_evaluator, processes):
    evaluator = make_evaluator(worker_limits=WorkerLimits(memory_bytes=4 << 30, wall_s=120))
    pid = await stopped_worker(evaluator, silu)
    evaluator.judge.workers.limits = WorkerLimits(memory_bytes=4 << 30, wall_s=0.5)
    with pytest.raises(InfrastructureError) as caught:
        await evaluator.evaluate(silu.request(), silu.blobs)
    assert caught.value.code == "worker_deadline"
    assert pid not in processes()


async def test_cancelling_while_judging_leaves_no_process(silu, make_evaluator, processes):
    evaluator = make_evaluator()
    pid = await stopped_worker(evaluator, silu)
    task = asyncio.create_task(evaluator.evaluate(silu.request(), silu.blobs))
    await busy(evaluator)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pid not in processes()
    assert await correct(evaluator, silu)


async def test_cancelling_while_tracing_leaves_no_process(silu, make_evaluator, processes, running):
    evaluator = make_evaluator()
    endless = silu.kernel.replace("    m, n = x.shape\n", "    m, n = x.shape\n    while True: pass\n")
    task = asyncio.create_task(evaluator.evaluate(silu.request(endless), silu.blobs))
    await running()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes() == set()
    assert await correct(evaluator, silu)


async def test_closing_ends_workers(silu, make_evaluator, processes):
    evaluator = make_evaluator()
    assert await correct(evaluator, silu)
    assert processes()
    await evaluator.aclose()
    assert processes() == set()
    assert evaluator.judge.worker_pids == ()


async def test_a_defect_in_the_worker_is_no_verdict(silu, make_evaluator):
    evaluator = make_evaluator()
    spec = silu.problem.spec
    job = JudgeJob(spec=spec, problem="x", size="nowhere", target="trn2", references={})
    with pytest.raises(InfrastructureError) as caught:
        await evaluator.judge.workers.judge(job, await traced(silu))
    assert caught.value.code == "worker_failed"
    assert "nowhere" in caught.value.message
    assert await correct(evaluator, silu)


async def traced(silu) -> bytes:
    from nki_sim import protocol
    from nki_sim.frontend.entry import trace_bytes
    from nki_sim.program.ir import ArraySpec

    return protocol.program_reply(trace_bytes(silu.kernel, args=[ArraySpec((256, 2048), "float32")]))


# -- a weak jail -----------------------------------------------------------------------------------


async def test_with_a_weak_jail_no_kernel_of_a_model_is_run(silu, make_evaluator):
    evaluator = make_evaluator(strength=JailStrength.WEAK, allow_weak_jail=False)
    assert await correct(evaluator, silu)
    text = silu.kernel.replace("TILE_N = 1024", "TILE_N = 512")
    rewritten = silu.request(text, author="builtin")
    assert (await evaluator.evaluate(rewritten, silu.blobs)).evaluation.is_correct
    changed = silu.request(text, author="some-model")
    with pytest.raises(InfrastructureError, match="bubblewrap") as caught:
        await evaluator.evaluate(changed, silu.blobs)
    assert caught.value.code == "weak_jail"
    assert not caught.value.retryable
    allowed = make_evaluator(strength=JailStrength.WEAK, allow_weak_jail=True)
    assert (await allowed.evaluate(changed, silu.blobs)).evaluation.is_correct


# -- kernels that got past the static rules ----------------------------------------------------------


@parametrize_sweep(
    ("line", "code"),
    [
        ("import os; os._exit(0)", "no_program"),
        ("import os; os.abort()", "no_program"),
        ("import sys; sys.exit(0)", "kernel_exit"),
        ("import os; os.fork()", "kernel_exception"),
        ("open('/tmp/x', 'w').write('x' * (1 << 30))", "kernel_exception"),
        ("import os, sys; [os.write(f, b'NKISIMRPP' + bytes(8)) for f in range(3, 40)]", "no_program"),
        ("import gc; [setattr(o, 'add', None) for o in gc.get_objects() if hasattr(o, 'to_bytes')]", None),
    ],
    quick=2,
)
async def test_attacks_from_inside_the_tracer_end_in_a_verdict(line, code, silu, make_evaluator, monkeypatch):
    monkeypatch.setattr(rules, "check_source", lambda *_: [])
    guarded = (
        f"    try:\n        {line}\n    except OSError as error:\n        raise ValueError(str(error))\n"
    )
    source = silu.kernel.replace("    m, n = x.shape\n", f"{guarded}    m, n = x.shape\n")
    evaluator = make_evaluator()
    found = (await evaluator.evaluate(silu.request(source), silu.blobs)).evaluation
    assert found.verdict in {Verdict.COMPILE_ERROR, Verdict.INCORRECT, Verdict.CORRECT}
    if code is not None:
        assert found.verdict is Verdict.COMPILE_ERROR
    monkeypatch.undo()
    assert await correct(evaluator, silu)


async def test_a_forged_reply_is_only_ever_data(silu, make_evaluator, monkeypatch):
    monkeypatch.setattr(rules, "check_source", lambda *_: [])
    forge = (
        "    import os, sys, json\n"
        "    body = json.dumps({'verdict': 'correct', 'benchmark': 0.0}).encode()\n"
        "    frame = b'NKISIMRPP' + len(body).to_bytes(8, 'little') + body\n"
        "    os.write(int(sys.argv[2]), frame)\n"
        "    os._exit(0)\n"
    )
    source = silu.kernel.replace("    m, n = x.shape\n", f"{forge}    m, n = x.shape\n")
    found = (await make_evaluator().evaluate(silu.request(source), silu.blobs)).evaluation
    assert found.verdict is Verdict.COMPILE_ERROR
    assert found.error.code == "invalid_ir"


# -- references --------------------------------------------------------------------------------------


def with_reference(source: str) -> seeds.Problem:
    files = dict(seeds.load_problem("silu").files)
    return seeds.build_problem({**files, "reference.py": source.encode()})


@parametrize_sweep(
    ("source", "message"),
    [
        (
            "def reference(x):\n    raise ValueError('no such\\nthing')\n",
            "failed: reference.py, line 2: ValueError: no such thing",
        ),
        (
            "import nowhere\ndef reference(x):\n    return x\n",
            "reference.py, line 1: ModuleNotFoundError: No module named 'nowhere'; install it for agentctl",
        ),
        (
            "def reference(x):\n    return x[1:]\n",
            "out has shape (255, 2048), and problem.toml says (256, 2048)",
        ),
        (
            "def reference(x):\n    return x, x\n",
            "the reference returns 2 arrays, and problem.toml has 1 outputs: out",
        ),
        ("def reference(x):\n    x * 2\n", "the reference returns nothing; end it with `return`"),
        (
            "def half(x):\n    return x.reshape(3, -1)\ndef reference(x):\n    return half(x)\n",
            "reference.py, line 2: ValueError: cannot reshape",
        ),
    ],
    quick=2,
)
async def test_a_reference_that_fails_is_the_problems_fault(source, message, bench, make_evaluator, home):
    problem = bench(with_reference(source))
    with pytest.raises(InfrastructureError, match="the reference of silu failed") as caught:
        await make_evaluator(home=home).evaluate(problem.request(), problem.blobs)
    assert caught.value.code == "reference_failed"
    assert message in caught.value.message
    assert not caught.value.retryable
    assert not list(home.rglob("*.npy"))


async def test_a_reference_that_is_not_finite_is_no_verdict(bench, make_evaluator, home):
    problem = bench(with_reference("def reference(x):\n    return x * float('nan')\n"))
    with pytest.raises(InfrastructureError, match="not finite") as caught:
        await make_evaluator(home=home).evaluate(problem.request(), problem.blobs)
    assert caught.value.code == "bad_reference"


@pytest.mark.slow
async def test_a_damaged_cache_heals_itself(silu, make_evaluator, home):
    evaluator = make_evaluator(home=home)
    assert await correct(evaluator, silu)
    files = sorted(home.rglob("*.npy"))
    assert len(files) == 5 + len(suite.WHOLE_SETS)
    good = [path.read_bytes() for path in files]
    files[2].write_bytes(b"\x93NUMPY")
    assert await correct(evaluator, silu)
    assert [path.read_bytes() for path in files] == good
    files[0].unlink()
    assert await correct(evaluator, silu)


async def test_reference_outputs_are_computed_once_and_are_the_references(silu, home, monkeypatch):
    store, names = (
        ReferenceStore(home, strength=jail_strength()),
        [*map(str, silu.problem.spec.seeds), "flipped"],
    )
    first, second = await asyncio.gather(
        *(store.load_files(silu.problem, "reduced", wholes=names) for _ in range(2))
    )
    assert first == second
    assert list(first.wholes) == names
    written = {}
    exec(silu.problem.files["reference.py"], written)
    for name, (path,) in first.wholes.items():
        expected = written["reference"](*suite.draw_set(silu.problem.spec, "reduced", name))
        assert np.array_equal(np.load(path), expected)

    async def never(*_, **__):
        raise AssertionError("computed again")

    monkeypatch.setattr(store, "_compute_files", never)
    assert await store.load_files(silu.problem, "reduced", wholes=names) == first


async def test_references_see_neither_secrets_nor_home(bench, make_evaluator, home, monkeypatch):
    monkeypatch.setenv("NKI_TEST_SECRET", "hush")
    spy = "import os\ndef reference(x):\n    raise ValueError(sorted(os.environ))\n"
    problem = bench(with_reference(spy))
    with pytest.raises(InfrastructureError) as caught:
        await make_evaluator(home=home).evaluate(problem.request(), problem.blobs)
    assert "NKI_TEST_SECRET" not in caught.value.message
    assert "HOME" not in caught.value.message


async def test_a_reference_may_use_other_files_of_its_problem(bench, make_evaluator, home):
    files = dict(seeds.load_problem("silu").files)
    files["reference.py"] = b"import helper\ndef reference(x):\n    return helper.silu(x)\n"
    files["helper.py"] = b"import numpy as np\ndef silu(x):\n    return x / (1 + np.exp(-x))\n"
    problem = bench(seeds.build_problem(files))
    answer = await make_evaluator(home=home).evaluate(problem.request(), problem.blobs)
    assert answer.evaluation.is_correct
