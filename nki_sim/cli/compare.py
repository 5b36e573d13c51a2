"""`nki-sim compare`: predicts which of two kernels for the same work is faster, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from nki_sim import targets
from nki_sim.cli import report_text
from nki_sim.cli.grammar import add_kernel_options
from nki_sim.cli.kernels import trace_on_shapes
from nki_sim.cli.profile_text import describe_bottleneck, fit_line
from nki_sim.cli.progress import report_progress
from nki_sim.cli.report_text import Report
from nki_sim.cli.verb import Verb
from nki_sim.timing import counters, uncertainty
from nki_sim.timing.explain import explain_latency
from nki_sim.timing.forecast import Forecast, forecast_program
from nki_sim.timing.forecast_difference import SAME_MS, compare_forecasts
from nki_sim.timing.uncertainty import RESOLUTION_RATIO, ForecastInterval, predict_interval
from nki_sim.timing.units import format_time

_PATH_ROWS, _ROWS = 5, 8

_ELSEWHERE = ("_time", "_percent", "_cycles", "cycle_count", "_instruction_count")
"""Suffixes of counters that are not shown, because they follow from the latency or the instructions."""


def _add_options(sub: argparse.ArgumentParser) -> None:
    add_kernel_options(sub)
    sub.add_argument("other", help="the file of a second kernel that takes the same arguments")
    sub.add_argument(
        "--counters",
        choices=tuple(counters.CONVENTIONS),
        default="explorer",
        help="how counters count, as in profile",
    )


def _compare_kernels(options: argparse.Namespace, report: Report) -> int:
    files = [options.kernel, options.other]
    found: list[Forecast] = []
    draws: list[ForecastInterval] = []
    for file in files:
        # Errors and broken rules name this file.
        options.kernel = report["file"] = file
        program = trace_on_shapes(options, report)
        if report["checks"]:
            return 1
        with report_progress(f"predicting {file}"):
            found.append(forecast_program(program, targets.load(program.target)))
            draws.append(predict_interval(found[-1]))
            report["kernels"].append({"file": file, **_summarise_kernel(found[-1], draws[-1])})
    report["file"] = None
    with report_progress("comparing"):
        changed = compare_forecasts(found[0], found[1], options.counters)
    outputs = [item.traced.array_specs(item.traced.outputs) for item in found]
    report["comparison"] = {
        **asdict(changed),
        "share_of_draws": None if changed.faster == "unknown" else uncertainty.win_share(*draws),
        "order_percent": None if changed.faster == "unknown" else uncertainty.order_percent(*draws),
        "same_outputs": outputs[0] == outputs[1],
    }
    return 0


def _summarise_kernel(found: Forecast, predicted: ForecastInterval) -> Report:
    """Report one kernel on its own."""
    why = explain_latency(found)
    return {
        "kernel": found.traced.kernel,
        "predicted": asdict(predicted),
        "bottleneck": why.bottleneck,
        "busy_ms": why.busy_ms,
        "critical_path": [asdict(part) for part in why.critical_path],
    }


def _format_lines(report: Report, source: Path | None) -> Iterator[str]:
    if not report["comparison"]:
        yield from report_text.format_report(report, source)
        return
    unknown = report["comparison"]["faster"] == "unknown"
    for part in (_format_unknown,) if unknown else (_format_head, _format_path, _format_changes):
        for line in part(report):
            yield from fit_line(line)


def _format_unknown(report: Report) -> Iterable[str]:
    """Lines for kernels with loops that are timed as one round: their figures do not say which is faster."""
    for letter, kernel in zip("ab", report["kernels"], strict=True):
        predicted = kernel["predicted"]
        text, loops = f"{format_time(predicted['latency_ms'])} predicted", predicted["dynamic_loops"]
        if loops:
            text = f"latency unknown; {text} with one round of each loop whose rounds data decide ({loops})"
        yield f"{letter}  {text}: {kernel['file']}"
    yield "nothing says which is faster: give the loops bounds that are known from the shapes"


def _format_head(report: Report) -> Iterable[str]:
    found = report["comparison"]
    longest = max(found["a_ms"], found["b_ms"])
    for letter, kernel in zip("ab", report["kernels"], strict=True):
        predicted = kernel["predicted"]
        latency = predicted["latency_ms"]
        low, high = (format_time(predicted[name], longest) for name in ("lo_ms", "hi_ms"))
        limit = describe_bottleneck(kernel["bottleneck"])
        yield (
            f"{letter}  {format_time(latency, longest)} predicted ({low} to {high}), "
            f"{limit}: {kernel['file']}"
        )
        if predicted["unlike"]:
            yield f"   unlike anything measured: {predicted['unlike']}"
    if not found["same_outputs"]:
        yield "their outputs differ in number, shape or type: it may not be the same work"
    if found["faster"] == "neither":
        yield "neither is predicted to be faster"
        return
    draws = min(len(kernel["predicted"]["draws_ms"]) for kernel in report["kernels"])
    if found["speedup"] < 1 + RESOLUTION_RATIO:
        percent = 100 * (found["speedup"] - 1)
        yield f"{found['faster']} is predicted to be {percent:.2g} % faster, which is too small to tell:"
    else:
        yield (
            f"{found['faster']} is predicted to be {found['speedup']:.3g} times as fast as the other. "
            f"It wins in {found['share_of_draws']:.0%} of the draws (of {draws}) that differ; with measured "
            f"pairs this far apart, that makes the order {found['order_percent']:.0f} % sure:"
        )
    yield from (f"  - {reason}" for reason in found["reasons"])


def _format_path(report: Report) -> Iterable[str]:
    found = report["comparison"]
    longest = max(found["a_ms"], found["b_ms"])
    rows = [("critical path", "a", "b", "change", "most of it")]
    for part in found["path"]:
        change = part["b_ms"] - part["a_ms"]
        if abs(change) < SAME_MS:
            continue
        times = (
            format_time(part["a_ms"], longest),
            format_time(part["b_ms"], longest),
            _format_change(change, longest),
        )
        most = part["operators"][0]["name"] if part["operators"] else ""
        rows.append((part["part"].replace("_", " "), *times, most))
    return _format_table(rows, _PATH_ROWS)


def _format_change(ms: float, longest: float) -> str:
    return f"{'-' if ms < 0 else '+'}{format_time(abs(ms), longest)}"


def _format_changes(report: Report) -> Iterable[str]:
    found = report["comparison"]
    counted = [change for change in found["counters"] if not change["name"].endswith(_ELSEWHERE)]
    for title, changes in (
        ("instructions predicted to run", found["instructions"]),
        ("predicted counters, most changed first", counted),
    ):
        rows = [
            (report_text.format_figure(item["a"]), report_text.format_figure(item["b"]), item)
            for item in changes
        ]
        told = [(item["name"], a, b, "") for a, b, item in rows if a != b]
        yield from _format_table([(title, "a", "b", ""), *told], _ROWS)


def _format_table(rows: Sequence[tuple[str, ...]], most: int) -> Iterator[str]:
    """A title row and up to `most` rows, figures aligned right; nothing if there are no rows."""
    if len(rows) == 1:
        return
    shown = rows[: most + 1]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    yield ""
    for first, *figures, last in shown:
        texts = (f"{text:>{width}}" for text, width in zip(figures, widths[1:-1], strict=True))
        yield "  ".join([f"{first:{widths[0]}}", *texts, last]).rstrip()
    if len(rows) > len(shown):
        yield f"  and {len(rows) - len(shown)} more, with --json"


VERB = Verb(
    name="compare",
    text="predict the time of two kernels for the same work, and say what makes one faster",
    action=_compare_kernels,
    options=_add_options,
    lines=_format_lines,
    keys={"kernels": [], "comparison": None},
)
