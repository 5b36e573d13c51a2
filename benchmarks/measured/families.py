"""Errors by family of kernels: each family is predicted with constants fitted on the other families.

A family is all variants of one problem. Fits are per target, because each target has its own table, and use
some kernels of each family, so that a family with many variants counts no more than others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measured import fit
from benchmarks.measured.runs import Outcome
from benchmarks.measured.scores import Pair, Scores, distinct, order_percent, scores
from nki_sim import targets

FITTED: dict[str, fit.Range] = {
    "dma_issue_ns": fit.Range(130, 490),
    "dma_descriptor_ns": fit.Range(300, 600),
    "kernel_overhead_ns": fit.Range(9000, 14000),
}
"""The constants that no trace shows alone; where a target documents one, it is not fitted."""

NAIVE = "busiest_engine"

KINDS = ("left_out", "in_sample", "naive")

ALL = "all"
"""Stands for all targets."""

FITTED_KERNELS = 4
"""Kernels of a family that fits use, those with the fewest instructions: each is scheduled many times."""


@dataclass(frozen=True)
class LeftOutPrediction:
    """A latency from a fit on the other families of the kernel's target, and the constants of that fit."""

    latency_ms: float
    constants: Mapping[str, float]


def predict_left_out(
    outcomes: Sequence[Outcome], *, programs: Path, jobs: int, ranges: Mapping[str, fit.Range], tell: fit.Tell
) -> dict[int, LeftOutPrediction]:
    """The prediction of each kernel, by its place, from a fit on the other families of its target."""
    found: dict[int, LeftOutPrediction] = {}
    for target in sorted({item.case.target for item in outcomes}):
        places = [place for place, item in enumerate(outcomes) if item.case.target == target]
        families = [outcomes[place].case.problem for place in places]
        fitted = _choose_fitted([outcomes[place] for place in places])
        own = {name: one for name, one in ranges.items() if targets.load(target).sources[name] != "D"}
        with fit.Timer([outcomes[place].case for place in places], programs, jobs, own) as timer:
            curves = fit.Curves.of(timer, tell, numbers=fitted)
            for family in sorted(set(families)):
                mine = [number for number, name in enumerate(families) if name == family]
                if len(mine) == len(places):
                    continue  # nothing else to fit on
                tell(f"leave out {family} on {target}")
                others = [number for number in fitted if number not in mine]
                values = fit.fit_constants(timer, curves, others, tell=tell)["constants"]
                times = timer.latencies_ms([(number, values) for number in mine])
                found |= {
                    places[number]: LeftOutPrediction(time, values)
                    for number, time in zip(mine, times, strict=True)
                }
    return found


def _choose_fitted(outcomes: Sequence[Outcome]) -> list[int]:
    """The places of the kernels that fits use."""
    ranked = sorted(range(len(outcomes)), key=lambda place: _count_instructions(outcomes[place]))
    used: Counter[str] = Counter()
    chosen = []
    for place in ranked:
        family = outcomes[place].case.problem
        if used[family] < FITTED_KERNELS:
            used[family] += 1
            chosen.append(place)
    return sorted(chosen)


def _count_instructions(outcome: Outcome) -> int:
    return int(outcome.found["instructions"]) if outcome.found else 0


def report_families(
    outcomes: Sequence[Outcome], left_out: Mapping[int, LeftOutPrediction]
) -> list[dict[str, Any]]:
    """Scores of each family, in-sample, left out, and of the busiest engine."""
    return [
        {"target": target, "family": family, "kernels": len(places), **_score_family(pairs)}
        for (target, family), places in _group_families(outcomes).items()
        for pairs in [_pair_predictions(outcomes, left_out, places)]
    ]


def _group_families(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[int]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for place, item in enumerate(outcomes):
        groups.setdefault((item.case.target, item.case.problem), []).append(place)
    return dict(sorted(groups.items()))


def _pair_predictions(
    outcomes: Sequence[Outcome], left_out: Mapping[int, LeftOutPrediction], places: Sequence[int]
) -> dict[str, list[Pair]]:
    """Measured and predicted, by kind of prediction; left out only if all kernels of the family are."""
    items = [outcomes[place] for place in places]
    times = {
        "left_out": [left_out[place].latency_ms for place in places if place in left_out],
        "in_sample": [item.predicted_ms for item in items],
        "naive": [float(item.found["baselines_ms"][NAIVE]) for item in items if item.found],
    }
    measured = [item.case.measured["latency"] for item in items]
    return {
        kind: list(zip(measured, mine, strict=True)) if len(mine) == len(measured) else []
        for kind, mine in times.items()
    }


def _score_family(pairs: Mapping[str, list[Pair]]) -> dict[str, Any]:
    made: dict[str, Any] = {kind: scores(mine, distinct(mine)) for kind, mine in pairs.items()}
    made["worse_than_naive"] = _find_losses(made["left_out"], made["naive"])
    return made


def _find_losses(left_out: Scores, naive: Scores) -> list[str]:
    """In what the busiest engine predicts a family better than the model that has not seen it."""
    median, order = (
        [one[name] for one in (left_out, naive)] for name in ("median_ape_percent", "pairwise_order_percent")
    )
    lost = {
        "median": None not in median and median[0] > median[1],  # type: ignore[operator]
        "order": None not in order and order[0] < order[1],  # type: ignore[operator]
    }
    return [name for name, is_lost in lost.items() if is_lost]


def report_order(
    outcomes: Sequence[Outcome], left_out: Mapping[int, LeftOutPrediction]
) -> list[dict[str, Any]]:
    """Of pairs of a family that differ, the share in order: by target and in all, by kind of prediction."""
    ordered: dict[str, dict[str, list[tuple[Pair, Pair]]]] = {}
    for (target, _), places in _group_families(outcomes).items():
        pairs = _pair_predictions(outcomes, left_out, places)
        for kind, mine in pairs.items() if pairs["left_out"] else ():
            for name in (target, ALL):
                ordered.setdefault(name, {}).setdefault(kind, []).extend(distinct(mine))
    return [
        {"target": name, "pairs": len(kinds["left_out"])}
        | {kind: order_percent(found) for kind, found in kinds.items()}
        for name, kinds in sorted(ordered.items(), key=lambda entry: entry[0] == ALL)
    ]


def lines(rows: Sequence[Mapping[str, Any]], order: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tables for people: errors and pairs in order by family, then pairs in order in all."""
    yield f"{'family':<36} kernels " + "".join(f"{kind.replace('_', ' '):>26}" for kind in KINDS)
    yield f"{'':<44} " + "".join(f"{'median   worst   order':>26}" for _ in KINDS) + "  better than naive?"
    for row in rows:
        cells = "".join(f"{_format_scores(row[kind]):>26}" for kind in KINDS)
        better = "  no: " + ", ".join(row["worse_than_naive"]) if row["worse_than_naive"] else "  yes"
        yield f"{row['target'] + ' ' + row['family']:<36} {row['kernels']:>7} {cells}{better}"
    for one in order:
        shares = ", ".join(f"{kind.replace('_', ' ')} {_format_percent(one[kind]).strip()}" for kind in KINDS)
        yield f"pairs over 15 % apart in order, {one['target']}: {shares} of {one['pairs']} pairs"


def _format_scores(found: Mapping[str, float | None]) -> str:
    names = ("median_ape_percent", "worst_ape_percent", "pairwise_order_percent")
    return " ".join(_format_percent(found[name]) for name in names)


def _format_percent(value: float | None) -> str:
    return "     - " if value is None else f"{value:6.1f}%"
