"""Intervals that cover: what the model got wrong on measured kernels says how wrong it may be on this one.

The table holds one row for each measured kernel: its traits and the logarithm of measured over predicted
latency. That prediction came from constants fitted without the kernel's family, so the errors are those on
families that the model has not seen. `benchmarks/fidelity.py --families --store` makes the table.

The interval is split conformal prediction with weights. Each family has one vote, shared by its kernels. Rows
of another target, namespace or bound count less. A kernel that has no similar row is unlike anything
measured: its interval is wider, and says why.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, inf, log
from pathlib import Path
from typing import Any, Self

from nki_sim.timing.kernel_traits import KernelTraits

NOMINAL = 0.9
"""Share of kernels of unseen families whose measured latency should lie in the interval."""

OTHER_TARGET, OTHER_NAMESPACE, OTHER_BOUND = 0.5, 0.5, 0.3
"""Weight of a row that differs in one trait; the factors of several multiply."""

UNLIKE_STRETCH = 1.5
"""How much wider, on a logarithmic scale, intervals of kernels are that resemble nothing measured."""

UNMEASURED_SHARE = 0.5
"""How much of what measured pairs say of an order, beyond even odds, counts on a target without any."""

ORDER_PERCENTS = (55.0, 60.0, 70.0, 80.0, 90.0, 95.0, 98.0)
"""Levels for which the table says how far apart predictions must be for their order to be that sure."""

BIN_VOTES = 3.0
"""Votes of families that pairs of similar ratios must have together before they say how sure an order is."""

DOUBT = 0.1
"""Votes that are taken to be against any order."""

_FILE = Path(__file__).with_name("residuals.json")
_LATENCY_MARGIN = 4.0


@dataclass(frozen=True, slots=True)
class Residual:
    """One measured kernel: `log_error` is ln(measured / predicted), from a fit without its family."""

    family: str
    log_error: float
    traits: KernelTraits


@dataclass(frozen=True, slots=True)
class OrderedPair:
    """Two measured kernels for the same work: the ratio of their predictions, at least 1, and its vote."""

    ratio: float
    in_order: bool
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class LatencyBounds:
    """Factors on a predicted latency. `unlike` says why nothing measured resembles the kernel, or is empty.

    `families` counts the measured families of the same target and namespace.
    """

    low: float
    high: float
    families: int
    unlike: str = ""


@dataclass(frozen=True, slots=True)
class ResidualTable:
    """The errors on measured kernels, and from which ratio of predictions on their order is how sure.

    `order_ratios[k]`: two predictions of kernels for the same work that differ by this ratio are in the order
    of the measurements in `ORDER_PERCENTS[k]` percent of the measured pairs. Levels that no pairs reach are
    left out.
    """

    model_version: int
    rows: tuple[Residual, ...]
    order_ratios: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """Read what `to_json` made."""
        rows = (
            Residual(str(row["family"]), float(row["log_error"]), KernelTraits.from_json(row))
            for row in table["rows"]
        )
        return cls(int(table["model_version"]), tuple(rows), tuple(map(float, table["order_ratios"])))

    def to_json(self) -> dict[str, Any]:
        """The table as a JSON object."""
        return {
            "model_version": self.model_version,
            "nominal_percent": 100 * NOMINAL,
            "order_percents": list(ORDER_PERCENTS),
            "order_ratios": [ratio for ratio in self.order_ratios if ratio < inf],
            "rows": [
                {"family": one.family, "log_error": one.log_error, **one.traits.to_json()}
                for one in self.rows
            ],
        }

    @property
    def order_confidence(self) -> tuple[tuple[float, float], ...]:
        """The levels that measured pairs reach, each with its ratio."""
        pairs = zip(ORDER_PERCENTS, self.order_ratios, strict=False)
        return tuple((percent, ratio) for percent, ratio in pairs if ratio < inf)

    def order_confidence_on(self, target: str) -> tuple[tuple[float, float], ...]:
        """The levels for kernels of a target; where nothing was measured, they are nearer to even odds."""
        if any(one.traits.target == target for one in self.rows):
            return self.order_confidence
        return tuple(
            (50.0 + UNMEASURED_SHARE * (percent - 50.0), ratio) for percent, ratio in self.order_confidence
        )

    def percent_errors(self, target: str, *namespaces: str) -> list[float]:
        """How far each measured kernel of a target was predicted from its latency, in percent of that.

        With `namespaces`, only kernels in these.
        """
        return [
            100 * abs(exp(-one.log_error) - 1)
            for one in self.rows
            if one.traits.target == target and (not namespaces or one.traits.namespace in namespaces)
        ]

    def without(self, family: str) -> ResidualTable:
        """The table as it would be if no kernel of this family had been measured, on any target."""
        rows = tuple(one for one in self.rows if one.family != family)
        return ResidualTable(self.model_version, rows, self.order_ratios)

    def bound_latency(self, traits: KernelTraits) -> LatencyBounds:
        """The factors between which measured over predicted latency should lie for a kernel of this kind."""
        if not self.rows:
            return LatencyBounds(1.0, 1.0, 0, "no kernel was measured")
        unlike = self._describe_difference(traits)
        weights = self._weights(traits)
        errors = [one.log_error for one in self.rows]
        tail = (1 - NOMINAL) / 2
        low, high = weighted_quantile(errors, weights, tail), weighted_quantile(errors, weights, 1 - tail)
        if unlike:
            low, high = UNLIKE_STRETCH * min(low, 0.0), UNLIKE_STRETCH * max(high, 0.0)
        same = {one.family for one in self.rows if _is_same_kind(one.traits, traits)}
        return LatencyBounds(min(1.0, exp(low)), max(1.0, exp(high)), len(same), unlike)

    def _weights(self, traits: KernelTraits) -> list[float]:
        sizes = Counter(one.family for one in self.rows)
        return [_likeness(one.traits, traits) / sizes[one.family] for one in self.rows]

    def _describe_difference(self, traits: KernelTraits) -> str:
        """Why nothing measured resembles a kernel; empty if something does."""
        same = [one.traits for one in self.rows if _is_same_kind(one.traits, traits)]
        if not same:
            return f"no kernel of the namespace {traits.namespace} was measured on {traits.target}"
        unknown = traits.operators - frozenset[str]().union(*(one.operators for one in same))
        if unknown:
            return f"no measured kernel spends its time in {', '.join(sorted(unknown))}"
        if not any(one.bound == traits.bound for one in same):
            return f"no measured kernel is bound by {traits.bound}"
        shortest, longest = min(one.latency_ms for one in same), max(one.latency_ms for one in same)
        if not shortest / _LATENCY_MARGIN <= traits.latency_ms <= _LATENCY_MARGIN * longest:
            return f"measured kernels are predicted to take {shortest:.3g} to {longest:.3g} ms"
        return ""


def _is_same_kind(one: KernelTraits, other: KernelTraits) -> bool:
    return (one.target, one.namespace) == (other.target, other.namespace)


def _likeness(one: KernelTraits, other: KernelTraits) -> float:
    factors = (
        (one.target == other.target, OTHER_TARGET),
        (one.namespace == other.namespace, OTHER_NAMESPACE),
        (one.bound == other.bound, OTHER_BOUND),
    )
    weight = 1.0
    for same, factor in factors:
        weight *= 1.0 if same else factor
    return weight


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The outermost value with at most `1 - share` of the weight beyond it; below a half, before it."""
    ordered = sorted(zip(values, weights, strict=True), reverse=share < 0.5)
    wanted = max(share, 1 - share) * sum(weights)
    reached = 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= wanted:
            return value
    return ordered[-1][0]


def order_ratios(pairs: Iterable[OrderedPair]) -> tuple[float, ...]:
    """The ratio of predictions from which measured pairs are in order in `ORDER_PERCENTS` percent.

    Pairs of similar ratios are counted together until they have `BIN_VOTES`, and the share of pairs in order
    is taken to rise with the ratio (isotonic regression). `DOUBT` counts as a pair in the wrong order
    everywhere, so that few families show no high level. A level that no ratio reaches is infinite.
    """
    blocks: list[_Bin] = []
    for one in reversed(_count_in_bins(pairs)):
        blocks.append(one)
        while len(blocks) > 1 and blocks[-2].share >= blocks[-1].share:
            above, below = blocks.pop(), blocks.pop()
            blocks.append(_Bin(below.ratio, below.right + above.right, below.votes + above.votes))
    return tuple(
        next((one.ratio for one in blocks if one.right >= level / 100 * (one.votes + DOUBT)), inf)
        for level in ORDER_PERCENTS
    )


@dataclass(slots=True)
class _Bin:
    """Pairs from a ratio on: the votes of those in order, and all votes."""

    ratio: float
    right: float = 0.0
    votes: float = 0.0

    @property
    def share(self) -> float:
        return self.right / self.votes if self.votes else 0.0


def _count_in_bins(pairs: Iterable[OrderedPair]) -> list[_Bin]:
    """Bins of at least `BIN_VOTES`, largest ratios first; a small rest goes into the last one."""
    bins: list[_Bin] = []
    for one in sorted(pairs, key=lambda pair: -pair.ratio):
        if not bins or bins[-1].votes >= BIN_VOTES:
            bins.append(_Bin(one.ratio))
        bins[-1].ratio = one.ratio
        bins[-1].right += one.weight * one.in_order
        bins[-1].votes += one.weight
    if len(bins) > 1 and bins[-1].votes < BIN_VOTES / 2:
        rest = bins.pop()
        bins[-1] = _Bin(rest.ratio, bins[-1].right + rest.right, bins[-1].votes + rest.votes)
    return bins


@cache
def load_residuals() -> ResidualTable:
    """The table that comes with the simulator."""
    return ResidualTable.from_json(json.loads(_FILE.read_text(encoding="utf-8")))


def log_error(measured_ms: float, predicted_ms: float) -> float:
    """The error that a row of the table holds."""
    return log(measured_ms / predicted_ms)
