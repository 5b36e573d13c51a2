"""Errors by family of kernels: each family is predicted with constants fitted on the other families.

A family is all variants of one problem. Fits are per target, because each target has its own table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measured import fit
from benchmarks.measured.runs import Outcome
from benchmarks.measured.scores import Pair, distinct, scores

FITTED: dict[str, fit.Range] = {
    "dma_issue_ns": fit.Range(130, 490),
    "dma_descriptor_ns": fit.Range(300, 600),
    "kernel_overhead_ns": fit.Range(9000, 14000),
}
"""The constants that no trace shows alone; all others are documented or measured."""

NAIVE = "busiest_engine"


def predict_left_out(
    outcomes: Sequence[Outcome], *, programs: Path, jobs: int, ranges: Mapping[str, fit.Range], tell: fit.Tell
) -> dict[int, float]:
    """The latency of each kernel, by its place, from a fit on the other families of its target; in ms."""
    found: dict[int, float] = {}
    for target in sorted({item.case.target for item in outcomes}):
        places = [place for place, item in enumerate(outcomes) if item.case.target == target]
        families = [outcomes[place].case.problem for place in places]
        with fit.Timer([outcomes[place].case for place in places], programs, jobs, ranges) as timer:
            curves = fit.Curves.of(timer, tell)
            for family in sorted(set(families)):
                mine = [number for number, name in enumerate(families) if name == family]
                if len(mine) == len(places):
                    continue  # nothing else to fit on
                tell(f"leave out {family} on {target}")
                values = fit.fit_constants(timer, curves, left_out=mine, tell=tell)["constants"]
                times = timer.latencies_ms([(number, values) for number in mine])
                found |= {places[number]: time for number, time in zip(mine, times, strict=True)}
    return found


def report_families(outcomes: Sequence[Outcome], left_out: Mapping[int, float]) -> list[dict[str, Any]]:
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
                [left_out[place] for place in places if place in left_out],
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
