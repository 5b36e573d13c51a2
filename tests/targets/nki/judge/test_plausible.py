"""How fast is too fast: bounds of the model and of the device, and latencies below them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import nki_sim
import seeds
from nki_sim import ArraySpec, targets
from nki_sim.timing.forecast import forecast_program
from nki_sim.timing.roofline import minimal_work as kernel_work
from remote.judge.rejection import RejectedError
from state.model import ErrorInfo, Evaluation, Verdict
from targets.nki.bounds import physical_bound, products_bound_ms, tight_bound_ms
from targets.nki.judge import program
from tests.targets.nki.prompts.test_examples import code

MATMUL = seeds.load_problem("matmul")
JUDGED = (MATMUL.spec, "full", "trn2")
WORK = MATMUL.spec.minimal_work("full")

MEASURED_MS = {
    "adamw": 0.5476,
    "bmm": 1.5592,
    "mamba": 0.7165,
    "rope_single_freq_apply": 0.687,
    "silu": 0.2938,
}
"""The fastest public measurements on trn2, p50 of nki.benchmark, of problems that products do not limit."""

PRODUCT = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((128, 128), dtype=nl.DTYPE, buffer=nl.sbuf)
    right = nl.ndarray((128, 512), dtype=nl.DTYPE, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    for i in range(30):
        nisa.nc_matmul(dst=acc, stationary=left, moving=right, accumulate=i > 0)
    found = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=found, src=acc)
    nisa.dma_copy(dst=out, src=found)
    return out
"""


@pytest.mark.parametrize(("name", "fastest_ms"), MEASURED_MS.items())
def test_nothing_that_was_measured_is_below_what_a_device_can_do(name, fastest_ms):
    spec = seeds.load_problem(name).spec
    assert physical_bound(spec.minimal_work("full"), "trn2").ms <= fastest_ms
    assert program.warn_implausible(fastest_ms, spec, "full", "trn2", said="measured") is None


def test_three_16_bit_products_for_one_of_float32_are_the_fastest_known_way():
    """A float32 product takes four passes of the tensor engine, its three 16-bit parts take three."""
    one_pass = replace(WORK, matmul_dtype="bfloat16")
    least_ms = physical_bound(WORK, "trn2").ms
    assert least_ms == pytest.approx(3 * physical_bound(one_pass, "trn2").ms)
    program.require_plausible_prediction(least_ms, *JUDGED)
    with pytest.raises(RejectedError) as caught:
        program.require_plausible_prediction(0.99 * least_ms, *JUDGED)
    assert caught.value.verdict is Verdict.RUNTIME_ERROR
    assert caught.value.error.code == "faster_than_bound"
    assert "3 passes" in caught.value.error.message


def test_the_bound_that_people_see_is_one_for_split_products_too():
    split = replace(WORK, matmul_flops=3 * WORK.matmul_flops, matmul_dtype="bfloat16")
    assert tight_bound_ms(WORK, "trn2") == tight_bound_ms(split, "trn2")
    overhead_ms = targets.load("trn2").kernel_overhead_ns / 1e6
    assert tight_bound_ms(WORK, "trn2") > physical_bound(WORK, "trn2").ms + overhead_ms


@pytest.mark.parametrize("name", seeds.builtin_problems())
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_the_model_is_never_faster_than_the_device(name, target):
    work = seeds.load_problem(name).spec.minimal_work("full")
    assert physical_bound(work, target).ms <= tight_bound_ms(work, target)


def test_a_problem_with_narrow_arrays_may_multiply_in_their_type():
    first, *rest = MATMUL.spec.inputs
    mixed = MATMUL.spec.model_copy(update={"inputs": (first.model_copy(update={"dtype": "bfloat16"}), *rest)})
    assert mixed.minimal_work("full").matmul_dtype == "bfloat16"


@pytest.mark.parametrize(("dtype", "passes"), [("float32", 4), ("bfloat16", 1)])
def test_products_take_the_passes_of_their_types(dtype, passes):
    arguments = [ArraySpec((128, 128), dtype), ArraySpec((128, 512), dtype)]
    traced = nki_sim.trace(PRODUCT.replace("DTYPE", dtype), args=arguments)
    bound_ms = products_bound_ms(traced, "trn2")
    assert bound_ms == pytest.approx(passes * 30 * 512 / 2.4e6)
    predicted_ms = forecast_program(traced, targets.load("trn2")).latency_ms
    assert program.warn_of_products(predicted_ms, traced, "trn2") == ()
    (warning,) = program.warn_of_products(0.99 * bound_ms, traced, "trn2")
    assert warning.code == "faster_than_products"


def test_mx_products_count_at_their_own_rate():
    """A kernel of the prompts' example: 512 rows of the contraction in the time of 128."""
    arguments = [ArraySpec((1024, 128), "float32"), ArraySpec((1024, 1024), "float32")]
    traced = nki_sim.trace(code("mx_product"), args=arguments, target="trn3")
    flops = 2 * 1024 * 128 * 1024
    assert products_bound_ms(traced, "trn3") == pytest.approx(flops / 314.57e9, rel=1e-3)
    least = kernel_work(traced)
    assert (least.matmul_flops, least.matmul_dtype) == (flops, "float8_e4m3fn_x4")


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_a_problem_that_allows_mx_may_be_faster_where_the_device_has_it(target):
    """A quarter of a 16-bit product's time, and a twelfth of the three that float32 takes."""
    allowed = replace(WORK, mx=True)
    ratio = tight_bound_ms(WORK, target) / tight_bound_ms(allowed, target)
    assert (ratio > 4) is (target == "trn3")
    assert ratio >= 1
    assert physical_bound(allowed, target).ms <= tight_bound_ms(allowed, target)


def test_verdicts_without_warnings_are_written_as_before_there_were_any():
    plain = Evaluation(verdict="correct", stage="profile", code="0" * 64, target="trn2", toolchain="t")
    assert "warnings" not in plain.model_dump_json()
    warned = Evaluation(**plain.model_dump(), warnings=(ErrorInfo(code="c", message="m"),))
    assert Evaluation.model_validate_json(warned.model_dump_json()) == warned
