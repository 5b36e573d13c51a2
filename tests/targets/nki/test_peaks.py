"""The plain roofline against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds
from seeds import ProblemWork
from targets.base import UnknownTargetError
from targets.registry import load_target, target_names


def roofline_ms(work: ProblemWork, target: str) -> float:
    return load_target(target).peaks.roofline_ms(work)


def work(
    *,
    read: int = 0,
    write: int = 0,
    matmul: int = 0,
    other: int = 0,
    dtype: str = "float32",
    mx: bool = False,
) -> ProblemWork:
    return ProblemWork(
        read_bytes=read,
        write_bytes=write,
        matmul_flops=matmul,
        matmul_dtype=dtype,
        other_flops=other,
        activation_elements=0,
        elementwise_elements=0,
        mx=mx,
    )


@pytest.mark.parametrize(
    ("target", "found", "expected_ms"),
    [
        ("trn1", work(read=440_200_000_000), 1000.0),
        ("trn1", work(matmul=23_750_000_000_000), 1000.0),
        ("trn1", work(other=286_800_000_000), 1000.0),
        ("trn2", work(read=320_000_000_000, write=320_000_000_000), 1000.0),
        ("trn2", work(matmul=19_750_000_000_000), 1000.0),
        ("trn2", work(other=550_000_000_000), 1000.0),
        ("trn3", work(read=612_500_000_000), 1000.0),
        ("trn3", work(matmul=20_000_000_000_000), 1000.0),
        ("trn3", work(matmul=79_000_000_000_000, dtype="bfloat16"), 1000.0),
        ("trn3", work(matmul=315_000_000_000_000, dtype="bfloat16", mx=True), 1000.0),
        ("trn3", work(other=1_200_000_000_000), 1000.0),
        ("trn2", work(matmul=19_750_000_000_000, dtype="bfloat16", mx=True), 1000.0),
    ],
)
def test_a_second_of_each_resource(target, found, expected_ms):
    assert roofline_ms(found, target) == pytest.approx(expected_ms, rel=1e-12)


BOUND_BY = {
    "adamw": {"bytes": 448_266_240},  # five arrays of 10944 x 2048
    "add_rmsnorm_matmul": {"matmul": 17_179_869_184},  # 2 * 4096 * 2048 * 1024
    # 16 times 4096 x 64, 64 x 4096 and 4096 x 4096; 2 * 16 * 4096 * 64 * 4096
    "bmm": {"bytes": 1_107_296_256, "matmul": 34_359_738_368},
    "bmm_softmax": {"other": 1_342_177_280},  # 5 for each of 16 * 4096 * 4096 scores
    "gqa_full": {"matmul": 137_438_953_472},  # twice 2 * 16 * 4096 * 4096 * 128
    "lora": {"matmul": 533_649_686_528},  # as matmul, and 2 * 128 * (4096 * 5120 + 4096 * 12288)
    "mamba": {"other": 234_881_024},  # 8 for each of 256 * 16 * 7168 states
    "matmul": {"matmul": 515_396_075_520},  # 2 * 4096 * 12288 * 5120
    "matmul_add_rmsnorm": {"matmul": 34_359_738_368},  # 2 * 4096 * 2048 * 2048
    "rmsnorm_matmul": {"matmul": 17_179_869_184},  # 2 * 4096 * 2048 * 1024
    "rope_single_freq_apply": {"bytes": 402_653_184},  # three times 128 x 262144, counting cos and sin as one
    "silu": {"bytes": 234_881_024},  # twice 4096 x 7168
    "swiglu": {"matmul": 77_309_411_328},  # three times 2 * 4096 * 3072 * 1024
    "transpose_matmul": {"matmul": 183_609_851_904},  # 2 * 4096 * 10944 * 2048
}
"""What bounds each problem on one target or both, and how much of it there is at the full size."""
PER_SECOND = {
    "trn1": {"bytes": 440.2e9, "matmul": 23.75e12, "other": 286.8e9},
    "trn2": {"bytes": 640.0e9, "matmul": 19.75e12, "other": 550.0e9},
}


@pytest.mark.parametrize("target", PER_SECOND)
@pytest.mark.parametrize("name", seeds.builtin_problems())
def test_problems_by_hand(name, target):
    expected_s = max(amount / PER_SECOND[target][resource] for resource, amount in BOUND_BY[name].items())
    found = roofline_ms(seeds.load_problem(name).spec.minimal_work("full"), target)
    assert found == pytest.approx(expected_s * 1e3, rel=1e-9)


def test_unknown_target_names_those_known():
    known = ", ".join(target_names())
    with pytest.raises(UnknownTargetError, match=rf"unknown target 'trn9'.*\(known: {known}\)"):
        roofline_ms(work(read=1), "trn9")


amounts = st.integers(0, 10**15)


@given(amounts, amounts, amounts, amounts, st.sampled_from(target_names()))
def test_more_work_never_takes_less(read, write, matmul, other, target):
    base = roofline_ms(work(read=read, write=write, matmul=matmul, other=other), target)
    for more in ({"read": read + 7}, {"write": write + 7}, {"matmul": matmul + 7}, {"other": other + 7}):
        amounts_now = {"read": read, "write": write, "matmul": matmul, "other": other, **more}
        assert roofline_ms(work(**amounts_now), target) >= base
