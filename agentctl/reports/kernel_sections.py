"""Sections on kernels: the best one, its profile beside the initial one's, and the path between them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from agentctl.formatting import format_count, format_ms, format_speedup
from agentctl.reports import plots
from agentctl.reports.document import KernelReport, ReportDocument
from agentctl.reports.html_blocks import html_figure, html_section, html_table
from agentctl.reports.markup import Child, Html, element
from agentctl.reports.phrases import latency_source, moved_counters
from agentctl.reports.source_tables import diff_table, source_table
from agentctl.verbs.kernels import NOTES, format_counter
from agentctl.views.improvement_path import Improvement
from agentctl.views.roofline import KernelRoofline

ENGINE_ROOFS = (
    "Vector (V), scalar (S) and GpSimd engine (G) under their roofs. Left of 1 the HBM's bandwidth bounds an "
    "engine, right of it the engine itself; on the roof it cannot be faster without less work or fewer bytes."
)

MAX_COUNTERS = 24
"""The number of counters that are compared, largest change first."""


def best_kernel_section(found: ReportDocument, best: KernelReport) -> Html:
    by = f"{best.candidate}, by {best.author}"
    made = f"{by}: {best.title}" if best.title else by
    source = b64encode(best.source.encode()).decode()
    link = element("a", "Save it as best.py", href=f"data:text/x-python;base64,{source}", download="best.py")
    heat = {line.line: line for line in best.lines if line.line > 0}
    note = (
        f"The numbers at its left are ms of the critical path, {latency_source(best.latency)}."
        if heat
        else None
    )
    changes = (
        element(
            "details",
            element("summary", "What changed from the initial kernel"),
            diff_table(found.diff),
            open=_is_small_diff(found.diff),
        )
        if found.diff
        else element("p", "It is the initial kernel.")
    )
    return html_section(
        "The best kernel",
        element("p", made),
        element("p", note, " ", link, class_="dim"),
        source_table(best.source, heat),
        changes,
    )


def _is_small_diff(diff: str) -> bool:
    return diff.count("\n") <= 80


# --- before and after ------------------------------------------------------------------------------


def profile_section(found: ReportDocument, initial: KernelReport, best: KernelReport) -> Html:
    drawn: list[Child] = []
    bars = plots.plot_engines(initial.busy_ms, best.busy_ms, (initial.latency.ms, best.latency.ms))
    drawn.append(html_figure(bars, "How long each engine works, and what part of the kernel's time that is."))
    lanes = [(name, one.timeline) for name, one in (("initial", initial), ("best", best)) if one.timeline]
    drawn.append(
        html_figure(
            plots.plot_timelines(lanes), "Which engine or queue is busy when; the darker, the busier."
        )
    )
    roofs = [(name, one.roofline) for name, one in (("initial", initial), ("best", best)) if one.roofline]
    drawn.append(
        html_figure(
            plots.plot_roofline(roofs), "Operations of matrix products per second, over those per byte moved."
        )
    )
    drawn.append(html_figure(plots.plot_engine_roofs(roofs), ENGINE_ROOFS))
    names = f"Grey is the initial kernel, blue the best. All figures are {latency_source(best.latency)}."
    legend = element("p", names if any(drawn) else "No profile was recorded of them.", class_="dim")
    content: list[Child] = [legend, _bottleneck_line(initial, best), *drawn, _bandwidth_line(roofs)]
    rows = [
        (
            f"{name} ({NOTES[name]})" if name in NOTES else name,
            format_counter(name, was),
            format_counter(name, now),
        )
        for name, (was, now) in moved_counters(initial.counters, best.counters)[:MAX_COUNTERS]
    ]
    if rows:
        counters = html_table(("counter", "initial", "best"), rows, numbers=(1, 2))
        content.append(
            element("details", element("summary", "Counters that moved, most moved first"), counters)
        )
    return html_section("Before and after", content)


def _bottleneck_line(initial: KernelReport, best: KernelReport) -> Html:
    return element(
        "p", f"Bound by: {initial.bottleneck or 'unknown'} before, {best.bottleneck or 'unknown'} after."
    )


def _bandwidth_line(roofs: Sequence[tuple[str, KernelRoofline]]) -> Html | None:
    told = [
        f"{name} {one.bandwidth_percent:.1f} % ({one.attained_bytes / 1e9:.4g} GB/s)" for name, one in roofs
    ]
    return element("p", f"Of the HBM's bandwidth is used: {', '.join(told)}.") if told else None


# --- the path --------------------------------------------------------------------------------------


def path_section(found: ReportDocument) -> Html:
    path, run = found.path, found.run
    bounds = {"tight bound": run.tight_bound_ms, "NKIBench roofline": run.plain_bound_ms}
    drawn = html_figure(
        plots.plot_progress(path, bounds),
        "A dot is a correct kernel, a cross one that was not; the line is the best so far, numbers are the "
        "changes below.",
    )
    steps = [_improvement_item(one) for one in path.line[1:]]
    changes = element("ol", steps, class_="path") if steps else element("p", "No change made it faster.")
    taken = [
        f"{one.kind}: {one.candidate} ({one.reason}), back to {one.restored or 'nothing'}"
        for one in path.taken_back
    ]
    back = (
        [element("h3", "Taken back"), element("ul", [element("li", text) for text in taken])]
        if taken
        else None
    )
    return html_section("The path of improvements", drawn, changes, back)


def _improvement_item(one: Improvement) -> Html:
    gained = "" if one.speedup is None else format_speedup(one.speedup)
    kind = None if one.speedup is None else "better" if one.speedup > 1 else "worse"
    several = len(one.rewrites) > 1
    name = f"{format_count(len(one.rewrites), 'rewrite')} together" if several else one.title
    expected = (
        None
        if one.expected is None
        else f"expected {format_speedup(one.expected)}: {one.grade or 'not graded'}"
    )
    facts = [f"{one.technique or 'by hand'}, by {one.author}", expected, f"round {one.round}, {one.at}"]
    return element(
        "li",
        element("strong", name),
        element("br"),
        f"{format_ms(one.latency.ms)} {latency_source(one.latency)}, ",
        element("span", gained or "the first", class_=kind),
        f", {format_speedup(one.total)} in all",
        element("ul", [element("li", text) for text in one.rewrites]) if several else None,
        element("div", "; ".join(fact for fact in facts if fact), class_="dim"),
        element("div", one.lesson, class_="dim") if one.lesson else None,
    )
