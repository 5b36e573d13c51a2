"""How well predicted latencies agree with measured ones, in percent and in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import sqrt
from statistics import mean, median

Pair = tuple[float, float]
"""Measured and predicted."""

Scores = dict[str, float | None]

DIFFER_RATIO = 1.15
"""Variants of one kernel whose measured latencies are nearer to each other than this are no pair to order."""


def ape_percent(measured: float, predicted: float) -> float:
    """Absolute error in percent of what was measured."""
    return 100.0 * abs(predicted - measured) / measured


def scores(pairs: Sequence[Pair], ordered: Iterable[tuple[Pair, Pair]] | None = None) -> Scores:
    """The figures of a list of kernels; None where there are too few kernels for a figure.

    `ordered` are the pairs whose order counts, all pairs when it is None.
    """
    errors = [ape_percent(*pair) for pair in pairs]
    measured, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {
        "median_ape_percent": median(errors) if errors else None,
        "worst_ape_percent": max(errors, default=None),
        "spearman": correlation(ranks(measured), ranks(predicted)),
        "kendall": kendall(pairs),
        "pairwise_order_percent": order_percent(combinations(pairs, 2) if ordered is None else ordered),
    }


def order_percent(pairs: Iterable[tuple[Pair, Pair]]) -> float | None:
    """Share of pairs that the prediction orders as measured; a predicted tie is no order."""
    right = [(one[0] - other[0]) * (one[1] - other[1]) > 0 for one, other in pairs if one[0] != other[0]]
    return 100.0 * sum(right) / len(right) if right else None


def distinct(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, Pair]]:
    """The pairs of one group whose measured latencies differ by more than `DIFFER_RATIO`."""
    for one, other in combinations(pairs, 2):
        if max(one[0], other[0]) > DIFFER_RATIO * min(one[0], other[0]):
            yield one, other


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order, 1)))}
    return [first[value] + (order.count(value) - 1) / 2 for value in values]


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's; None when one side does not vary."""
    if len(xs) < 2:
        return None
    x_mean, y_mean = mean(xs), mean(ys)
    spread = sqrt(sum((x - x_mean) ** 2 for x in xs) * sum((y - y_mean) ** 2 for y in ys))
    shared = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return shared / spread if spread else None


def kendall(pairs: Sequence[Pair]) -> float | None:
    """Kendall's tau-b."""
    signs = [(_sign(one[0] - other[0]), _sign(one[1] - other[1])) for one, other in combinations(pairs, 2)]
    spread = sqrt(sum(x * x for x, _ in signs) * sum(y * y for _, y in signs))
    return sum(x * y for x, y in signs) / spread if spread else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
