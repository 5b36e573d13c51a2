"""What errors on families left out are kept for: the table of intervals, how sure an order is, and the bar.

The table (`nki_sim/timing/residuals.json`) comes with the simulator. The bar (`bar.json`) holds what is
predicted of each family left out and the constants of the fit that did not see it, so that a test predicts
stored programs with today's model and these constants, and fails if errors or the order of pairs got worse.

Coverage and order are shown out of sample too: what is said of a family is said without its kernels.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp
from pathlib import Path
from statistics import mean, median
from typing import Any

import nki_sim
from benchmarks.measured.families import LeftOutPrediction
from benchmarks.measured.runs import Outcome
from nki_sim.timing import residuals, uncertainty
from nki_sim.timing.kernel_traits import KernelTraits
from nki_sim.timing.residuals import OrderedPair, Residual, ResidualTable
from nki_sim.timing.uncertainty import RESOLUTION_RATIO, ForecastInterval

TABLE = Path(residuals.__file__).with_name("residuals.json")
BAR = Path(__file__).with_name("bar.json")

SURE_PERCENT = 95.0

WHOLE_VOTE_PAIRS = 4
"""Pairs of a family from which on its vote on orders counts in full."""


@dataclass(frozen=True)
class MeasuredPrediction:
    """A kernel with its latency as measured, and as predicted from a fit without its family."""

    name: str
    family: str
    group: str
    target: str
    measured_ms: float
    predicted_ms: float
    constants: Mapping[str, float]
    draws_ms: tuple[float, ...]
    traits: KernelTraits

    @property
    def residual(self) -> Residual:
        """The row of the table."""
        error = residuals.log_error(self.measured_ms, self.predicted_ms)
        return Residual(self.family, round(error, 4), self.traits)


def collect_predictions(
    outcomes: Sequence[Outcome], left_out: Mapping[int, LeftOutPrediction]
) -> list[MeasuredPrediction]:
    """The kernels that have a prediction from a fit on other families."""
    found = []
    for place, made in sorted(left_out.items()):
        case, told = outcomes[place].case, outcomes[place].found
        assert told is not None
        found.append(
            MeasuredPrediction(
                name=Path(case.name).name,
                family=case.problem,
                group=case.group or case.name,
                target=case.target,
                measured_ms=case.measured["latency"],
                predicted_ms=made.latency_ms,
                constants=made.constants,
                draws_ms=tuple(told.get("draws_ms", ())),
                traits=KernelTraits.from_json(told["traits"]),
            )
        )
    return found


def make_table(items: Sequence[MeasuredPrediction], *, without: str = "") -> ResidualTable:
    """The table of intervals from all families but one."""
    kept = [one for one in items if one.family != without]
    ratios = residuals.order_ratios(_ordered_pairs(kept))
    return ResidualTable(nki_sim.MODEL_VERSION, tuple(one.residual for one in kept), ratios)


def _ordered_pairs(items: Sequence[MeasuredPrediction]) -> Iterator[OrderedPair]:
    """The pairs of kernels for the same work whose draws agree with the order; each family has one vote."""
    families: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for fast, slow in _pairs(items):
        ratio = slow.predicted_ms / fast.predicted_ms
        if uncertainty.win_share(_interval(fast), _interval(slow)) > 0.5:
            families[fast.family].append((ratio, fast.measured_ms < slow.measured_ms))
    for pairs in families.values():
        vote = 1 / max(len(pairs), WHOLE_VOTE_PAIRS)
        yield from (OrderedPair(ratio, right, vote) for ratio, right in pairs)


def _pairs(items: Sequence[MeasuredPrediction]) -> Iterator[tuple[MeasuredPrediction, MeasuredPrediction]]:
    """Kernels for the same work that are told apart, the one predicted faster first."""
    groups: dict[tuple[str, str], list[MeasuredPrediction]] = defaultdict(list)
    for one in items:
        groups[one.target, one.group].append(one)
    for group in groups.values():
        for pair in combinations(group, 2):
            fast, slow = sorted(pair, key=lambda item: item.predicted_ms)
            told = slow.predicted_ms > (1 + RESOLUTION_RATIO) * fast.predicted_ms
            if told and fast.measured_ms != slow.measured_ms:
                yield fast, slow


def _interval(one: MeasuredPrediction, table: ResidualTable | None = None) -> ForecastInterval:
    levels = table.order_confidence if table else ()
    return ForecastInterval(
        one.predicted_ms, one.predicted_ms, one.predicted_ms, one.draws_ms, order_confidence=levels
    )


def report_evidence(items: Sequence[MeasuredPrediction]) -> dict[str, Any]:
    """Coverage of the intervals and truth of the percentages, from tables without the kernel's family."""
    tables = {family: make_table(items, without=family) for family in {one.family for one in items}}
    covered: dict[str, list[bool]] = defaultdict(list)
    widths = []
    for one in items:
        bounds = tables[one.family].bound_latency(one.traits)
        covered[one.family].append(bounds.low <= exp(one.residual.log_error) <= bounds.high)
        widths.append(bounds.high / bounds.low)
    said: dict[float, list[bool]] = defaultdict(list)
    for fast, slow in _pairs(items):
        table = tables[fast.family]
        percent = uncertainty.order_percent(_interval(fast, table), _interval(slow, table))
        level = max((one for one in residuals.ORDER_PERCENTS if one <= percent), default=50.0)
        said[level].append(fast.measured_ms < slow.measured_ms)
    sure = [right for level, rights in said.items() if level >= SURE_PERCENT for right in rights]
    return {
        "kernels": len(items),
        "covered": sum(map(sum, covered.values())),
        "covered_percent": 100.0 * mean(right for rights in covered.values() for right in rights),
        "covered_by_family_percent": 100.0 * mean(mean(rights) for rights in covered.values()),
        "median_width_ratio": median(widths),
        "order": {
            f"{level:g}": {"pairs": len(rights), "right_percent": 100.0 * mean(rights)}
            for level, rights in sorted(said.items())
        },
        "sure_pairs": len(sure),
        "sure_right_percent": 100.0 * mean(sure) if sure else None,
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The report for people."""
    yield (
        f"measured in the interval, left out: {found['covered']} of {found['kernels']} "
        f"({found['covered_percent']:.1f} %; {found['covered_by_family_percent']:.1f} % with one vote for "
        f"each family), nominal {100 * residuals.NOMINAL:g} %"
    )
    yield f"the upper end is {found['median_width_ratio']:.2f} times the lower one (median)"
    for level, one in found["order"].items():
        right = f"{one['pairs']} pairs, {one['right_percent']:.1f} % right"
        yield f"order said to be {level} % sure, left out: {right}"


def family_predictions(items: Sequence[MeasuredPrediction]) -> dict[str, dict[str, Any]]:
    """By target and family: what is predicted left out, and the constants of the fit."""
    groups: dict[str, list[MeasuredPrediction]] = defaultdict(list)
    for one in items:
        groups[f"{one.target} {one.family}"].append(one)
    return {
        name: {
            "constants": dict(group[0].constants),
            "predicted_ms": {one.name: round(one.predicted_ms, 6) for one in group},
        }
        for name, group in sorted(groups.items())
    }


def write_evidence(items: Sequence[MeasuredPrediction], *, table: Path = TABLE, bar: Path = BAR) -> None:
    """Write the table that comes with the simulator, and the bar of the tests."""
    made = make_table(items)
    rows = sorted(made.rows, key=lambda one: (one.family, one.traits.target, one.traits.latency_ms))
    _write_json(table, ResidualTable(made.model_version, tuple(rows), made.order_ratios).to_json())
    _write_json(bar, {"model_version": nki_sim.MODEL_VERSION, "families": family_predictions(items)})


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
