"""The result of a comparison as one JSON object, and as lines for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.measured.runs import Outcome
from benchmarks.measured.scores import Pair, Scores, distinct, scores

# What a measured profile holds beside counters.
_TIMES = frozenset({"latency", "min_ms", "max_ms", "rel_diffs", "total_time"})

_SHARE = "_active_time_percent"

SLIGHT_SHARE = 0.001
"""An engine that was busy for less of the time does next to nothing: relative errors would say nothing."""

_UNITS = {
    "_bytes": "bytes", "_busy_ms": "ms", "_time_percent": "of time", "_percent": "share", "_flops": "FLOP",
    "_ratio": "FLOP/byte", "_intensity": "FLOP/byte", "_count": "count", "_time": "s",
}  # fmt: skip
"""Units by the end of a counter's name; a profiler's percent are shares from 0 to 1."""

Row = dict[str, Any]


def report(outcomes: Sequence[Outcome]) -> Row:
    """Rows, failures, and the scores of the model and of the baselines."""
    good = [item for item in outcomes if item.found is not None]
    rows = [row(item) for item in good]
    names = good[0].found["baselines_ms"] if good and good[0].found else ()
    return {
        "found": len(outcomes),
        "predicted": len(good),
        "failed": len(outcomes) - len(good),
        "kernels": rows,
        "failures": [{"kernel": item.case.name, "error": item.error} for item in outcomes if not item.found],
        "overall": overall(good, lambda item: item.predicted_ms),
        "baselines": {name: overall(good, _baseline(name)) for name in names},
        "counters": counter_summary(rows),
        "groups": _groups(good),
        **_coverage_row(rows),
    }


def _baseline(name: str) -> Callable[[Outcome], float]:
    return lambda item: float(item.found["baselines_ms"][name]) if item.found else 0.0


def overall(outcomes: Sequence[Outcome], predict: Callable[[Outcome], float]) -> Scores:
    """Scores over the profiles, or over all variants when there are no profiles.

    Where there are lists of variants, the share of pairs in order is that of their pairs that differ.
    """
    profiles = [_pair(item, predict) for item in outcomes if not item.case.group]
    grouped = by_group(outcomes)
    variants = [_pair(item, predict) for items in grouped.values() for item in items]
    ordered = [
        pair for items in grouped.values() for pair in distinct([_pair(item, predict) for item in items])
    ]
    return scores(profiles or variants, ordered if grouped else None)


def by_group(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The variants of each list."""
    found: dict[str, list[Outcome]] = {}
    for item in outcomes:
        if item.case.group:
            found.setdefault(item.case.group, []).append(item)
    return found


def _pair(item: Outcome, predict: Callable[[Outcome], float]) -> Pair:
    return item.case.measured["latency"], predict(item)


def _groups(outcomes: Sequence[Outcome]) -> dict[str, Row]:
    found = {}
    for name, items in by_group(outcomes).items():
        pairs = [_pair(item, lambda one: one.predicted_ms) for item in items]
        ordered = list(distinct(pairs))
        found[name] = {"kernels": len(pairs), "pairs": len(ordered), **scores(pairs, ordered)}
    return found


def row(item: Outcome) -> Row:
    """One kernel; errors of counters are relative to what was measured, None where that is zero."""
    assert item.found is not None
    case, found = item.case, item.found
    measured = case.measured["latency"]
    return {
        "kernel": case.name,
        "problem": case.problem,
        "config": dict(case.config),
        "platform": case.target,
        "group": case.group,
        "measured_ms": measured,
        "predicted_ms": item.predicted_ms,
        "ratio": item.predicted_ms / measured,
        "lo_ms": found.get("lo_ms"),
        "hi_ms": found.get("hi_ms"),
        "baselines_ms": found["baselines_ms"],
        "counters": _counters(item),
        "instructions": found["instructions"],
        "seconds": found["seconds"],
        "peak_mib": found["peak_mib"],
    }


def _counters(item: Outcome) -> dict[str, Row]:
    """The fields that both sides have; of an engine's share of the time also the time itself.

    A share of the measured side is one of the profiled run, which takes longer than runs without a profiler.
    """
    assert item.found is not None
    measured, predicted = dict(item.case.measured), dict(item.found["counters"])
    if {"hbm_read_bytes", "hbm_write_bytes"} <= predicted.keys():
        predicted["hbm_bytes"] = predicted["hbm_read_bytes"] + predicted["hbm_write_bytes"]
    profiled_ms = 1e3 * measured.get("total_time", measured["latency"] / 1e3)
    whole, own_whole = _whole(measured), _whole(predicted)
    found = {}
    for name in sorted((measured.keys() & predicted.keys()) - _TIMES):
        if not name.endswith(_SHARE):
            found[name] = _error(measured[name], predicted[name])
            continue
        share, own_share = measured[name] / whole, predicted[name] / own_whole
        slight = 0.0 < share < SLIGHT_SHARE
        found[name] = _error(measured[name], own_share * whole, slight=slight)
        busy = share * profiled_ms, own_share * item.predicted_ms
        found[f"{name.removesuffix(_SHARE)}_busy_ms"] = _error(*busy, slight=slight)
    return found


def _whole(counters: Mapping[str, float]) -> float:
    """What a share of the whole time is in one side's counters: 1, or 100 where some share is larger."""
    return (
        100.0 if max((counters[name] for name in counters if name.endswith(_SHARE)), default=0) > 1 else 1.0
    )


def _error(measured: float, predicted: float, *, slight: bool = False) -> Row:
    zero = None if predicted else 0.0
    error = (predicted - measured) / measured if measured else zero
    return {"measured": measured, "predicted": predicted, "relative_error": error, "slight": slight}


def counter_summary(rows: Sequence[Row]) -> dict[str, Row]:
    """Each counter over the kernels where it is more than slight: errors in percent, how many are small."""
    errors: dict[str, list[float | None]] = {}
    for one in rows:
        for name, entry in one["counters"].items():
            if not entry["slight"]:
                errors.setdefault(name, []).append(entry["relative_error"])
    return {name: _spread(items) for name, items in sorted(errors.items())}


def _spread(errors: Sequence[float | None]) -> Row:
    sizes = [100.0 * abs(error) for error in errors if error is not None]
    within = {f"within_{limit}_percent": sum(size <= limit for size in sizes) for limit in (1, 10)}
    medians = {"median_percent": median(sizes), "worst_percent": max(sizes)} if sizes else {}
    return {"kernels": len(errors), **medians, **within, "measured_zero_only": len(errors) - len(sizes)}


def _coverage_row(rows: Sequence[Row]) -> Row:
    inside = [one["lo_ms"] <= one["measured_ms"] <= one["hi_ms"] for one in rows if one["lo_ms"] is not None]
    percent = 100.0 * sum(inside) / len(inside) if inside else None
    return {"intervals": len(inside), "intervals_cover": sum(inside), "interval_covers_percent": percent}


def lines(result: Row, *, counters: bool = True) -> Iterator[str]:
    """The result for people; predicted latencies are called so."""
    for one in result["kernels"]:
        yield _kernel_line(one)
        if counters:
            yield from _counter_lines(one["counters"])
    for one in result["failures"]:
        yield f"{one['kernel']:<46} failed: {one['error']}"
    if counters and result["kernels"]:
        yield from (
            "",
            "counters over the kernels where they are more than slight, error in percent of measured",
        )
        yield from (_summary_line(name, entry) for name, entry in result["counters"].items())
    yield ""
    if result["intervals"]:
        yield f"measured inside the predicted interval: {result['intervals_cover']} of {result['intervals']}"
    if any(not one["group"] for one in result["kernels"]):
        yield "on kernels of the calibration these scores are in-sample: constants were fitted to them and"
        yield "the compiler's rules worked out on them; --leave-one-out leaves out the former, not the latter"
    yield f"{'':<22} median APE  worst APE  Spearman   Kendall  pairs in order"
    yield _score_line("model", result["overall"])
    yield from (_score_line(name, entry) for name, entry in result["baselines"].items())
    yield from (_score_line(f"variants: {name}", entry) for name, entry in result["groups"].items())
    yield f"{result['found']} found, {result['predicted']} predicted, {result['failed']} failed"


def _kernel_line(one: Row) -> str:
    interval = "" if one["lo_ms"] is None else f" ({one['lo_ms']:.3f} to {one['hi_ms']:.3f})"
    return (
        f"{one['kernel']:<46} measured {one['measured_ms']:.3f} ms, "
        f"predicted {one['predicted_ms']:.3f} ms{interval}, ratio {one['ratio']:.3f}"
    )


def _counter_lines(counters: dict[str, Row]) -> Iterator[str]:
    if counters:
        yield f"    {'counter':<34} {'unit':<9} {'measured':>14} {'predicted':>14} {'error':>14}"
    for name, entry in counters.items():
        figures = f"{entry['measured']:>14.6g} {entry['predicted']:>14.6g} {_shown_error(entry):>14}"
        yield f"    {name:<34} {_unit(name):<9} {figures}"


def _unit(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def _shown_error(entry: Row) -> str:
    """In percent of what was measured; of next to nothing the difference itself."""
    if entry["relative_error"] is None:
        return "measured 0"
    if entry["slight"]:
        return f"slight {entry['predicted'] - entry['measured']:+.1g}"
    shown = f"{100 * entry['relative_error']:+.2f}"
    return f"{shown.lstrip('+-') if float(shown) == 0.0 else shown} %"


def _summary_line(name: str, entry: Row) -> str:
    shown = (
        f"median {entry['median_percent']:8.2f}  worst {entry['worst_percent']:8.2f}"
        if "median_percent" in entry
        else "measured 0"
    )
    return (
        f"    {name:<38} {shown}  within 1 %: {entry['within_1_percent']} of {entry['kernels']}, "
        f"within 10 %: {entry['within_10_percent']}"
    )


def _score_line(name: str, entry: Scores) -> str:
    def shown(key: str, form: str) -> str:
        value = entry[key]
        return "-" if value is None else format(value, form)

    errors = f"{shown('median_ape_percent', '.1f'):>8} % {shown('worst_ape_percent', '.1f'):>8} %"
    order = f"{shown('spearman', '.3f'):>9} {shown('kendall', '.3f'):>9}"
    return f"{name:<22} {errors} {order} {shown('pairwise_order_percent', '.1f'):>13} %"
