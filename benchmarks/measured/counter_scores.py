"""Counters as scores: HBM bytes, bytes that tiles spill, and busy times of engines, by target.

Latencies may be right although errors cancel; these counters say whether the model does the work that the
device did. Each has an aim for the median of its errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

ENGINES = ("tensor_engine", "vector_engine", "scalar_engine", "gpsimd_engine", "dma")


@dataclass(frozen=True, slots=True)
class CounterAim:
    """Counters that are judged together, and the median error in percent that they should not exceed."""

    what: str
    counters: tuple[str, ...]
    median_percent: float


AIMS = (
    CounterAim("HBM bytes", ("hbm_read_bytes", "hbm_write_bytes", "hbm_bytes"), 8.0),
    CounterAim("bytes spilled and read back", ("spill_save_bytes", "spill_reload_bytes"), 25.0),
    CounterAim("busy time of all engines", tuple(f"{name}_busy_ms" for name in ENGINES), 12.0),
    *(
        CounterAim(f"busy time, {name.removesuffix('_engine')}", (f"{name}_busy_ms",), 12.0)
        for name in ENGINES
    ),
)


def score_counters(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The errors of each aim's counters on each target, over the kernels where they are more than slight."""
    targets = sorted({row["platform"] for row in rows})
    return [
        found
        for target in targets
        for aim in AIMS
        if (found := _score_aim(aim, target, [row for row in rows if row["platform"] == target]))
    ]


def _score_aim(aim: CounterAim, target: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    entries = [
        (row["kernel"], row["counters"][name])
        for row in rows
        for name in aim.counters
        if name in row["counters"] and not row["counters"][name]["slight"]
    ]
    if not entries:
        return {}
    errors = [100.0 * abs(one["relative_error"]) for _, one in entries if one["measured"]]
    zeros = [one for _, one in entries if not one["measured"]]
    middle = median(errors) if errors else None
    return {
        "target": target,
        "counter": aim.what,
        "kernels": len({name for name, _ in entries}),
        "values": len(errors),
        "median_percent": middle,
        "worst_percent": max(errors, default=None),
        "aim_percent": aim.median_percent,
        "is_met": None if middle is None else middle <= aim.median_percent,
        "measured_zero": len(zeros),
        "zero_as_predicted": sum(not one["predicted"] for one in zeros),
    }


def lines(scores: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The table for people."""
    if scores:
        yield f"{'counter':<36} kernels values   median    worst   aim"
    for one in scores:
        median_text, worst = (
            "     -  " if value is None else f"{value:6.1f} %"
            for value in (one["median_percent"], one["worst_percent"])
        )
        said = {None: "nothing measured", True: "met", False: "missed"}[one["is_met"]]
        zero = f"; of {one['measured_zero']} zeros {one['zero_as_predicted']} predicted"
        yield (
            f"{one['target'] + ' ' + one['counter']:<36} {one['kernels']:>7} {one['values']:>6} "
            f"{median_text} {worst}  {one['aim_percent']:g} %: {said}{zero if one['measured_zero'] else ''}"
        )
