"""Kernels that others wrote are raised before rewrites are tried on them, and sequences say so."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import seeds
from agent_core.effects import ImplementRequest, LearningContext, LookAheadRequest, Variant, Variants
from agent_core.roles import LookAheadAnswer, PredictionsEndedError
from remote.evaluator import PredictionRequest
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from state.model import (
    Benchmark,
    Candidate,
    CanonicalKernel,
    ErrorInfo,
    PredictedLatency,
    RewriteStep,
    canonical_json,
    digest_of,
)
from targets.nki.judge.normalise import code_digest
from targets.nki.rewrites import create
from targets.nki.rewrites.lookahead_role import plan_variant
from targets.nki.rewrites.prediction_scale import problem_job_fields
from targets.nki.rewrites.raised_parent import (
    CLEAR_TILES,
    RaisedParent,
    raise_parent,
    read_original,
    split_raise,
)
from targets.nki.rewrites.worker import answer_request
from tests.support.blobs import Blobs

PROBLEM = seeds.load_problem("silu")
THEIRS = """import nki
import nki.isa as nisa
import nki.language as nl


def fetch(x, r, c, w=512):
    t = nl.ndarray((128, w), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[r : r + 128, c : c + w])
    return t


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for r in range(0, x.shape[0], 128):
        for c in range(0, x.shape[1], 512):
            t = fetch(x, r, c)
            s = nl.sigmoid(t)
            nisa.tensor_tensor(dst=s, data1=s, data2=t, op=nl.multiply)
            nisa.dma_copy(dst=out[r : r + 128, c : c + 512], src=s)
    return out
"""
PLAIN = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        for j in nl.affine_range(n // 512):
            t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, j * 512 : (j + 1) * 512])
            nisa.activation(dst=t, op=nl.silu, data=t)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * 512 : (j + 1) * 512], src=t)
    return out
"""
LEGACY = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = nl.arange(128)[:, None], nl.arange(N)[None, :]
    for i in nl.affine_range((M + 127) // 128):
        kept = i * 128 + rows < M
        t = nl.load(x[i * 128 + rows, columns], mask=kept)
        e = nl.exp(nl.negative(t, mask=kept), mask=kept)
        s = nl.divide(t, nl.add(e, 1.0, mask=kept), mask=kept)
        nl.store(out[i * 128 + rows, columns], value=s, mask=kept)
    return out
"""
IN_THREE_LOOPS = """import nki
import nki.isa as nisa
import nki.language as nl


def fetch(x, r):
    t = nl.ndarray((128, x.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[r * 128 : (r + 1) * 128, :])
    return t


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = range(x.shape[0] // 128)
    held = [fetch(x, r) for r in rows]
    done = [nl.ndarray((128, x.shape[1]), dtype=nl.float32, buffer=nl.sbuf) for _ in rows]
    for r in rows:
        nisa.activation(dst=done[r], op=nl.silu, data=held[r])
    for r in rows:
        nisa.dma_copy(dst=out[r * 128 : (r + 1) * 128, :], src=done[r])
    return out
"""
TOO_MUCH = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((16384, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    kept = [nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf) for _ in range(128)]
    for i in nl.affine_range(128):
        nisa.dma_copy(dst=kept[i], src=x[i * 128 : (i + 1) * 128, :])
    for j in nl.affine_range(128):
        nisa.activation(dst=kept[j], op=nl.silu, data=kept[{tile}])
    for k in nl.affine_range(128):
        nisa.dma_copy(dst=out[k * 128 : (k + 1) * 128, :], src=kept[k])
    return out
"""
WEIGHTS_FIRST = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((512, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    kept = [nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf) for _ in range(4)]
    for i in nl.affine_range(4):
        t = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, 0:256])
        nisa.tensor_scalar(dst=kept[i], data=t, op0=nl.multiply, operand0=2.0)
    for c in nl.affine_range(2):
        part = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=part, src=x[0:128, c * 256 : (c + 1) * 256])
        for i in nl.affine_range(4):
            b = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=b, data1=kept[i], data2=part, op=nl.add)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, c * 256 : (c + 1) * 256], src=b)
    return out
"""
WEIGHTS_AGAIN = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((512, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, :])
        first = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=first, src=x[0:128, :])
        b = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=b, data1=t, data2=first, op=nl.add)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=b)
    return out
"""
CANONICAL = CanonicalKernel(program=digest_of(b"a program"), source=PROBLEM.kernel)
TIMED = PredictedLatency(latency_ms=1.0, canonical=CANONICAL)

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Bench:
    def __init__(self, home: Path) -> None:
        self.blobs = Blobs()
        for data in PROBLEM.files.values():
            self.blobs.put(data)
        self.evaluator = LocalEvaluator(
            JudgeService(home=home, slots=1, allow_weak_jail=True, secret="a secret of tests"), target="trn2"
        )
        self.proposer = create(workers=1)
        empty = LearningContext(memory=(), reflections=(), attempts=(), credits={})
        self.context = self.blobs.put(canonical_json(empty.model_dump(mode="json")))

    async def aclose(self) -> None:
        await self.proposer.aclose()
        await self.evaluator.aclose()

    async def predict(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None, *, canonical: bool = False
    ) -> list[PredictedLatency]:
        request = PredictionRequest(
            author="builtin", sources=tuple(sources), problem=PROBLEM.make_ref(), size="reduced",
            target="trn2", toolchain=self.evaluator.toolchain(), dims=dims, canonical=canonical,
        )  # fmt: skip
        return await self.evaluator.predict(request, self.blobs)

    def request(self, source: str, latency_ms: float = 1.0, author: str = "person") -> LookAheadRequest:
        name = "r0.b0.p0.k0.f0"
        timed = Benchmark(
            latency_ms=latency_ms, lo_ms=latency_ms, hi_ms=latency_ms, predicted=True, samples=1
        )
        parent = Candidate(
            id=name, parent=None, lineage=name, round=0, source=self.blobs.put(source.encode()),
            code=code_digest(source.encode()), technique=None, title="", benchmark=timed, bottleneck="vector",
            profile=None, author=author,
        )  # fmt: skip
        return LookAheadRequest(
            key="r1.b0.p0.k0.f0.predictor", role="predictor", draw=7, problem=PROBLEM.make_ref(),
            size="reduced", target="trn2", toolchain=self.evaluator.toolchain(), parent=parent,
            known=(parent.code,), context=self.context, variants=2, depth=3, width=2, predictions=6,
            instructions=300_000,
        )  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("evaluator"))
    yield made
    await made.aclose()


async def ask(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer_request(json.dumps(job)))["ok"]
    return found


async def raised(
    bench: Bench,
    source: str,
    *answers: PredictedLatency,
    author: str = "person",
    shape: tuple[int, int] | None = None,
) -> RaisedParent:
    """What becomes of a parent whose predictions are these, one after the other."""
    left = list(answers)

    async def predict(*_: object, **__: object) -> list[PredictedLatency]:
        return [left.pop(0)]

    shapes = problem_job_fields(PROBLEM.spec, "reduced", "trn2")
    if shape is not None:
        shapes["arguments"] = [[list(shape), "float32"]]
    found = await raise_parent(bench.request(source, author=author), source, predict, ask, shapes)
    assert not left
    return found


async def test_sequences_from_a_kernel_with_helpers_begin_by_raising_it(bench: Bench) -> None:
    (told,) = await bench.predict([THEIRS])
    assert told.latency_ms is not None
    request = bench.request(THEIRS, told.latency_ms)
    seen = await bench.proposer.look_ahead(request, bench.blobs.get_blob, bench.predict)
    assert seen.variants.found
    for one in seen.variants.found:
        step, second, *rest = one.steps
        assert (step.technique, step.site) == ("raise", "kernel")
        assert (second.technique, second.site) == (
            CLEAR_TILES[0].technique,
            CLEAR_TILES[0].site,
        )  # `s` is overwritten
        assert "the name `fetch`" in step.title or "does not count 0, 1" in step.title
        assert rest
        assert digest_of(seen.sources[str(step.choice["source"])]) == step.choice["source"]


async def test_legacy_kernels_are_ported_though_their_compiler_makes_another_program_of_them(
    bench: Bench,
) -> None:
    (told,) = await bench.predict([LEGACY], canonical=True)
    assert told.latency_ms is not None
    assert told.canonical is not None
    assert told.canonical.ported
    request = bench.request(LEGACY, told.latency_ms)
    seen = await bench.proposer.look_ahead(request, bench.blobs.get_blob, bench.predict)
    first = seen.variants.found[0]
    assert first.steps[0].title.startswith("port the kernel to nki, in canonical form (predicted ")
    made = [seen.sources[one.source].decode() for one in seen.variants.found]
    ported = seen.sources[str(first.steps[0].choice["source"])].decode()
    assert not any("neuronxcc" in source for source in (ported, *made))
    (at_first,), (at_last,) = [await bench.predict([source]) for source in (ported, made[0])]
    assert at_first.latency_ms is not None
    gains = [step.speedup for step in first.steps]
    assert gains[0] == pytest.approx(told.latency_ms / at_first.latency_ms, rel=1e-5)
    assert first.latency_ms == at_last.latency_ms < told.latency_ms
    # The steps' gains are over the kernel before each, so that credit goes to what brought it.
    assert math.prod(gains) == pytest.approx(told.latency_ms / first.latency_ms, rel=1e-3)


async def test_a_ported_kernel_may_be_slower_and_the_search_knows_it(bench: Bench) -> None:
    ported = TIMED.model_copy(update={"canonical": CANONICAL.model_copy(update={"ported": True})})
    other = CanonicalKernel(program="0" * 64, source=PROBLEM.kernel)
    found = await raised(bench, LEGACY, ported, PredictedLatency(latency_ms=1.25, canonical=other))
    assert (found.source, found.latency_ratio) == (PROBLEM.kernel, 1.25)
    (step,) = found.steps
    assert (step.technique, step.speedup) == ("raise", 0.8)
    assert step.title == "port the kernel to nki, in canonical form (predicted +25.0%)"


@pytest.mark.parametrize(("kept_ms", "hoisted"), [(1.0, ["hoist"]), (1.02, [])])
@pytest.mark.parametrize("ported", [True, False])
async def test_what_is_loaded_again_is_kept_unless_that_costs_something(
    bench: Bench, ported: bool, kept_ms: float, hoisted: list[str]
) -> None:
    canonical = CANONICAL.model_copy(update={"source": WEIGHTS_AGAIN, "ported": ported})
    timed = TIMED.model_copy(update={"canonical": canonical})
    answers = timed, timed, PredictedLatency(latency_ms=kept_ms)
    found = await raised(bench, LEGACY if ported else THEIRS, *answers, shape=(512, 512))
    assert [step.technique for step in found.steps] == ["raise", *hoisted]
    assert found.source.count("if i == 0:") == len(hoisted)


async def test_tiles_that_are_used_in_parts_are_split_before_the_search_begins(bench: Bench) -> None:
    halves = THEIRS.replace(
        "nl.sigmoid(t)", "nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)"
    ).replace(
        "            nisa.tensor_tensor(dst=s, data1=s, data2=t, op=nl.multiply)",
        "            nisa.activation(dst=s[0:64, :], op=nl.silu, data=t[0:64, :])\n"
        "            nisa.activation(dst=s[64:128, :], op=nl.sigmoid, data=t[64:128, :])\n"
        "            nisa.tensor_tensor(dst=s[64:, :], data1=s[64:, :], data2=t[64:, :], op=nl.multiply)",
    )
    (told,) = await bench.predict([halves], canonical=True)
    assert told.canonical is not None
    found = await raise_parent(
        bench.request(halves), halves, bench.predict, ask, problem_job_fields(PROBLEM.spec, "reduced", "trn2")
    )
    assert [step.technique for step in found.steps] == ["raise", "split_rows"]
    assert found.raised == told.canonical.source
    assert found.source.count("nl.ndarray((64, 512)") == 4
    assert found.latency_ratio <= 1.01


async def test_loops_that_hand_tiles_on_become_one_before_the_search_begins(bench: Bench) -> None:
    (told,) = await bench.predict([IN_THREE_LOOPS], canonical=True)
    assert told.canonical is not None
    assert told.canonical.source is not None
    assert told.canonical.source.count("\n    for ") == 3
    shapes = problem_job_fields(PROBLEM.spec, "reduced", "trn2")
    request = bench.request(IN_THREE_LOOPS)
    found = await raise_parent(request, IN_THREE_LOOPS, bench.predict, ask, shapes)
    assert [step.technique for step in found.steps] == ["raise", "fuse_loops"]
    assert found.source.count("for ") == 1
    assert found.latency_ratio <= 1.01


@pytest.mark.parametrize(("late_ms", "conditions"), [(1.005, 1), (1.02, 0)])
async def test_weights_are_loaded_in_the_first_iteration_unless_that_costs_something(
    bench: Bench, late_ms: float, conditions: int
) -> None:
    timed = TIMED.model_copy(update={"canonical": CANONICAL.model_copy(update={"source": WEIGHTS_FIRST})})
    fused = [PredictedLatency(latency_ms=ms) for ms in (late_ms, 1.0)][: 2 - conditions]
    found = await raised(bench, THEIRS, timed, timed, *fused, shape=(512, 512))
    assert [step.technique for step in found.steps] == ["raise", "fuse_loops"]
    assert found.source.count("for i in") == 1
    assert found.source.count("if i == 0:") == conditions


@pytest.mark.parametrize(("fused_ms", "kept"), [(0.5, False), (1.005, False), (1.02, True), (None, True)])
async def test_loops_are_fused_if_the_tiles_of_all_iterations_do_not_fit(
    bench: Bench, fused_ms: float | None, kept: bool
) -> None:
    source = TOO_MUCH.format(tile="j")
    timed = TIMED.model_copy(update={"canonical": CANONICAL.model_copy(update={"source": source})})
    fused = PredictedLatency(
        latency_ms=fused_ms, error=None if fused_ms else ErrorInfo(code="x", message="no time")
    )
    slower = PredictedLatency(latency_ms=1.1)  # all loops that hand data on as one
    found = await raised(bench, THEIRS, timed, timed, slower, fused, shape=(16384, 512))
    assert found.raised == source
    if kept:
        assert (found.source, len(found.steps)) == (source, 1)
        return
    assert [step.technique for step in found.steps] == ["raise", "fuse_loops", "fuse_loops"]
    assert "kept = nl.ndarray((128, 512)" in found.source
    assert found.latency_ratio == fused_ms
    gains = math.prod(step.speedup for step in found.steps)
    assert gains == pytest.approx(1 / found.latency_ratio, rel=1e-5)
    steps = [step.model_dump(mode="json") for step in found.steps[1:]]
    shapes = {"arguments": [[[16384, 512], "float32"]], "target": "trn2"}
    assert (await ask({"job": "replay", "source": source, "steps": steps, **shapes}))[
        "source"
    ] == found.source


async def test_what_fits_or_cannot_be_made_to_fit_is_not_fused() -> None:
    for tile, rows in (("127 - j", 16384), ("j", 1024)):
        source = TOO_MUCH.format(tile=tile).replace("16384", str(rows)).replace("(128):", f"({rows // 128}):")
        source = source.replace("range(128)]", f"range({rows // 128})]")
        shapes = {"arguments": [[[rows, 512], "float32"]], "target": "trn2"}
        assert await ask({"job": "fit", "source": source, **shapes}) == {"source": source, "steps": []}


async def test_a_raised_sequence_is_carried_out_again_to_the_same_kernel(bench: Bench) -> None:
    (told,) = await bench.predict([THEIRS])
    assert told.latency_ms is not None
    request = bench.request(THEIRS, told.latency_ms)
    seen = await bench.proposer.look_ahead(request, bench.blobs.get_blob, bench.predict)
    for data in seen.sources.values():
        bench.blobs.put(data)
    plan = plan_variant(seen.variants.found[0], seen.variants.parent_ms)
    asked = ImplementRequest(
        key="r1.b0.p0.k0.f0.executor", role="executor", draw=0, problem=PROBLEM.make_ref(), size="reduced",
        target="trn2", parent=request.parent, plan=plan,
    )  # fmt: skip
    made = await bench.proposer.implement(asked, bench.blobs.get_blob)
    assert digest_of(made.source.encode()) == seen.variants.found[0].source


async def test_a_readable_kernel_is_not_raised_but_its_tiles_become_clear(bench: Bench) -> None:
    shapes = problem_job_fields(PROBLEM.spec, "reduced", "trn2")
    assert (await ask({"job": "form", "source": PLAIN, **shapes}))["obstacles"] == []
    found = await raise_parent(bench.request(PLAIN), PLAIN, bench.predict, ask, shapes)
    assert found.steps == (CLEAR_TILES[0],)
    assert (found.raised, found.reason) == ("", "")
    assert found.source.count("nl.ndarray((128, 512)") == PLAIN.count("nl.ndarray((128, 512)") + 1
    assert found.latency_ratio <= 1.01
    one = Variant(steps=(), source=digest_of(b"kernel"), latency_ms=1.0)
    answer = LookAheadAnswer(Variants(parent_ms=1.0, found=(one,)), {one.source: b"kernel"}, 1, 0, 1)
    complete = found.complete(answer)
    assert complete.variants.found[0].steps == found.steps
    assert complete.sources == answer.sources


async def test_a_reason_is_told_once(bench: Bench) -> None:
    kept = (
        "            a = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)\n"
        "            nisa.activation(dst=a, op=nl.copy, data=t, reduce_op=nl.add, reduce_cmd=RESET)\n"
    ).replace("RESET", "nisa.reduce_cmd.reset_reduce")
    at = "            nisa.activation(dst=t"
    source = PLAIN.replace(at, f"{kept}{kept}{at}", 1)
    told = await read_original(source, bench.predict, PROBLEM.spec, "reduced", "trn2")
    assert told.readable
    (reason,) = told.reasons
    assert reason.startswith("the kernel was not raised: the raised kernel is no clearer: ")
    assert reason.count("memory that outlives the instruction") == 1


async def test_a_kernel_stays_as_it_is_if_its_time_is_up(bench: Bench) -> None:
    async def predict(*_: object, **__: object) -> list[PredictedLatency]:
        raise PredictionsEndedError

    shapes = problem_job_fields(PROBLEM.spec, "reduced", "trn2")
    assert await raise_parent(bench.request(PLAIN), PLAIN, predict, ask, shapes) == RaisedParent(PLAIN)


async def test_what_cannot_be_read_at_all_is_kept_with_its_reason(bench: Bench) -> None:
    source = PLAIN.replace("@nki.jit\n", "")
    told = await read_original(source, bench.predict, PROBLEM.spec, "reduced", "trn2")
    assert told.error is not None
    assert "write @nki.jit on the line above" in (told.error.hint or told.error.message)
    found = await raised(bench, source, PredictedLatency(error=ErrorInfo(code="x", message="no kernel")))
    assert (found.source, found.steps) == (source, ())
    assert "no kernel" in found.reason


async def test_a_kernel_without_a_latency_is_asked_for_once(bench: Bench) -> None:
    told = PredictedLatency(error=ErrorInfo(code="x", message="no time"))
    assert await raised(bench, PLAIN, told) == RaisedParent(PLAIN)


async def test_our_own_kernels_stay_as_they_are(bench: Bench) -> None:
    assert await raised(bench, PROBLEM.kernel) == RaisedParent(PROBLEM.kernel)
    assert await raised(bench, THEIRS, author="builtin") == RaisedParent(THEIRS)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([PredictedLatency(error=ErrorInfo(code="x", message="no time"))], "no time"),
        ([PredictedLatency(latency_ms=1.0)], "the evaluator knows no canonical form"),
        (
            [TIMED.model_copy(update={"canonical": CanonicalKernel(program="0" * 64, reason="too long")})],
            "too long",
        ),
        (
            [TIMED, TIMED.model_copy(update={"canonical": CanonicalKernel(program="0" * 64)})],
            "issues another program",
        ),
        ([TIMED, TIMED.model_copy(update={"latency_ms": 1.02})], "latency differs by +2.0%"),
        ([TIMED, PredictedLatency(error=ErrorInfo(code="x", message="no such tile"))], "no such tile"),
    ],
)
async def test_a_kernel_is_kept_where_raising_proves_nothing(
    bench: Bench, answers: list[PredictedLatency], reason: str
) -> None:
    found = await raised(bench, THEIRS, *answers)
    assert (found.source, found.steps) == (THEIRS, ())
    assert reason in found.reason


async def test_the_reason_for_keeping_a_kernel_comes_first(bench: Bench) -> None:
    variant = Variant(steps=(), source=digest_of(b"kernel"), latency_ms=1.0)
    answer = LookAheadAnswer(
        Variants(parent_ms=1.0, found=(variant,), reasons=("another",)), {variant.source: b"kernel"}, 1, 0, 1
    )
    assert RaisedParent(THEIRS, reason="kept").complete(answer).variants.reasons == ("kept", "another")
    assert RaisedParent(THEIRS).complete(answer) == answer


async def test_rewrites_start_from_the_raised_kernel(bench: Bench) -> None:
    step = RewriteStep(technique="raise", site="kernel", title="", choice={"source": digest_of(b"raised")})
    rest = (RewriteStep(technique="hoist", site="x", title=""),)
    bench.blobs.put(b"raised")
    assert split_raise("theirs", (step, *rest), bench.blobs.get_blob) == ("raised", rest)
    assert split_raise("theirs", rest, bench.blobs.get_blob) == ("theirs", rest)
