"""How fast is too fast: the bound below which the judge takes a prediction for a flaw, not for a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

import seeds
from remote.judge.rejection import RejectedError
from state.model import Verdict
from targets.nki.bounds import tight_bound_ms
from targets.nki.judge import program

MATMUL = seeds.load_problem("matmul")
JUDGED = (MATMUL.spec, "full", "trn2")
WORK = MATMUL.spec.minimal_work("full")


def test_three_16_bit_products_for_one_of_float32_are_not_too_fast():
    """A float32 product takes four passes of the tensor engine, its three 16-bit parts take three."""
    overhead_ms = tight_bound_ms(replace(WORK, matmul_flops=0, read_bytes=0, write_bytes=0), "trn2")
    honest_ms = 0.75 * (tight_bound_ms(WORK, "trn2") - overhead_ms) + overhead_ms
    assert honest_ms < tight_bound_ms(WORK, "trn2")
    program.require_plausible_latency(honest_ms, *JUDGED)


def test_below_one_16_bit_product_for_each_of_float32_nothing_is_honest():
    least_ms = tight_bound_ms(replace(WORK, matmul_dtype="bfloat16"), "trn2")
    program.require_plausible_latency(least_ms, *JUDGED)
    with pytest.raises(RejectedError) as caught:
        program.require_plausible_latency(0.99 * least_ms, *JUDGED)
    assert caught.value.verdict is Verdict.RUNTIME_ERROR
    assert caught.value.error.code == "faster_than_bound"
