"""What-ifs held against measured pairs: did a kernel that does less of one thing gain more than was said?

A what-if bounds the gain of work on one engine, on DMA, or on waits. A pair of measured kernels for the same
work shows it if the faster kernel keeps that engine busy for less time and every other one for as long as
before, or, for waits, all engines for as long as before, and is predicted to be faster. Its measured gain
must not pass the bound.

Busy times are predicted, because most kernels were measured without a profiler. So a pair says that bound and
gain agree, and not why. Pairs that the model does not tell apart show no what-if; the order of pairs counts
them as errors.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import nki_sim
from benchmarks.measured.runs import Outcome
from benchmarks.measured.scores import DIFFER_RATIO
from nki_sim.timing import what_if

TABLE = Path(what_if.__file__).with_name("what_if_pairs.json")

LESS_PERCENT = 10.0
"""From this share of the slower kernel's latency on, a kernel is predicted faster, or an engine less busy."""

SAME_PERCENT = 5.0
"""Up to this share of it, an engine counts as busy for as long as before; a gain may pass its bound by it."""


@dataclass(frozen=True)
class BoundedKernel:
    """A measured kernel with the predicted busy time of each engine, and what each what-if saves."""

    name: str
    family: str
    group: str
    target: str
    measured_ms: float
    predicted_ms: float
    busy_ms: Mapping[str, float]
    saved_percent: Mapping[str, float]


@dataclass(frozen=True)
class WhatIfPair:
    """Two measured kernels that show one what-if: what it bounds the gain to, and what was measured."""

    target: str
    family: str
    assumption: str
    bound_percent: float
    gained_percent: float

    @property
    def is_held(self) -> bool:
        """The gain does not pass the bound by more than busy times may differ."""
        return self.gained_percent <= self.bound_percent + SAME_PERCENT


def bound_kernels(outcomes: Sequence[Outcome]) -> list[BoundedKernel]:
    """Return the kernels that were predicted with what-ifs and may share their work with another one."""
    return [
        BoundedKernel(
            name=Path(case.name).name,
            family=case.problem,
            group=case.group,
            target=case.target,
            measured_ms=case.measured["latency"],
            predicted_ms=outcome.predicted_ms,
            busy_ms=outcome.found["busy_ms"],
            saved_percent=outcome.found["saved_percent"],
        )
        for outcome in outcomes
        for case in [outcome.case]
        if outcome.found is not None and case.group
    ]


def find_pairs(kernels: Sequence[BoundedKernel]) -> Iterator[WhatIfPair]:
    """The pairs whose measured latencies differ and that show one what-if."""
    for one, other in combinations(kernels, 2):
        fast, slow = sorted((one, other), key=lambda kernel: kernel.measured_ms)
        alike = (fast.target, fast.group) == (slow.target, slow.group)
        if not alike or slow.measured_ms <= DIFFER_RATIO * fast.measured_ms:
            continue
        assumption = _shown_assumption(fast, slow)
        if assumption in slow.saved_percent:
            gained = 100.0 * (1.0 - fast.measured_ms / slow.measured_ms)
            yield WhatIfPair(slow.target, slow.family, assumption, slow.saved_percent[assumption], gained)


def _shown_assumption(fast: BoundedKernel, slow: BoundedKernel) -> str:
    """The what-if that the pair shows; empty if it shows none, or several at once."""
    if fast.predicted_ms > (1.0 - LESS_PERCENT / 100.0) * slow.predicted_ms:
        return ""
    less = {
        name: 100.0 * (busy - fast.busy_ms[name]) / slow.predicted_ms for name, busy in slow.busy_ms.items()
    }
    changed = [name for name, percent in less.items() if abs(percent) > SAME_PERCENT]
    if not changed:
        return what_if.NO_DEPENDENCES
    if len(changed) == 1 and less[changed[0]] >= LESS_PERCENT:
        return what_if.name_free(changed[0])
    return ""


def report_pairs(pairs: Sequence[WhatIfPair], shown: Sequence[BoundedKernel]) -> list[dict[str, Any]]:
    """By target and what-if: the pairs, and in how many the gain stays in its bound; also those without."""
    groups: dict[tuple[str, str], list[WhatIfPair]] = {
        (kernel.target, name): [] for kernel in shown for name in kernel.saved_percent
    }
    for pair in pairs:
        groups[pair.target, pair.assumption].append(pair)
    return [
        {
            "target": target,
            "what_if": assumption,
            "pairs": len(found),
            "families": len({pair.family for pair in found}),
            "held": sum(pair.is_held for pair in found),
            "median_bound_percent": median(pair.bound_percent for pair in found) if found else None,
            "median_gained_percent": median(pair.gained_percent for pair in found) if found else None,
        }
        for (target, assumption), found in sorted(groups.items())
    ]


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The table for people."""
    yield f"{'what if':<28} pairs families  held   bound  gained (medians)"
    for row in rows:
        name = f"{row['target']} {row['what_if']}"
        if not row["pairs"]:
            yield f"{name:<28} no measured pair"
            continue
        yield (
            f"{name:<28} {row['pairs']:>5} {row['families']:>8} {row['held']:>5} "
            f"{row['median_bound_percent']:>5.0f} % {row['median_gained_percent']:>5.0f} %"
        )


def write_table(rows: Sequence[Mapping[str, Any]], table: Path = TABLE) -> None:
    """Write the counts that come with the simulator."""
    counts: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for row in rows:
        if row["pairs"]:
            counts[row["target"]][row["what_if"]] = [row["pairs"], row["held"]]
    value = {"model_version": nki_sim.MODEL_VERSION, "pairs": counts}
    table.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
