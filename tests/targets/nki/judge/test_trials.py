"""Numerics on the suite: kernels that random normal inputs let pass, and honest ones that must stay."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import seeds
from nki_sim import protocol
from nki_sim.errors import LimitError
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program.ir import ArraySpec
from remote.judge import suite, tiles, work_limits
from remote.judge.input_cache import InputCache
from remote.judge.job import JudgeJob
from remote.judge.numerics import BadReferenceError
from remote.judge.rejection import StageFailedError
from remote.judge.tiled_reference import make_tiled_reference
from state.model import Verdict
from targets.nki.judge import program, trials
from targets.nki.judge.identity.stage import IdentityFailedError
from targets.nki.judge.program import judge_program
from tests.support.sweeps import parametrize_sweep

INPUTS = InputCache(64 << 20)


@cache
def reference(name: str):
    names = {}
    exec(seeds.load_problem(name).files["reference.py"], names)
    return names["reference"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Makes jobs on all sets' tiles, or on whole outputs of the first seed; files are made once."""
    folder, made = tmp_path_factory.mktemp("references"), {}

    def job(name: str, *, whole: bool = False) -> JudgeJob:
        if (name, whole) not in made:
            problem = seeds.load_problem(name)
            files = _whole(folder, problem) if whole else _tiles(folder, problem)
            made[name, whole] = JudgeJob(
                spec=problem.spec, problem=problem.digest, size="reduced", target="trn2", **files
            )
        return made[name, whole]

    return job


def _whole(folder, problem):
    seed = problem.spec.seeds[0]
    path = folder / f"{problem.name}.npy"
    np.save(path, reference(problem.name)(*suite.draw_set(problem.spec, "reduced", str(seed))))
    return {"references": {seed: (str(path),)}}


def _tiles(folder, problem):
    pool, found = (
        tiles.make_tile_pool(problem.spec, "reduced", ""),
        make_tiled_reference(reference(problem.name), problem.spec, "reduced"),
    )
    paths = {}
    for name in ("0", *suite.adversarial_sets(problem.spec)):
        inputs = suite.draw_set(problem.spec, "reduced", name)
        with np.errstate(all="ignore"):
            truth = found.evaluate(inputs, pool)
            honest = found.reordering_error(inputs, pool, truth)
        paths[name] = str(folder / f"{problem.name}-{name}.npz")
        np.savez(paths[name], honest=honest, **{str(at): array for at, array in enumerate(truth)})
    return {"references": {}, "excerpts": paths}


def outcome(job: JudgeJob, source: str):
    dims = job.spec.dims(job.size)
    args = [ArraySpec(item.resolve_shape(dims), item.dtype) for item in job.spec.inputs]
    reply = protocol.program_reply(trace_bytes(source, args=args, target=job.target))
    return judge_program(job, reply, INPUTS)


def edited(name: str, *changes: tuple[str, str]) -> str:
    kernel = seeds.load_problem(name).kernel
    for old, new in changes:
        assert old in kernel, old
        kernel = kernel.replace(old, new)
    return kernel


LENIENT = {
    "maximum of half the row": (
        "bmm_softmax", ("data=scores, axis=1", "data=scores[:, 0 : n // 2], axis=1"),
    ),
    "maximum that begins at zero": (
        "bmm_softmax",
        (
            "            exps = nl",
            """            nisa.tensor_scalar(dst=neg_max, data=neg_max, op0=nl.minimum, operand0=0.0)
            exps = nl""",
        ),
    ),
    "no maximum at all": (
        "bmm_softmax", ("op=nl.exp, data=scores, bias=neg_max", "op=nl.exp, data=scores"),
    ),
    "no epsilon under the root": ("add_rmsnorm_matmul", (", op1=nl.add, operand1=EPSILON", "")),
    "no epsilon beside the root": ("adamw", ("op0=nl.add, operand0=EPSILON", "op0=nl.add, operand0=0.0")),
    "a term that hardly counts": ("adamw", ("multiply, operand0=BETA_2", "multiply, operand0=1.0")),
    "a sigmoid that overflows": (
        "silu",
        ("scale=-1.0", "scale=1.0"),
        ("data1=x_tile, data2=sigmoid", "data1=x_tile, data2=gate"),
        (
            "            out_tile = nl",
            """            gate = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=gate, data1=exp_neg, data2=sigmoid, op=nl.multiply)
            out_tile = nl""",
        ),
    ),
}  # fmt: skip


@parametrize_sweep(
    ("name", "changes"),
    [(name, rest) for name, *rest in LENIENT.values()],
    ids=LENIENT,
    quick=["no maximum at all", "no epsilon under the root"],
)
def test_what_random_inputs_let_pass_the_suite_catches(name, changes, jobs):
    source = edited(name, *changes)
    assert outcome(jobs(name, whole=True), source).verdict is Verdict.CORRECT
    found = outcome(jobs(name), source)
    assert (found.verdict, found.stage) == (Verdict.INCORRECT, "numerics")
    assert found.error.code in {"wrong_result", "not_finite"}
    assert "input set" in found.error.message


NARROWED = (
    (
        "ratio = nl.ndarray((size, TILE_N), dtype=nl.float32",
        "ratio = nl.ndarray((size, TILE_N), dtype=nl.bfloat16",
    ),
    ("m2 = nl.ndarray((size, TILE_N), dtype=nl.float32", "m2 = nl.ndarray((size, TILE_N), dtype=nl.bfloat16"),
)


@pytest.mark.parametrize("change", NARROWED)
@pytest.mark.parametrize("whole", [False, True])
def test_a_small_term_in_half_precision_is_found_in_the_program(change, whole, jobs):
    """Whole outputs would not show it: the term is a ten-thousandth of the result."""
    found = outcome(jobs("adamw", whole=whole), edited("adamw", change))
    assert (found.verdict, found.error.code) == (Verdict.INCORRECT, "low_precision")
    assert "bfloat16" in found.error.message
    assert found.error.line


HARMLESS = """            half = nl.ndarray((size, TILE_N), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_copy(dst=half, src={half})
            rest = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=rest, data1={whole}, data2=half, op=nl.subtract)
            {use}
            ratio = nl"""
IGNORED = "nisa.tensor_scalar(dst=rest, data=rest, op0=nl.multiply, operand0={factor})"
ADDED = "nisa.tensor_tensor(dst={whole}, data1={whole}, data2=rest, op=nl.add)"
EXCUSES = {
    "a subtraction that nothing uses": {"half": "m2", "whole": "m2", "use": ""},
    "one of other numbers": {"half": "m2", "whole": "v2", "use": ""},
    "one that is multiplied away": {
        "half": "m2",
        "whole": "m2",
        "use": "\n            ".join([IGNORED.format(factor=0.0), ADDED.format(whole="m2")]),
    },
}


@pytest.mark.parametrize("excuse", EXCUSES)
def test_a_subtraction_of_mixed_widths_excuses_nothing(excuse, jobs):
    source = edited("adamw", NARROWED[0])
    assert "            ratio = nl" in source
    source = source.replace("            ratio = nl", HARMLESS.format(**EXCUSES[excuse]))
    found = outcome(jobs("adamw"), source)
    assert (found.verdict, found.error.code) == (Verdict.INCORRECT, "low_precision"), found.error


PARTS = """            whole = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=whole, src=x_tile)
            high = nl.ndarray((TILE_M, TILE_N), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_copy(dst=high, src=whole)
            low = nl.ndarray((TILE_M, TILE_N), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=low, data1=whole, data2=high, op=nl.subtract)
            x_tile = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=x_tile, data1=high, data2=low, op=nl.add)
            exp_neg = nl"""


SUBTRACTED = "nisa.tensor_tensor(dst=low, data1=whole, data2=high, op=nl.subtract)"
SUBTRACTIONS = (
    SUBTRACTED,
    (
        "nisa.scalar_tensor_tensor(dst=low, data=high, op0=nl.multiply, operand0=-1.0,"
        " op1=nl.add, operand1=whole)"
    ),
)


@parametrize_sweep("subtracted", SUBTRACTIONS, quick=1)
def test_numbers_in_two_narrow_parts_are_judged_by_their_accuracy(subtracted, jobs):
    parts = PARTS.replace(SUBTRACTED, subtracted)
    found = outcome(jobs("silu"), edited("silu", ("            exp_neg = nl", parts)))
    assert found.verdict is Verdict.CORRECT, found.error
    assert found.rel_l2[0] > 1e-6


@parametrize_sweep("name", ["silu", "bmm_softmax", "add_rmsnorm_matmul", "adamw", "mamba"], quick=1)
def test_honest_kernels_pass_on_all_sets(name, jobs):
    found = outcome(jobs(name), seeds.load_problem(name).kernel)
    assert found.verdict is Verdict.CORRECT, found.error


def test_a_kernel_that_writes_to_its_input_is_refused(jobs):
    line = "            nisa.dma_copy(dst=x[0:TILE_M, 0:TILE_N], src=x_tile)\n            exp_neg = nl"
    found = outcome(jobs("silu"), edited("silu", ("            exp_neg = nl", line)))
    assert (found.verdict, found.stage, found.error.code) == (Verdict.INCORRECT, "rules", "input_modified")
    assert found.error.line


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        ("src=out_tile,", "src=out_tile if i_m == 0 or i_n == 0 else x_tile,"),
        ("src=out_tile,", "src=x_tile if i_m * TILE_M + TILE_M == m else out_tile,"),
        ("op=nl.exp, data=x_tile, scale=-1.0", "op=nl.exp, data=x_tile, scale=0.0"),
    ],
)
def test_small_tiles_of_an_output_show_what_is_wrong_in_them(change, jobs, monkeypatch, tmp_path):
    monkeypatch.setattr(tiles, "MAX_WHOLE_ELEMENTS", 1 << 16)
    problem = seeds.load_problem("silu")
    job = jobs("silu").model_copy(update=_tiles(tmp_path, problem))
    assert len(tiles.make_tile_pool(problem.spec, "reduced", "")) == tiles.POOL_SIZE
    assert outcome(job, problem.kernel).verdict is Verdict.CORRECT
    found = outcome(job, edited("silu", change))
    assert (found.verdict, found.error.code) == (Verdict.INCORRECT, "wrong_result")


def test_what_no_tile_shows_whole_outputs_do(jobs, monkeypatch, tmp_path):
    monkeypatch.setattr(tiles, "MAX_WHOLE_ELEMENTS", 1 << 16)
    monkeypatch.setattr(tiles, "_SHAPE", (16, 64))
    problem = seeds.load_problem("silu")
    shown = np.zeros((256, 2048), dtype=bool)
    for tile in tiles.make_tile_pool(problem.spec, "reduced", ""):
        shown[tile.index] = True
    unseen = ~shown.reshape(256, 16, 128).any(axis=2)
    row, block = next(zip(*np.nonzero(unseen[:128:32] & unseen[1:128:32]), strict=True))
    at = f"i_m == 0 and i_n == {block * 128 // 1024}"
    place = f"{row * 32} : {row * 32 + 2}, {block * 128 % 1024} : {block * 128 % 1024 + 128}"
    wrong = f"""            if {at}:
                nisa.memset(dst=out_tile[{place}], value=0.0)

            nisa.dma_copy(
                dst=out["""
    source = edited("silu", ("            nisa.dma_copy(\n                dst=out[", wrong))
    sliced = jobs("silu").model_copy(update=_tiles(tmp_path, problem))
    assert outcome(sliced, source).verdict is Verdict.CORRECT
    both = sliced.model_copy(update=_whole(tmp_path, problem))
    found = outcome(both, source)
    assert (found.verdict, found.error.code) == (Verdict.INCORRECT, "wrong_result")


ENDLESS = """    again = lambda i: i
    nl.while_loop(nisa.register_alloc(1), again)
    return out"""
ROUNDS = """    spare = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=spare, value=0.0)
    def again(i):
        nisa.memset(dst=spare, value=1.0)
    nl.fori_loop(0, nisa.register_alloc(3), again)
    return out"""


def test_a_loop_that_no_output_needs_must_end_all_the_same(jobs, monkeypatch):
    monkeypatch.setattr(work_limits, "LEAST_LIMIT", 1 << 27)
    found = outcome(jobs("silu"), edited("silu", ("    return out", ENDLESS)))
    assert (found.verdict, found.stage, found.error.code) == (Verdict.TIMEOUT, "numerics", "limit_work")
    found = outcome(jobs("silu"), edited("silu", ("    return out", ROUNDS)))
    assert (found.verdict, found.error.code) == (Verdict.CORRECT, "latency_unknown")


def test_a_damaged_excerpt_is_no_verdict(jobs, tmp_path):
    path = tmp_path / "0.npz"
    path.write_bytes(b"no archive")
    job = jobs("silu").model_copy(update={"excerpts": {"0": str(path)}})
    with pytest.raises(BadReferenceError):
        outcome(job, seeds.load_problem("silu").kernel)


# -- tolerance -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "honest", "tolerance"),
    [
        ("wide", 0.0, 2e-5),
        ("wide", 1e-7, 2e-5),
        ("wide", 1e-5, 8e-5),
        ("wide", 1e-2, None),
        ("wide", float("inf"), None),
        ("huge", 1e-6, 2e-5),
        ("huge", 1e-5, None),
        ("21", 1e-5, 8e-5),
    ],
)
def test_the_tolerance_follows_the_honest_error(name, honest, tolerance):
    assert trials.set_tolerance(name, honest, 2e-5) == (
        None if tolerance is None else pytest.approx(tolerance)
    )


def test_a_seed_without_a_finite_reference_is_the_problems_fault():
    with pytest.raises(BadReferenceError):
        trials.set_tolerance("21", float("inf"), 2e-5)


# --- whatever a stage raises -----------------------------------------------------------


def fail_with(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_limit_that_a_stage_meets_is_a_verdict(jobs, monkeypatch):
    monkeypatch.setattr(program.checks, "check", fail_with(LimitError("limit_work", "too many pairs")))
    found = outcome(jobs("silu"), seeds.load_problem("silu").kernel)
    assert (found.verdict, found.stage, found.error.code) == (Verdict.TIMEOUT, "rules", "limit_work")


def test_another_error_names_its_stage(jobs, monkeypatch):
    monkeypatch.setattr(program, "forecast_program", fail_with(ZeroDivisionError("no clock")))
    with pytest.raises(StageFailedError, match="stage timing: ZeroDivisionError: no clock"):
        outcome(jobs("silu"), seeds.load_problem("silu").kernel)


def test_a_formula_that_cannot_be_compared_is_tested_with_a_warning(jobs, monkeypatch):
    monkeypatch.setattr(program, "identify", fail_with(IdentityFailedError("no room")))
    found = outcome(jobs("silu"), seeds.load_problem("silu").kernel)
    assert (found.verdict, found.identity.verdict) == (Verdict.CORRECT, "tested")
    assert [one.code for one in found.warnings] == ["identity_failed"]
