"""The judge on programs, without processes: comparison of outputs, work limits, inputs it keeps."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds
from nki_sim import protocol
from nki_sim.errors import InputError, KernelError, LimitError
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program.ir import ArraySpec
from nki_sim.running.work import INSTRUCTION_UNITS
from remote.judge import suite, work_limits
from remote.judge.input_cache import InputCache
from remote.judge.job import JudgeJob, JudgeOutcome, JudgeReply
from remote.judge.numerics import BadReferenceError, output_fault, rel_l2
from seeds.inputs import draw_inputs
from state.model import Verdict
from targets.nki.judge.program import judge_program

PROBLEM = seeds.load_problem("silu")
SEED = 21


def relative(out, truth):
    truth = truth.astype(np.longdouble)
    return float(np.sqrt(((out - truth) ** 2).sum() / (truth**2).sum()))


@given(st.integers(1, 5), st.integers(1, 40), st.floats(0, 2), st.integers(0, 2**32 - 1))
def test_rel_l2_is_the_norm_of_the_difference_over_the_norm(rows, columns, noise, seed):
    generator = np.random.default_rng(seed)
    truth = generator.standard_normal((rows, columns)).astype(np.float32) + 3
    out = (truth * (1 + noise * generator.standard_normal((rows, columns)))).astype(np.float32)
    assert rel_l2([out], [truth]) == pytest.approx(relative(out, truth), rel=1e-9, abs=1e-12)


def test_rel_l2_over_more_elements_than_one_chunk():
    truth = np.ones((3, 1 << 20), dtype=np.float32)
    out = truth.copy()
    out[2, -1] = 1 + 1024
    assert rel_l2([out], [truth]) == pytest.approx(1024 / np.sqrt(3 * (1 << 20)))


def test_the_worst_output_counts():
    one = np.ones(4, dtype=np.float32)
    assert rel_l2([one, one * 2], [one, one]) == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_output_that_is_not_finite_is_infinitely_wrong(value):
    out = np.ones(4, dtype=np.float32)
    out[1] = value
    assert rel_l2([out], [np.ones(4, dtype=np.float32)]) == float("inf")


@pytest.mark.parametrize("reference", [np.zeros(4), np.array([1, np.nan, 1, 1]), np.ones(5)])
def test_a_reference_that_cannot_be_compared_with_is_refused(reference):
    with pytest.raises(BadReferenceError):
        rel_l2([np.ones(4, dtype=np.float32)], [reference.astype(np.float32)])


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([ArraySpec((256, 2048), "float32")], None),
        ([], "output_count"),
        ([ArraySpec((256, 2048), "float32")] * 2, "output_count"),
        ([ArraySpec((2048, 256), "float32")], "output_shape"),
        ([ArraySpec((1, 256, 2048), "float32")], "output_shape"),
        ([ArraySpec((256, 2048), "bfloat16")], "output_dtype"),
    ],
)
def test_output_faults(found, code):
    fault = output_fault(found, PROBLEM.spec, "reduced")
    assert (fault and fault[0]) == code


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    names = {}
    exec(PROBLEM.files["reference.py"], names)
    path = tmp_path_factory.mktemp("reference") / "out.npy"
    np.save(path, names["reference"](*draw_inputs(PROBLEM.spec, "reduced", SEED)))
    return str(path)


@pytest.fixture
def job(reference):
    return JudgeJob(
        spec=PROBLEM.spec,
        problem=PROBLEM.digest,
        size="reduced",
        target="trn2",
        references={SEED: (reference,)},
    )


def reply(source: str = PROBLEM.kernel, *, shape=(256, 2048), target: str = "trn2") -> bytes:
    return protocol.program_reply(trace_bytes(source, args=[ArraySpec(shape, "float32")], target=target))


def test_an_outcome_survives_the_wire(job):
    outcome = judge_program(job, reply(), InputCache(0))
    assert outcome.verdict is Verdict.CORRECT
    assert JudgeReply.model_validate_json(JudgeReply(result=outcome).model_dump_json()).result == outcome
    infinite = JudgeOutcome(verdict=Verdict.INCORRECT, stage="numerics", rel_l2={0: float("inf")})
    assert JudgeOutcome.model_validate_json(infinite.model_dump_json()) == infinite


@pytest.mark.parametrize(
    ("answer", "verdict", "code"),
    [
        (b"", Verdict.COMPILE_ERROR, "invalid_ir"),
        (b"garbage" * 100, Verdict.COMPILE_ERROR, "invalid_ir"),
        (reply()[:-1], Verdict.COMPILE_ERROR, "invalid_ir"),
        (reply() + b"x", Verdict.COMPILE_ERROR, "invalid_ir"),
        (protocol.program_reply(b"NKISIMIR" + bytes(100)), Verdict.COMPILE_ERROR, "invalid_ir"),
        (reply(shape=(128, 1024)), Verdict.COMPILE_ERROR, "invalid_ir"),
        (reply(target="trn1"), Verdict.COMPILE_ERROR, "invalid_ir"),
        (protocol.error_reply(KernelError("a", "b", 3, "c")), Verdict.COMPILE_ERROR, "a"),
        (
            protocol.error_reply(LimitError("limit_instructions", "b", 3)),
            Verdict.TIMEOUT,
            "limit_instructions",
        ),
        (protocol.error_reply(LimitError("limit_memory", "b")), Verdict.COMPILE_ERROR, "limit_memory"),
        (protocol.error_reply(InputError("forged")), Verdict.COMPILE_ERROR, "invalid_input"),
    ],
)
def test_hostile_and_failed_replies(answer, verdict, code, job):
    outcome = judge_program(job, answer, InputCache(0))
    assert (outcome.verdict, outcome.error.code) == (verdict, code)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_a_damaged_reply_is_a_verdict_whatever_the_damage(at, patch):
    good = reply()
    at %= len(good)
    damaged = good[:at] + patch + good[at + len(patch) :]
    harmless = JudgeJob(spec=PROBLEM.spec, problem="x", size="reduced", target="trn2", references={})
    outcome = judge_program(harmless, damaged, InputCache(0))
    assert (outcome.error is None) == (outcome.verdict is Verdict.CORRECT)


def test_work_without_measure_is_a_timeout_that_no_clock_decides(job, monkeypatch):
    monkeypatch.setattr(work_limits, "LEAST_LIMIT", 1000)
    monkeypatch.setattr(work_limits, "SLACK", 0)
    outcome = judge_program(job, reply(), InputCache(0))
    assert (outcome.verdict, outcome.stage) == (Verdict.TIMEOUT, "rules")
    assert outcome.error.code == "limit_work"


def test_the_limit_on_work_leaves_honest_kernels_room():
    largest = seeds.load_problem("matmul").spec
    plain = 30_720 * (128 * 128 + 128 * 512 * 2 + INSTRUCTION_UNITS)  # a matmul per step of 4096x12288x5120
    parts = 30_720 * (
        2 * 128 * 512 + 3 * 128 * 512 + 2 * INSTRUCTION_UNITS
    )  # a copy and a difference per step
    assert 3 * plain + parts < work_limits.work_limit(largest, "full") / 1.5
    larger = largest.model_copy(update={"sizes": {"full": {"M": 8192, "N": 12288, "K": 10240}}})
    assert work_limits.work_limit(larger, "full") > 3 * work_limits.work_limit(largest, "full")


def test_tiles_of_all_sets_may_take_what_they_need_of_the_whole():
    large, small = seeds.load_problem("matmul").spec, seeds.load_problem("mamba").spec
    one_tile = large.model_copy(update={"sizes": {"full": {"M": 512, "N": 512, "K": 1 << 20}}})
    capped = work_limits.TILE_RUNS * work_limits.work_limit(large, "full")
    assert work_limits.tile_work_limit(large, "full", 17) == capped
    assert work_limits.tile_work_limit(one_tile, "full", 17) == pytest.approx(
        17 * work_limits.work_limit(one_tile, "full"), rel=0.01
    )
    assert work_limits.tile_work_limit(small, "reduced", 17) == work_limits.LEAST_LIMIT


@pytest.mark.parametrize(("name", "whole"), [("swiglu", 3.1e9), ("mamba", 1.4e9)])
def test_a_tile_may_need_the_whole_kernel_on_every_set(name, whole):
    """Units of a whole run of `swiglu` with split products, and of a scan: each tile needs most of it."""
    spec = seeds.load_problem(name).spec
    sets = len(suite.all_sets(spec)) + 1
    assert whole < work_limits.work_limit(spec, "full")
    assert whole * sets < work_limits.tile_work_limit(spec, "full", sets)


def test_inputs_are_kept_up_to_the_limit_and_the_oldest_goes_first(job, monkeypatch):
    drawn = []

    def counted(spec, size, name, *secret):
        drawn.append(name)
        return [np.zeros(256, dtype=np.float32)]

    monkeypatch.setattr(suite, "draw_set", counted)
    cache = InputCache(2 * 1024)
    for name in ("0", "wide", "0", "equal", "0", "wide"):
        (array,) = cache.get(job, name)
        assert not array.flags.writeable
    assert drawn == ["0", "wide", "equal", "wide"]
    nothing = InputCache(1023)
    nothing.get(job, "7")
    nothing.get(job, "7")
    assert drawn[-2:] == ["7", "7"]


# -- what only running shows -----------------------------------------------------------------------

LOOP = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    corner = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=corner, src=x[0:1, 0:1])
    count = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=count, data=corner, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1={count})
    rows = nisa.register_alloc()
    nisa.register_load(rows, count)
    tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)

    def body(i):
        nisa.dma_copy(dst=tile, src=x.ap([[x.shape[1], 128], [1, x.shape[1]]], scalar_offset=i))
        nisa.activation(dst=tile, op=nl.silu, data=tile)
        nisa.dma_copy(dst=out.ap([[x.shape[1], 128], [1, x.shape[1]]], scalar_offset=i), src=tile)

    nl.fori_loop(0, rows, body, step={step})
    return out
"""


def test_a_loop_that_data_bounds_is_correct_and_has_no_latency(job):
    outcome = judge_program(job, reply(LOOP.format(count=256.0, step=128)), InputCache(0))
    assert outcome.verdict is Verdict.CORRECT
    assert (outcome.benchmark, outcome.error.code) == (None, "latency_unknown")
    assert outcome.error.line == LOOP.splitlines().index("    nl.fori_loop(0, rows, body, step={step})") + 1
    assert json.loads(outcome.profile)["counters"]["dynamic_loops"] == 1


def test_an_address_that_data_puts_out_of_bounds_is_the_kernels_fault(job):
    outcome = judge_program(job, reply(LOOP.format(count=512.0, step=128)), InputCache(0))
    assert (outcome.verdict, outcome.stage) == (Verdict.RUNTIME_ERROR, "numerics")
    assert outcome.error.line


def test_what_data_leave_unwritten_is_the_kernels_fault(job):
    outcome = judge_program(job, reply(LOOP.format(count=128.0, step=128)), InputCache(0))
    assert (outcome.verdict, outcome.error.code) == (Verdict.RUNTIME_ERROR, "tensor_output_not_written_to")


def test_a_loop_that_goes_on_too_long_is_a_timeout_that_no_clock_decides(job, monkeypatch):
    monkeypatch.setattr(work_limits, "LEAST_LIMIT", 1 << 23)
    monkeypatch.setattr(work_limits, "SLACK", 0)
    outcome = judge_program(job, reply(LOOP.format(count=128.0, step=1)), InputCache(0))
    assert (outcome.verdict, outcome.error.code) == (Verdict.TIMEOUT, "limit_work")


def test_returning_an_input_is_refused(job):
    traced = protocol.parse_reply(reply())
    forged = protocol.program_reply(replace(traced, outputs=traced.inputs).to_bytes())
    outcome = judge_program(job, forged, InputCache(0))
    assert (outcome.verdict, outcome.error.code) == (Verdict.INCORRECT, "output_is_input")
    assert "input x" in outcome.error.message


def test_a_kernel_on_two_cores_does_not_compete_with_those_on_one(job):
    outcome = judge_program(job, reply(f"{PROBLEM.kernel}\nkernel = silu[2]\n"), InputCache(0))
    assert (outcome.verdict, outcome.error.code) == (Verdict.COMPILE_ERROR, "core_count")


SPILLING = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = [nl.add(nl.load(x[0:128, :]), float(i)) for i in range({count})]
    for tile in tiles:
        nl.store(out[0:128, :], tile)
    for i in range(2):
        nl.store(out[i * 128 : (i + 1) * 128, :], nl.silu(nl.load(x[i * 128 : (i + 1) * 128, :])))
    return out
"""


def test_a_legacy_kernel_that_the_compiler_spills_is_timed_with_what_it_moves(job):
    fits, spills = (judge_program(job, reply(SPILLING.format(count=n)), InputCache(0)) for n in (16, 32))
    for found, spilled in ((fits, False), (spills, True)):
        assert (found.verdict, found.error, found.benchmark.predicted) == (Verdict.CORRECT, None, True)
        profile = json.loads(found.profile)
        assert (profile["counters"]["spill_reload_bytes"] > 0) == spilled
        assert bool(profile["spilled"]) == spilled
