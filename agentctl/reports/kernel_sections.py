"""Sections on kernels: the best one, its profile beside the initial one's, and the path between them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

from agentctl import plots
from agentctl.formatting import format_count, format_counter, format_ms, format_speedup, name_counter
from agentctl.reports.document import KernelReport, LineCost, ReportDocument
from agentctl.reports.html_blocks import html_figure, html_section, html_table
from agentctl.reports.markup import Child, Html, element
from agentctl.reports.phrases import latency_source, moved_counters
from agentctl.views.highlight import highlight_source
from agentctl.views.improvement_path import Improvement
from agentctl.views.roofline import engine_shares
from targets.registry import kernel_suffix, profile_vocabulary, roofline_name

MAX_COUNTERS = 24
"""The number of counters that are compared, largest change first."""


def best_kernel_section(found: ReportDocument, best: KernelReport) -> Html:
    by = f"{best.candidate}, by {best.author}"
    made = f"{by}: {best.title}" if best.title else by
    source = b64encode(best.source.encode()).decode()
    file = f"best{kernel_suffix(found.run.target)}"
    link = element("a", f"Save it as {file}", href=f"data:text/plain;base64,{source}", download=file)
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
    kernels = [_plotted_kernel(found, one) for one in (("initial", initial), ("best", best))]
    drawn = [html_figure(one) for one in plots.plot_profiles(kernels)]
    names = f"Grey is the initial kernel, blue the best. All figures are {latency_source(best.latency)}."
    legend = element("p", names if drawn else "No profile was recorded of them.", class_="dim")
    told = plots.describe_bandwidth(kernels)
    bandwidth = element("p", told) if told else None
    content: list[Child] = [legend, _bottleneck_line(initial, best), _wasted_line(best), *drawn, bandwidth]
    rows = [
        (
            name_counter(name),
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


def _wasted_line(best: KernelReport) -> Html | None:
    return element("p", f"In vain in the best kernel: {'; '.join(best.wasted)}.") if best.wasted else None


def _plotted_kernel(found: ReportDocument, named: tuple[str, KernelReport]) -> plots.PlottedKernel:
    title, one = named
    return plots.PlottedKernel(
        title,
        plots.NEW if title == "best" else plots.OLD,
        profile_vocabulary(found.run.target),
        engine_shares(one.counters, found.run.target, one.latency.ms),
        one.timeline,
        one.roofline,
    )


# --- the path --------------------------------------------------------------------------------------


def path_section(found: ReportDocument) -> Html:
    path, run = found.path, found.run
    bounds = {"model bound": run.tight_bound_ms, roofline_name(run.target): run.plain_bound_ms}
    drawn = html_figure(plots.plot_progress(path, bounds))
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


HEAT_THRESHOLDS = ((0.3, "heat3"), (0.1, "heat2"), (0.02, "heat1"))
"""The shares of the critical path from which a line is marked, and the mark's class."""

_KINDS = {"+": "add", "-": "del", "@": "hunk"}


def source_table(source: str, costs: Mapping[int, LineCost]) -> Html:
    """Return a kernel with numbered lines; `costs` are those of the critical path, by line."""
    total = sum(one.ms for one in costs.values()) or 1.0
    rows = []
    for number, pieces in enumerate(highlight_source(source.rstrip("\n")), 1):
        cost = costs.get(number)
        heat = next((kind for least, kind in HEAT_THRESHOLDS if cost and cost.ms / total >= least), None)
        rows.append(
            element(
                "tr",
                element(
                    "td", f"{cost.ms:.3g}" if cost else None, class_="hot", title=cost.op if cost else None
                ),
                element("td", str(number), class_="ln"),
                element(
                    "td", [element("span", text, class_=kind) if kind else text for kind, text in pieces]
                ),
                class_=heat,
            )
        )
    return element(
        "div", element("table", element("tbody", rows), class_="code"), class_="scroll", tabindex=0
    )


def diff_table(diff: str) -> Html:
    """Return a unified diff, one row per line, without the names of its files."""
    lines = diff.split("\n")[2:]
    rows = [
        element(
            "tr",
            element("td", None if line[:1] == "@" else line[:1], class_="ln"),
            element("td", line[1:] if line[:1] != "@" else line),
            class_=_KINDS.get(line[:1]),
        )
        for line in lines
    ]
    return element(
        "div", element("table", element("tbody", rows), class_="code"), class_="scroll", tabindex=0
    )
