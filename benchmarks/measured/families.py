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
from benchmarks.measured.scores import Pair, distinct, scores
from nki_sim import targets

FITTED: dict[str, fit.Range] = {
    "dma_issue_ns": fit.Range(130, 490),
    "dma_descriptor_ns": fit.Range(300, 600),
    "kernel_overhead_ns": fit.Range(9000, 14000),
}
"""The constants that no trace shows alone; where a target documents one, it is not fitted."""

NAIVE = "busiest_engine"

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
    groups: dict[tuple[str, str], list[int]] = {}
    for place, item in enumerate(outcomes):
        groups.setdefault((item.case.target, item.case.problem), []).append(place)
    return [
        {
            "target": target,
            "family": family,
            "kernels": len(places),
            **_score_family(
                [outcomes[place] for place in places],
                [left_out[place].latency_ms for place in places if place in left_out],
            ),
        }
        for (target, family), places in sorted(groups.items())
    ]


def _score_family(items: Sequence[Outcome], left_out: Sequence[float]) -> dict[str, Any]:
    measured = [item.case.measured["latency"] for item in items]
    predicted = {
        "in_sample": [item.predicted_ms for item in items],
        "left_out": list(left_out),
        "naive": [float(item.found["baselines_ms"][NAIVE]) for item in items if item.found],
    }
    made: dict[str, Any] = {}
    for kind, times in predicted.items():
        pairs: list[Pair] = list(zip(measured, times, strict=True)) if len(times) == len(measured) else []
        made[kind] = scores(pairs, distinct(pairs))
    return made


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The table for people: median and worst error, and pairs in order, of each kind of prediction."""
    kinds = ("left_out", "in_sample", "naive")
    yield f"{'family':<36} kernels " + "".join(f"{kind.replace('_', ' '):>26}" for kind in kinds)
    yield f"{'':<44} " + "".join(f"{'median   worst   order':>26}" for _ in kinds)
    for row in rows:
        cells = "".join(f"{_shown(row[kind]):>26}" for kind in kinds)
        yield f"{row['target'] + ' ' + row['family']:<36} {row['kernels']:>7} {cells}"


def _shown(found: Mapping[str, float | None]) -> str:
    names = ("median_ape_percent", "worst_ape_percent", "pairwise_order_percent")
    values = [found[name] for name in names]
    return " ".join("     - " if value is None else f"{value:6.1f}%" for value in values)
