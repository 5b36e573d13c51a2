"""Predictions in batches: by the program alone, in one jail, in order, and none of them a verdict."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import seeds
from nki_sim import protocol
from nki_sim.errors import LimitError
from remote.errors import InfrastructureError
from remote.evaluator import PredictionRequest
from remote.jail_backends import JailLimits
from remote.predictions import MAX_ENDED_JAILS
from state.model import PredictedLatency
from state.step_keeper import STEP_KEEPER
from targets.nki.judge import normalise, rules
from targets.nki.judge.normalise import code_digest
from tests.remote.test_judged_parts import Killed, MemoryKeeper


def request_predictions(bench, *sources: str, **changes) -> PredictionRequest:
    request = bench.request()
    fields = {
        "author": "builtin",
        "sources": sources,
        "problem": request.problem,
        "size": "reduced",
        "target": "trn2",
        "toolchain": request.toolchain,
    }
    return PredictionRequest(**{**fields, **changes})


async def predict_latencies(evaluator, bench, *sources: str, **changes) -> list[PredictedLatency]:
    return list(await evaluator.predict(request_predictions(bench, *sources, **changes), bench.blobs))


@pytest.fixture
def half(silu) -> str:
    """The kernel with tiles half as wide."""
    changed = silu.kernel.replace("TILE_N = 1024", "TILE_N = 512")
    assert changed != silu.kernel
    return changed


async def test_a_prediction_is_the_judges_latency(make_evaluator, silu, half):
    evaluator = make_evaluator()
    one, other, again = await predict_latencies(evaluator, silu, silu.kernel, half, silu.kernel)
    judged = (await evaluator.evaluate(silu.request(), silu.blobs)).evaluation
    assert one.latency_ms == judged.benchmark.latency_ms
    assert one.code == judged.code
    assert one == again
    assert other.latency_ms != one.latency_ms
    assert other.instructions > one.instructions > 0


async def test_a_kernel_that_cannot_be_predicted_leaves_the_others_alone(make_evaluator, silu):
    broken = silu.kernel.replace("nisa.dma_copy(", "nisa.dma_kopy(", 1)
    forbidden = f"import os\n{silu.kernel}"
    lost, refused, nothing, good = await predict_latencies(
        make_evaluator(), silu, broken, forbidden, "x = 1\n", silu.kernel
    )
    assert lost.error.code
    assert refused.error.code == "forbidden_import"
    assert nothing.error.code
    assert (lost.latency_ms, refused.latency_ms, nothing.latency_ms) == (None, None, None)
    assert good.latency_ms is not None


async def test_predictions_that_are_cut_off_go_on_with_what_was_read_and_traced(
    make_evaluator, silu, half, monkeypatch
):
    wanted = await predict_latencies(make_evaluator(), silu, silu.kernel, half)
    STEP_KEEPER.set(keeper := MemoryKeeper())
    lives = 0
    for keeper.lives in (0, 1, 1, 1):  # the texts, and each half, are read and traced in one life
        try:
            found = await predict_latencies(make_evaluator(), silu, silu.kernel, half)
        except Killed:
            lives += 1
    assert (lives, found) == (3, wanted)

    async def never(*args: object) -> None:
        raise AssertionError("it was read and traced before")

    last = make_evaluator()
    monkeypatch.setattr(last.judge, "run_tracer", never)
    monkeypatch.setattr(last.judge.workers, "read_sources", never)
    assert await predict_latencies(last, silu, silu.kernel, half) == wanted


async def test_what_was_predicted_is_not_predicted_again(make_evaluator, silu, half, monkeypatch):
    evaluator = make_evaluator()
    first = await predict_latencies(evaluator, silu, silu.kernel, half)

    async def never(*args: object) -> None:
        raise AssertionError("a jail was asked for")

    monkeypatch.setattr(evaluator.judge, "run_tracer", never)
    assert await predict_latencies(evaluator, silu, half, silu.kernel) == first[::-1]
    with pytest.raises(AssertionError):
        await predict_latencies(evaluator, silu, silu.kernel, target="trn1")


async def test_no_text_is_read_in_this_process(make_evaluator, silu, monkeypatch):
    def never(source: bytes) -> None:
        raise AssertionError("parsed here")

    digest = code_digest(silu.kernel.encode())
    for module in (rules, normalise):
        monkeypatch.setattr(module, "parse_source", never)
    refused, found = await predict_latencies(make_evaluator(), silu, f"import os\n{silu.kernel}", silu.kernel)
    assert refused.error.code == "forbidden_import"
    assert found.code == digest


async def test_a_prediction_at_other_dimensions(make_evaluator, silu):
    evaluator = make_evaluator()
    dims = seeds.load_problem("silu").spec.dims("reduced")
    (whole,) = await predict_latencies(evaluator, silu, silu.kernel)
    (double,) = await predict_latencies(evaluator, silu, silu.kernel, dims={**dims, "M": 2 * dims["M"]})
    assert double.instructions > whole.instructions
    assert double.latency_ms > whole.latency_ms


async def test_at_other_dimensions_a_kernel_has_to_do_all_of_its_work(make_evaluator, silu):
    dims = seeds.load_problem("silu").spec.dims("reduced")
    wide = silu.kernel.replace("TILE_N = 1024", f"TILE_N = {dims['N']}")
    whole, half = [
        (await predict_latencies(make_evaluator(), silu, wide, dims={**dims, "N": n}))[0]
        for n in (dims["N"], dims["N"] // 2)
    ]
    assert whole.latency_ms is not None
    assert half.error.code == "tensor_output_not_written_to"


def many(*sources: str) -> list[str]:
    """These kernels, each with a text of its own; the halves are predicted in a jail each."""
    return [f"{source}\n# {number}\n" for number, source in enumerate(sources)]


def endless(source: str) -> str:
    return source.replace("    return", "    while True:\n        pass\n    return", 1)


@pytest.mark.slow
async def test_a_kernel_that_ends_its_jail_takes_no_other_with_it(make_evaluator, silu, half):
    evaluator = make_evaluator(jail_limits=JailLimits(cpu_s=2))
    sources = [silu.kernel, endless(silu.kernel), half, *many(silu.kernel, half)]
    one, lost, other, *rest = await predict_latencies(evaluator, silu, *sources)
    alone = await predict_latencies(make_evaluator(), silu, silu.kernel, half)
    assert lost.error.code == "not_traced"
    assert [one, other] == rest == alone


async def test_what_many_kernels_ended_is_left_and_asked_again(make_evaluator, silu, half, monkeypatch):
    evaluator = make_evaluator()
    whole = evaluator.judge.run_tracer

    async def nothing(tracer, request: bytes, *flags: str):
        return replace(await whole(tracer, b"{}", *flags), answer=b"")

    monkeypatch.setattr(evaluator.judge, "run_tracer", nothing)
    others = many(*[silu.kernel] * (2 * MAX_ENDED_JAILS))
    sources = [*others[:MAX_ENDED_JAILS], half, *others[MAX_ENDED_JAILS:]]
    lost = list(await predict_latencies(evaluator, silu, *sources))
    left = lost.pop(MAX_ENDED_JAILS)
    assert {one.error.code for one in lost} == {"not_traced"}
    assert left.error.code == "no_turn"
    monkeypatch.setattr(evaluator.judge, "run_tracer", whole)
    (found,) = await predict_latencies(evaluator, silu, half)
    assert found.latency_ms is not None


async def test_memory_that_other_kernels_used_is_not_held_against_one(
    make_evaluator, silu, half, monkeypatch
):
    evaluator = make_evaluator()
    whole, error = (
        evaluator.judge.run_tracer,
        LimitError("limit_memory", "tracing needs more memory than is allowed"),
    )

    async def fills(tracer, request: bytes, *flags: str):
        first, *rest = request.split(b"\n")
        result = await whole(tracer, first, *flags)
        return replace(result, answer=result.answer + protocol.error_reply(error) * len(rest))

    monkeypatch.setattr(evaluator.judge, "run_tracer", fills)
    found = await predict_latencies(evaluator, silu, *many(silu.kernel, half, silu.kernel, half))
    assert all(one.latency_ms is not None for one in found)


async def test_a_cancelled_batch_leaves_no_process(make_evaluator, silu, half, processes):
    evaluator = make_evaluator()
    task = asyncio.create_task(predict_latencies(evaluator, silu, silu.kernel, endless(silu.kernel)))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("changes", "code"), [({"size": "huge"}, "unknown_size"), ({"target": "trn9"}, "unknown_target")]
)
async def test_what_cannot_be_predicted_at_all(make_evaluator, silu, changes, code):
    with pytest.raises(InfrastructureError) as caught:
        await predict_latencies(make_evaluator(), silu, silu.kernel, **changes)
    assert caught.value.code == code


async def test_the_halves_of_a_request_are_predicted_side_by_side(make_evaluator, silu, half, monkeypatch):
    evaluator = make_evaluator(slots=2)
    whole, at_once, most = evaluator.judge.run_tracer, 0, 0

    async def counted(tracer, request: bytes, *flags: str):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return await whole(tracer, request, *flags)
        finally:
            at_once -= 1

    monkeypatch.setattr(evaluator.judge, "run_tracer", counted)
    found = await predict_latencies(evaluator, silu, *many(silu.kernel, half))
    assert most == 2
    assert found == await predict_latencies(make_evaluator(), silu, silu.kernel, half)


async def test_what_ends_one_half_ends_the_other(make_evaluator, silu, monkeypatch):
    evaluator = make_evaluator(slots=2)
    whole, begun = evaluator.judge.run_tracer, asyncio.Event()

    async def fails(tracer, request: bytes, *flags: str):
        if begun.is_set():
            raise InfrastructureError("jail_start", "the jail did not start")
        begun.set()
        return await whole(tracer, request, *flags)

    monkeypatch.setattr(evaluator.judge, "run_tracer", fails)
    with pytest.raises(InfrastructureError, match="did not start"):
        await predict_latencies(evaluator, silu, *many(silu.kernel, silu.kernel))
