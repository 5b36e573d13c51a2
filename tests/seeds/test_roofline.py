"""The plain roofline against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds
from seeds import UnknownTargetError, Work
from seeds.roofline import PEAKS, roofline_ms


def work(*, read: int = 0, write: int = 0, matmul: int = 0, other: int = 0) -> Work:
    return Work(
        read_bytes=read,
        write_bytes=write,
        matmul_flops=matmul,
        matmul_dtype="float32",
        other_flops=other,
        activation_elements=0,
        elementwise_elements=0,
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
    ],
)
def test_a_second_of_each_resource(target, found, expected_ms):
    assert roofline_ms(found, target) == pytest.approx(expected_ms, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "target", "expected_ms"),
    [
        # 2 * 4096 * 12288 * 5120 FLOPs = 515.396 GFLOP, matmul-bound on both.
        ("matmul", "trn1", 515.39607552 / 23.75),
        ("matmul", "trn2", 515.39607552 / 19.75),
        # 2 * 4096 * 2048 * 1024 = 17.1799 GFLOP.
        ("rmsnorm_matmul", "trn2", 17.179869184 / 19.75),
        # 2 * 4 * 4096 * 7168 bytes = 234.881 MB, bandwidth-bound.
        ("silu", "trn1", 234.881024 / 440.2),
        ("silu", "trn2", 234.881024 / 640.0),
    ],
)
def test_problems_by_hand(name, target, expected_ms):
    found = roofline_ms(seeds.load(name).spec.work_at("full"), target)
    assert found == pytest.approx(expected_ms, rel=1e-9)


def test_unknown_target_names_those_known():
    with pytest.raises(UnknownTargetError, match=r"unknown target 'trn9'.*\(known: trn1, trn2\)"):
        roofline_ms(work(read=1), "trn9")


amounts = st.integers(0, 10**15)


@given(amounts, amounts, amounts, amounts, st.sampled_from(sorted(PEAKS)))
def test_more_work_never_takes_less(read, write, matmul, other, target):
    base = roofline_ms(work(read=read, write=write, matmul=matmul, other=other), target)
    for more in ({"read": read + 7}, {"write": write + 7}, {"matmul": matmul + 7}, {"other": other + 7}):
        amounts_now = {"read": read, "write": write, "matmul": matmul, "other": other, **more}
        assert roofline_ms(work(**amounts_now), target) >= base
