"""Every verdict, earned by a kernel that deserves it: code, stage, line, and nothing that is not so."""

from __future__ import annotations

import asyncio
import json

import pytest

import remote
import seeds
import targets.nki.tracer
from remote.errors import InfrastructureError
from remote.jail_backends import JailLimits
from remote.pool import WorkerLimits
from state.model import Verdict
from targets.nki.judge.program import TIMELINE_PARTS
from tests.support.sweeps import parametrize_sweep

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
"""


def body(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines) + "    return out\n"


def change(old: str, new: str):
    def edit(kernel: str) -> str:
        assert old in kernel
        return kernel.replace(old, new)

    return edit


def whole(*lines: str):
    return lambda _: body(*lines)


TILE = "t = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.sbuf)"
WIDE = "t = nl.ndarray((256, 8), dtype=x.dtype, buffer=nl.sbuf)"
NUMPY = "import numpy as np"
OTHER = "nl.ndarray({}, dtype={}, buffer=nl.shared_hbm)"

CASES = {
    # verdict, stage, code, line of the kernel's file (None: not asked), how the kernel is made
    "changed constant": (
        Verdict.INCORRECT, "numerics", "wrong_result", None, change("scale=-1.0", "scale=-1.001"),
    ),
    "logarithm of negatives": (
        Verdict.INCORRECT, "numerics", "not_finite", None, change("op=nl.exp", "op=nl.log"),
    ),
    "transposed shape": (
        Verdict.INCORRECT, "rules", "output_shape", None,
        whole("out = " + OTHER.format("(2048, 256)", "x.dtype")),
    ),
    "half precision output": (
        Verdict.INCORRECT, "rules", "output_dtype", None,
        whole("out = " + OTHER.format("x.shape", "nl.bfloat16")),
    ),
    "two outputs": (
        Verdict.INCORRECT, "rules", "output_count", None,
        change("return out", "return out, " + OTHER.format("(1, 1)", "x.dtype")),
    ),
    "import of os": (
        Verdict.LINT_ERROR, "lint", "forbidden_import", 1, lambda kernel: "import os\n" + kernel,
    ),
    "open": (
        Verdict.LINT_ERROR, "lint", "forbidden_name", 9, whole("open('/etc/passwd')"),
    ),
    "not Python": (
        Verdict.LINT_ERROR, "lint", "syntax_error", 9, whole("x = = 1"),
    ),
    "not text": (
        Verdict.LINT_ERROR, "lint", "syntax_error", None, lambda _: b"\xff\xfe\x00",
    ),
    "empty file": (
        Verdict.COMPILE_ERROR, "trace", "entry", None, lambda _: "",
    ),
    "raises": (
        Verdict.COMPILE_ERROR, "trace", "kernel_exception", 9, whole("raise ValueError('no')"),
    ),
    "recursion without end": (
        Verdict.COMPILE_ERROR, "trace", "kernel_exception", None, whole("f = lambda g: g(g)", "f(f)"),
    ),
    "256 partitions": (
        Verdict.COMPILE_ERROR, "trace", "num_partition_exceed_arch_limit", 9,
        whole(WIDE, "nisa.dma_copy(dst=t, src=x[0:256, 0:8])"),
    ),
    "unwritten tail": (
        Verdict.COMPILE_ERROR, "rules", "tensor_output_not_written_to", None,
        change("range(n // TILE_N)", "range(n // TILE_N - 1)"),
    ),
    "read before written": (
        Verdict.COMPILE_ERROR, "rules", "uninitialised_read", 10,
        whole(TILE, "nisa.dma_copy(dst=out[0:128, 0:8], src=t)"),
    ),
    "endless Python loop": (
        Verdict.TIMEOUT, "trace", "cpu_limit", None, whole("while True: pass"),
    ),
    "endless instructions": (
        Verdict.TIMEOUT, "trace", "limit_instructions", None,
        whole(TILE, "while True: nisa.memset(dst=t, value=0.0)"),
    ),
    "swallowed limit": (
        Verdict.TIMEOUT, "trace", "cpu_limit", None,
        whole("while True:", "    try:", "        sum(range(10**9))", "    except Exception: pass"),
    ),
    "too much memory while tracing": (
        Verdict.COMPILE_ERROR, "trace", "kernel_exception", None, whole("held = [0] * (1 << 40)"),
    ),
    "too much memory while running": (
        Verdict.RUNTIME_ERROR, "numerics", "limit_memory", None,
        whole(
            "huge = nl.ndarray((1 << 15, 1 << 15), dtype=nl.float32, buffer=nl.private_hbm)",
            "nisa.dma_copy(dst=huge[0:256, 0:2048], src=x)",
            "nisa.dma_copy(dst=out, src=huge[0:256, 0:2048])",
        ),
    ),
    "constants beyond what a program may hold": (
        Verdict.COMPILE_ERROR, "trace", "program_too_large", None,
        whole(NUMPY, "nl.shared_constant(np.zeros((1 << 9, 1 << 11), np.float32))"),
    ),
}  # fmt: skip


@parametrize_sweep(
    "case",
    CASES.values(),
    ids=CASES.keys(),
    quick=[
        "changed constant",
        "transposed shape",
        "import of os",
        "open",
        "not Python",
        "not text",
        "raises",
        "empty file",
        "endless instructions",
        "constants beyond what a program may hold",
    ],
)
async def test_verdict(case, silu, make_evaluator, monkeypatch):
    verdict, stage, code, line, make = case
    monkeypatch.setattr(targets.nki.tracer, "MAX_INSTRUCTIONS", 5000)
    evaluator = make_evaluator(jail_limits=JailLimits(cpu_s=2, memory_bytes=1 << 30, answer_bytes=1 << 21))
    answer = await evaluator.evaluate(silu.request(make(silu.kernel)), silu.blobs)
    found = answer.evaluation
    assert (found.verdict, found.stage, found.error.code) == (verdict, stage, code), found.error
    assert found.error.message
    assert line is None or found.error.line == line
    assert found.benchmark is None
    assert found.profile is None
    assert not answer.artefacts
    assert all(error >= silu.problem.spec.rel_l2 for error in found.rel_l2.values())


@pytest.mark.parametrize("case", ["raises", "unwritten tail"])
async def test_a_kernel_without_a_valid_program_does_not_wait_for_the_reference(
    case, silu, make_evaluator, tmp_path, monkeypatch
):
    verdict, stage, code, _, make = CASES[case]
    evaluator = make_evaluator(home=tmp_path)

    async def never(*_: object) -> None:
        raise AssertionError("the reference was computed")

    monkeypatch.setattr(evaluator.judge, "load_references", never)
    found = (await evaluator.evaluate(silu.request(make(silu.kernel)), silu.blobs)).evaluation
    assert (found.verdict, found.stage, found.error.code) == (verdict, stage, code)


LEGACY = """import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
from neuronxcc.nki.language import par_dim


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=np.float32, buffer=nl.shared_hbm)
    ones = nl.load(nl.shared_constant(np.ones((128, 1), dtype=np.float32)))
    for i in nl.affine_range(x.shape[0] // 128):
        tile = nl.load(x[i * 128 : (i + 1) * 128, :])
        gate = nl.ndarray((par_dim(128), x.shape[1]), dtype=np.float32, buffer=nl.sbuf)
        gate[...] = nl.divide(ones, nl.add(nl.exp(nl.negative(tile)), ones))
        nl.store(out[i * 128 : (i + 1) * 128, :], nl.multiply(tile, gate))
    return out
"""


async def test_a_legacy_kernel_with_numpy_is_traced_in_the_jail_and_judged(silu, evaluator):
    found = (await evaluator.evaluate(silu.request(LEGACY), silu.blobs)).evaluation
    assert found.is_correct, found.error
    assert found.benchmark.predicted


async def test_correct(silu, evaluator):
    answer = await evaluator.evaluate(silu.request(), silu.blobs)
    found = answer.evaluation
    assert found.is_correct
    assert found.error is None
    assert set(found.rel_l2) == set(silu.problem.spec.seeds)
    assert all(error < 2e-5 for error in found.rel_l2.values())
    benchmark = found.benchmark
    assert benchmark.predicted
    assert benchmark.lo_ms <= benchmark.latency_ms <= benchmark.hi_ms
    assert benchmark.latency_ms >= remote.compute_bounds(silu.problem, "reduced", "trn2").tight_ms
    profile = json.loads(answer.artefacts[found.profile])
    assert profile["predicted"] is True
    assert profile["bottleneck"] == found.bottleneck
    assert profile["counters"]["hbm_read_bytes"] == 4 * 256 * 2048
    assert {"line", "ms", "op"} == set(profile["top_lines"][0])
    assert profile["waits_ms"].keys() == {name for name, ms in profile["busy_ms"].items() if ms}
    assert 0 < profile["memory"]["sbuf"]["peak"] <= profile["memory"]["sbuf"]["capacity"]
    assert profile["spilled"] == []
    busy = profile["timeline"]["busy_percent"]
    assert {"dma_load", "dma_store", "scalar"} <= set(busy)
    assert all(len(parts) == TIMELINE_PARTS for parts in busy.values())
    ms = profile["timeline"]["span_ms"] / TIMELINE_PARTS
    spans = {name: ms * sum(parts) / 100 for name, parts in busy.items()}
    assert spans["scalar"] == pytest.approx(1e3 * profile["counters"]["scalar_engine_active_time"], rel=0.1)
    assert {"lint", "jail", "numerics", "timing", "retrace"} <= set(answer.stage_ms)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matmul", "rmsnorm_matmul"])
async def test_the_other_initial_kernels_are_correct(name, bench, evaluator):
    problem = bench(seeds.load_problem(name))
    answer = await evaluator.evaluate(problem.request(), problem.blobs)
    assert answer.evaluation.is_correct


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rmsnorm_matmul", "silu"])
async def test_initial_kernels_are_correct_at_the_full_size(name, bench, evaluator):
    problem = bench(seeds.load_problem(name))
    answer = await evaluator.evaluate(problem.request(size="full"), problem.blobs)
    assert answer.evaluation.is_correct
    assert len(answer.evaluation.rel_l2) == 5
    bound = remote.compute_bounds(problem.problem, "full", "trn2").tight_ms
    assert bound < answer.evaluation.benchmark.latency_ms < 10 * bound


async def test_faster_than_the_bound_is_refused(bench, evaluator):
    files = dict(seeds.load_problem("silu").files)
    files["problem.toml"] = files["problem.toml"].replace(b'"M * N"', b'"1000 * M * N"')
    problem = bench(seeds.build_problem(files))
    answer = await evaluator.evaluate(problem.request(), problem.blobs)
    assert answer.evaluation.verdict is Verdict.RUNTIME_ERROR
    assert answer.evaluation.error.code == "faster_than_bound"
    assert answer.evaluation.benchmark is None
    assert len(answer.evaluation.rel_l2) == 5


@pytest.mark.slow
async def test_the_same_request_gives_the_same_bytes(silu, make_evaluator):
    answers = []
    for _ in range(2):
        evaluator = make_evaluator()
        answers += [await evaluator.evaluate(silu.request(), silu.blobs) for _ in range(2)]
    texts = {answer.evaluation.model_dump_json() for answer in answers}
    assert len(texts) == 1
    assert len({tuple(answer.artefacts.items()) for answer in answers}) == 1


@pytest.mark.slow
async def test_many_at_once_all_come_back(silu, make_evaluator, processes):
    evaluator = make_evaluator(slots=2)
    sources = [silu.kernel.replace("TILE_N = 1024", f"TILE_N = {size}") for size in (256, 512, 1024, 2048)]
    requests = [silu.request(source) for source in sources]
    answers = await asyncio.gather(*(evaluator.evaluate(request, silu.blobs) for request in requests))
    assert all(answer.evaluation.is_correct for answer in answers)
    assert len({answer.evaluation.code for answer in answers}) == 4
    assert len(evaluator.judge.worker_pids) <= 2
    assert processes() == set(evaluator.judge.worker_pids)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"size": "huge"}, "unknown_size"),
        ({"target": "trn9"}, "unknown_target"),
        ({"source": "0" * 64}, "bad_blob"),
    ],
)
async def test_a_request_that_cannot_be_carried_out_is_no_verdict(changes, code, silu, evaluator):
    with pytest.raises(InfrastructureError) as caught:
        await evaluator.evaluate(silu.request(**changes), silu.blobs)
    assert caught.value.code == code
    assert not caught.value.retryable


async def test_a_reduced_size_judges_only_problems_that_say_it_may(bench, evaluator):
    files = dict(seeds.load_problem("silu").files)
    files["problem.toml"] = files["problem.toml"].replace(b"shape_generic = true", b"shape_generic = false")
    problem = bench(seeds.build_problem(files))
    with pytest.raises(InfrastructureError) as caught:
        await evaluator.evaluate(problem.request(), problem.blobs)
    assert caught.value.code == "not_shape_generic"


@pytest.mark.slow
async def test_the_only_size_of_a_problem_is_judged_whatever_its_name(bench, evaluator):
    files = dict(seeds.load_problem("silu").files)
    text = files["problem.toml"].decode().replace("shape_generic = true", "shape_generic = false")
    start, end = text.index("[sizes.full]"), text.index("[sizes.reduced]")
    del files["workload.json"]
    files["problem.toml"] = (text[:start] + text[end:]).encode()
    problem = bench(seeds.build_problem(files))
    answer = await evaluator.evaluate(problem.request(size="reduced"), problem.blobs)
    assert answer.evaluation.verdict is Verdict.CORRECT


@parametrize_sweep("case", [
    ("slices", None, False), ("slices", 0.001, False), ("slices", 1e6, True), ("one_seed", 1e6, True),
    ("whole", None, True),
], quick=2)  # fmt: skip
async def test_a_gain_too_good_has_everything_judged(case, silu, evaluator, monkeypatch):
    level, base_ms, whole = case
    judged = []
    judge = evaluator.judge.workers.judge

    async def noted(job, reply):
        judged.append(len(job.references))
        return await judge(job, reply)

    monkeypatch.setattr(evaluator.judge.workers, "judge", noted)
    answer = await evaluator.evaluate(silu.request(level=level, base_ms=base_ms), silu.blobs)
    assert answer.evaluation.is_correct
    assert set(answer.evaluation.rel_l2) == set(silu.problem.spec.seeds)
    assert (judged[-1] == len(silu.problem.spec.seeds)) == whole
    assert judged[0] == {"slices": 0, "one_seed": 1, "whole": 5}[level]


async def test_blobs_that_are_not_the_problem_are_noticed(silu, evaluator):
    request = silu.request()
    wrong = request.problem.model_copy(update={"digest": "1" * 64})
    with pytest.raises(InfrastructureError) as caught:
        await evaluator.evaluate(request.model_copy(update={"problem": wrong}), silu.blobs)
    assert caught.value.code == "bad_problem"
    silu.blobs[request.source] = b"something else"
    with pytest.raises(InfrastructureError) as caught:
        await evaluator.evaluate(request, silu.blobs)
    assert caught.value.code == "bad_blob"


async def test_memory_of_a_worker_is_bounded_by_its_limit(silu, make_evaluator):
    evaluator = make_evaluator(worker_limits=WorkerLimits(memory_bytes=4 << 30, input_bytes=0, wall_s=120))
    for _ in range(2):
        answer = await evaluator.evaluate(silu.request(), silu.blobs)
        assert answer.evaluation.is_correct
