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
) -> dict[str, float]:
    """The latency of each kernel, by name, from a fit on the other families of its target; in ms."""
    found: dict[str, float] = {}
    for target in sorted({item.case.target for item in outcomes}):
        cases = [item.case for item in outcomes if item.case.target == target]
        with fit.Timer(cases, programs, jobs, ranges) as timer:
            curves = fit.Curves.of(timer, tell)
            for family in sorted({case.problem for case in cases}):
                mine = [number for number, case in enumerate(cases) if case.problem == family]
                if len(mine) == len(cases):
                    continue  # nothing else to fit on
                tell(f"leave out {family} on {target}")
                values = fit.fitted(timer, curves, left_out=mine, tell=tell)["constants"]
                times = timer.latencies_ms([(number, values) for number in mine])
                found |= {
                    f"{target} {cases[number].name}": time for number, time in zip(mine, times, strict=True)
                }
    return found


def report_families(outcomes: Sequence[Outcome], left_out: Mapping[str, float]) -> list[dict[str, Any]]:
    """Scores of each family, in-sample, left out, and of the busiest engine."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for item in outcomes:
        groups.setdefault((item.case.target, item.case.problem), []).append(item)
    return [
        {"target": target, "family": family, "kernels": len(items), **_score_family(items, left_out)}
        for (target, family), items in sorted(groups.items())
    ]


def _score_family(items: Sequence[Outcome], left_out: Mapping[str, float]) -> dict[str, Any]:
    measured = [item.case.measured["latency"] for item in items]
    names = [f"{item.case.target} {item.case.name}" for item in items]
    predicted = {
        "in_sample": [item.predicted_ms for item in items],
        "left_out": [left_out[name] for name in names if name in left_out],
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
