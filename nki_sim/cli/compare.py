"""`nki-sim compare`: two kernels for the same work, which is predicted to be faster, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from nki_sim import targets
from nki_sim.cli import show
from nki_sim.cli.grammar import kernel_options
from nki_sim.cli.kernels import traced_on_shapes
from nki_sim.cli.profile_text import bound_by, fitted
from nki_sim.cli.show import Report
from nki_sim.cli.verb import Verb
from nki_sim.cli.watch import stage
from nki_sim.timing import counters, uncertainty
from nki_sim.timing.difference import SAME_MS, difference
from nki_sim.timing.explain import explain
from nki_sim.timing.forecast import Forecast, forecast
from nki_sim.timing.uncertainty import RESOLUTION_RATIO, Interval, interval
from nki_sim.timing.units import time

_PATH_ROWS, _ROWS = 5, 8

_ELSEWHERE = ("_time", "_percent", "_cycles", "cycle_count", "_instruction_count")
"""Ends of counters that follow from the latency or from the instructions, which are shown."""


def _options(sub: argparse.ArgumentParser) -> None:
    kernel_options(sub)
    sub.add_argument("other", help="the file of a second kernel that takes the same arguments")
    sub.add_argument(
        "--counters",
        choices=tuple(counters.CONVENTIONS),
        default="explorer",
        help="how counters count, as in profile",
    )


def _compare(options: argparse.Namespace, report: Report) -> int:
    files = [options.kernel, options.other]
    found: list[Forecast] = []
    draws: list[Interval] = []
    for file in files:
        # Errors and broken rules are said of this one.
        options.kernel = report["file"] = file
        program = traced_on_shapes(options, report)
        if report["checks"]:
            return 1
        with stage(f"predicting {file}"):
            found.append(forecast(program, targets.load(program.target)))
            draws.append(interval(found[-1]))
            report["kernels"].append({"file": file, **_summary(found[-1], draws[-1])})
    report["file"] = None
    with stage("comparing"):
        changed = difference(found[0], found[1], options.counters)
    outputs = [item.traced.specs(item.traced.outputs) for item in found]
    report["comparison"] = {
        **asdict(changed),
        "share_of_draws": None if changed.faster == "unknown" else uncertainty.compare(*draws),
        "same_outputs": outputs[0] == outputs[1],
    }
    return 0


def _summary(found: Forecast, predicted: Interval) -> Report:
    """One kernel by itself."""
    why = explain(found)
    return {
        "kernel": found.traced.kernel,
        "predicted": asdict(predicted),
        "bottleneck": why.bottleneck,
        "busy_ms": why.busy_ms,
        "critical_path": [asdict(part) for part in why.critical_path],
    }


def _lines(report: Report, source: Path | None) -> Iterator[str]:
    if not report["comparison"]:
        yield from show.lines(report, source)
        return
    unknown = report["comparison"]["faster"] == "unknown"
    for part in (_unknown,) if unknown else (_head, _path, _changed):
        for line in part(report):
            yield from fitted(line)


def _unknown(report: Report) -> Iterable[str]:
    """Kernels with loops that are timed as one round: none of their figures says which is faster."""
    for letter, kernel in zip("ab", report["kernels"], strict=True):
        predicted = kernel["predicted"]
        text, loops = f"{time(predicted['latency_ms'])} predicted", predicted["dynamic_loops"]
        if loops:
            text = f"latency unknown; {text} with one round of each loop whose rounds data decide ({loops})"
        yield f"{letter}  {text}: {kernel['file']}"
    yield "nothing says which is faster: give the loops bounds that are known from the shapes"


def _head(report: Report) -> Iterable[str]:
    found = report["comparison"]
    longest = max(found["a_ms"], found["b_ms"])
    for letter, kernel in zip("ab", report["kernels"], strict=True):
        predicted = kernel["predicted"]
        latency = predicted["latency_ms"]
        yield (
            f"{letter}  {time(latency, longest)} predicted ({time(predicted['lo_ms'], longest)} to "
            f"{time(predicted['hi_ms'], longest)}), {bound_by(kernel['bottleneck'])}: {kernel['file']}"
        )
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
            f"{found['faster']} is predicted to be {found['speedup']:.3g} times as fast as the other, "
            f"and wins in {found['share_of_draws']:.0%} of the draws (of {draws}) that differ "
            "(what the model leaves out, no draw shows):"
        )
    yield from (f"  - {reason}" for reason in found["reasons"])


def _path(report: Report) -> Iterable[str]:
    found = report["comparison"]
    longest = max(found["a_ms"], found["b_ms"])
    rows = [("critical path", "a", "b", "change", "most of it")]
    for part in found["path"]:
        change = part["b_ms"] - part["a_ms"]
        if abs(change) < SAME_MS:
            continue
        times = (time(part["a_ms"], longest), time(part["b_ms"], longest), _signed(change, longest))
        most = part["operators"][0]["name"] if part["operators"] else ""
        rows.append((part["part"].replace("_", " "), *times, most))
    return _table(rows, _PATH_ROWS)


def _signed(ms: float, longest: float) -> str:
    return f"{'-' if ms < 0 else '+'}{time(abs(ms), longest)}"


def _changed(report: Report) -> Iterable[str]:
    found = report["comparison"]
    counted = [change for change in found["counters"] if not change["name"].endswith(_ELSEWHERE)]
    for title, changes in (
        ("instructions predicted to run", found["instructions"]),
        ("predicted counters, most changed first", counted),
    ):
        rows = [(show.figure(item["a"]), show.figure(item["b"]), item) for item in changes]
        told = [(item["name"], a, b, "") for a, b, item in rows if a != b]
        yield from _table([(title, "a", "b", ""), *told], _ROWS)


def _table(rows: Sequence[tuple[str, ...]], most: int) -> Iterator[str]:
    """A title row and up to `most` others, figures to the right; nothing where there are no others."""
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
    action=_compare,
    options=_options,
    lines=_lines,
    keys={"kernels": [], "comparison": None},
)
