"""Compares strategies: how many kernels each had judged before it reached a given share of the gain.

The gain of a problem is from the initial kernel to the fastest kernel that any run of any arm found. An
arm that never reached a share within its budget counts as later than all that did. Intervals are
bootstrapped: for each problem, as many runs are drawn with replacement as there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from random import Random
from typing import Any

SHARES_PERCENT = (50, 90)
RESAMPLES = 1000
INTERVAL = (0.025, 0.975)

ResultRow = Mapping[str, Any]
NeededCounts = Mapping[str, Sequence[float]]
"""Judged kernels that each run needed, by problem; infinite if it never reached the share."""


def evaluations_needed(
    curve: Sequence[Sequence[float]], initial_ms: float, best_ms: float, percent: float
) -> float:
    """Return after how many judged kernels a run had `percent` of the gain; infinite if it never had."""
    wanted = initial_ms - percent / 100 * (initial_ms - best_ms)
    return min((count for count, latency_ms in curve if latency_ms <= wanted), default=inf)


def compare_arms(rows: Iterable[ResultRow]) -> list[dict[str, Any]]:
    """Return a row for each size, target and arm; none for a size and target with one arm only.

    Problems in which no arm gained anything, or that not every arm ran, are left out. `median` and the
    ends of `interval` are None if the share was not reached.
    """
    groups: dict[tuple[str, str], list[ResultRow]] = defaultdict(list)
    for one in rows:
        groups[one["size"], one["target"]].append(one)
    return [
        {"size": size, "target": target, **told}
        for (size, target), mine in sorted(groups.items())
        if len({one["arm"] for one in mine}) > 1
        for told in _compare_group(mine)
    ]


def _compare_group(rows: Sequence[ResultRow]) -> Iterable[dict[str, Any]]:
    best: dict[str, float] = {}
    for one in rows:
        best[one["problem"]] = min(best.get(one["problem"], inf), one["curve"][-1][1])
    names = dict.fromkeys(one["arm"] for one in rows)
    ran = {(one["problem"], one["arm"]) for one in rows}
    whole = {problem for problem in best if all((problem, arm) in ran for arm in names)}
    gained = [one for one in rows if one["problem"] in whole and best[one["problem"]] < one["initial_ms"]]
    for arm in names:
        mine = [one for one in gained if one["arm"] == arm]
        yield {
            "arm": arm,
            "runs": len(mine),
            "gain_percent": _finite_median([_gain_reached(one, best[one["problem"]]) for one in mine]),
            "needed": {str(share): _share_statistics(mine, best, share) for share in SHARES_PERCENT},
        }


def _gain_reached(one: ResultRow, best_ms: float) -> float:
    """Return how much of the gain a run reached, in percent."""
    initial_ms, reached_ms = float(one["initial_ms"]), float(one["curve"][-1][1])
    return 100 * (initial_ms - reached_ms) / (initial_ms - best_ms)


def _share_statistics(rows: Sequence[ResultRow], best: Mapping[str, float], share: float) -> dict[str, Any]:
    counts: dict[str, list[float]] = defaultdict(list)
    for one in rows:
        name = one["problem"]
        counts[name].append(evaluations_needed(one["curve"], one["initial_ms"], best[name], share))
    everything = [count for mine in counts.values() for count in mine]
    return {
        "median": _finite_median(everything),
        "interval": _bootstrap_interval(counts),
        "reached": sum(count < inf for count in everything),
    }


def _bootstrap_interval(counts: NeededCounts) -> list[float | None]:
    """Return the middle 95 % of the medians of resampled runs."""
    random = Random(0)  # noqa: S311 a statistic, not a secret
    medians = sorted(
        _upper_median([count for mine in counts.values() for count in random.choices(mine, k=len(mine))])
        for _ in range(RESAMPLES)
    )
    return [_none_if_infinite(medians[int(end * (RESAMPLES - 1))]) for end in INTERVAL]


def _finite_median(values: Sequence[float]) -> float | None:
    return _none_if_infinite(_upper_median(values))


def _upper_median(values: Sequence[float]) -> float:
    """Return the median; for an even number of values the upper one, so that it is a count that a run
    needed.
    """
    return sorted(values)[len(values) // 2] if values else inf


def _none_if_infinite(value: float) -> float | None:
    return value if value < inf else None
