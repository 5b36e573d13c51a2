"""Intervals from the errors on measured kernels: what counts, what is unlike, and how sure orders are."""

from __future__ import annotations

import random
from dataclasses import replace
from math import exp, log

import pytest

import nki_sim
from nki_sim.timing.kernel_traits import KernelTraits
from nki_sim.timing.residuals import (
    ORDER_PERCENTS,
    OrderedPair,
    Residual,
    ResidualTable,
    load_residuals,
    order_ratios,
    weighted_quantile,
)


def traits(
    target: str = "trn2",
    namespace: str = "nki",
    bound: str = "dma",
    *,
    latency_ms: float = 1.0,
    operators: tuple[str, ...] = ("dma_copy",),
) -> KernelTraits:
    return KernelTraits(target, namespace, bound, latency_ms, frozenset(operators))


def table(*rows: Residual) -> ResidualTable:
    return ResidualTable(nki_sim.MODEL_VERSION, rows)


def test_the_table_in_the_package_is_of_this_model() -> None:
    found = load_residuals()
    assert found.model_version == nki_sim.MODEL_VERSION, (
        "run: python benchmarks/fidelity.py --stored --families --write"
    )
    assert len({one.family for one in found.rows}) >= 10
    assert ResidualTable.from_json(found.to_json()) == found
    percents, ratios = zip(*found.order_confidence, strict=True)
    assert set(percents) <= set(ORDER_PERCENTS)
    assert list(ratios) == sorted(ratios)
    assert min(ratios) >= 1.0


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_quantiles_leave_the_share_of_weight_on_each_side(share: float) -> None:
    rng = random.Random(1)
    values = [rng.gauss(0, 1) for _ in range(300)]
    weights = [rng.uniform(0.1, 2) for _ in values]
    found = weighted_quantile(values, weights, share)
    beyond = sum(weight for value, weight in zip(values, weights, strict=True) if value > found)
    below = sum(weight for value, weight in zip(values, weights, strict=True) if value < found)
    assert beyond <= (1 - share) * sum(weights) + max(weights)
    assert below <= share * sum(weights) + max(weights)


def test_families_have_one_vote_whatever_their_size() -> None:
    """One family with two hundred small errors does not hide nine others with large ones."""
    crowd = [Residual("crowd", 0.0, traits()) for _ in range(200)]
    others = [Residual(f"family {number}", 0.1 * number, traits()) for number in range(1, 10)]
    found = table(*crowd, *others).bound_latency(traits())
    assert found.high == pytest.approx(exp(0.9))
    assert (found.low, found.families, found.unlike) == (1.0, 10, "")


def test_kernels_of_the_same_kind_count_more() -> None:
    rows = [Residual(f"near {number}", 0.02 * number, traits()) for number in range(10)]
    far = [Residual(f"far {number}", 1.0, traits("trn1", "neuronxcc", "tensor")) for number in range(5)]
    assert table(*rows, *far).bound_latency(traits()).high < 1.25
    assert table(*rows, *far).bound_latency(traits("trn1", "neuronxcc", "tensor")).high > 2


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (traits("trn1"), "no kernel of the namespace nki was measured on trn1"),
        (traits(operators=("local_gather", "dma_copy")), "spends its time in local_gather"),
        (traits(bound="gpsimd"), "bound by gpsimd"),
        (traits(latency_ms=900.0), "predicted to take 0.5 to 2 ms"),
    ],
)
def test_what_is_far_from_all_data_says_so_and_has_a_wider_interval(asked: KernelTraits, why: str) -> None:
    made = table(
        *(
            Residual(f"family {number}", error, traits(latency_ms=latency_ms))
            for number, (error, latency_ms) in enumerate([(-0.3, 0.5), (0.0, 1.0), (0.4, 2.0)])
        )
    )
    like, unlike = made.bound_latency(traits()), made.bound_latency(asked)
    assert like.unlike == ""
    assert why in unlike.unlike
    assert unlike.low < like.low < 1 < like.high < unlike.high


def test_without_measurements_nothing_is_like_anything() -> None:
    assert table().bound_latency(traits()).unlike


def test_a_family_left_out_leaves_no_row() -> None:
    made = table(Residual("a", 0.1, traits()), Residual("b", 0.2, traits()))
    assert {one.family for one in made.without("a").rows} == {"b"}


def test_errors_are_in_percent_of_what_was_measured() -> None:
    made = table(
        Residual("a", log(2.0), traits()),  # 2 ms measured, 1 ms predicted
        Residual("b", log(0.5), traits(namespace="neuronxcc")),
        Residual("c", log(4.0), traits("trn1")),
    )
    assert made.percent_errors("trn2") == pytest.approx([50.0, 100.0])
    assert made.percent_errors("trn2", "nki") == pytest.approx([50.0])
    assert made.percent_errors("trn3") == []


def test_ratios_of_levels_rise_and_pairs_beyond_them_are_as_often_in_order() -> None:
    rng = random.Random(3)
    pairs = [
        OrderedPair(ratio, rng.random() < min(0.99, ratio - 0.5))
        for ratio in (rng.uniform(1, 1.5) for _ in range(3000))
    ]
    found = order_ratios(pairs)
    assert list(found) == sorted(found)
    for percent, ratio in zip(ORDER_PERCENTS, found, strict=True):
        near = [one.in_order for one in pairs if ratio <= one.ratio < ratio + 0.05]
        if len(near) > 100:
            assert 100 * sum(near) / len(near) > percent - 8


def test_a_level_that_no_pairs_reach_is_never_said() -> None:
    assert order_ratios([OrderedPair(1.1, True), OrderedPair(1.2, False)])[-1] == float("inf")
    one_family = [OrderedPair(2.0, True, 0.1)] * 10
    assert order_ratios(one_family)[-1] == float("inf")  # right every time, but one vote is not enough
    made = ResidualTable(1, (), order_ratios([OrderedPair(1.1, False)]))
    assert made.order_confidence == ()


def test_where_nothing_was_measured_an_order_is_half_as_sure() -> None:
    """Measured pairs of other targets say something, and less: trn3 has none."""
    found = load_residuals()
    assert found.order_confidence_on("trn2") == found.order_confidence_on("trn1") == found.order_confidence
    doubted = found.order_confidence_on("trn3")
    for (percent, ratio), (known, same) in zip(doubted, found.order_confidence, strict=True):
        assert ratio == same
        assert percent - 50 == pytest.approx((known - 50) / 2)


def test_every_kernel_of_trainium3_is_unlike_anything_measured() -> None:
    found = load_residuals()
    rows = [replace(one.traits, target="trn3") for one in found.rows]
    for traits in rows:
        bounds = found.bound_latency(traits)
        assert bounds.unlike == f"no kernel of the namespace {traits.namespace} was measured on trn3"
        assert bounds.families == 0
        assert bounds.low < 1 < bounds.high
