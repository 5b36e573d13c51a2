"""Sections on kernels: the best one, its profile beside the initial one's, and the path between them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from agentctl.reports import plots
from agentctl.reports.document import Document, Kernel
from agentctl.reports.listing import diff_table, listing
from agentctl.reports.markup import Child, Html, el
from agentctl.reports.pieces import figure, section, table
from agentctl.reports.words import how, moved
from agentctl.verbs.kernels import NOTES, readable
from agentctl.views.path import Improvement
from agentctl.views.roofline import Roofline
from agentctl.words import count, ms, times

ENGINE_ROOFS = (
    "Vector (V), scalar (S) and GpSimd engine (G) under their roofs. Left of 1 the HBM's bandwidth bounds an "
    "engine, right of it the engine itself; on the roof it cannot be faster without less work or fewer bytes."
)

COUNTERS = 24
"""Of a profile that are compared, those that moved most."""


def best_kernel(found: Document, best: Kernel) -> Html:
    by = f"{best.candidate}, by {best.author}"
    made = f"{by}: {best.title}" if best.title else by
    source = b64encode(best.source.encode()).decode()
    link = el("a", "Save it as best.py", href=f"data:text/x-python;base64,{source}", download="best.py")
    heat = {line.line: line for line in best.lines if line.line > 0}
    note = f"The numbers at its left are ms of the critical path, {how(best.latency)}." if heat else None
    changes = (
        el(
            "details",
            el("summary", "What changed from the initial kernel"),
            diff_table(found.diff),
            open=_small(found.diff),
        )
        if found.diff
        else el("p", "It is the initial kernel.")
    )
    return section(
        "The best kernel",
        el("p", made),
        el("p", note, " ", link, class_="dim"),
        listing(best.source, heat),
        changes,
    )


def _small(diff: str) -> bool:
    return diff.count("\n") <= 80


# --- before and after ------------------------------------------------------------------------------


def profiles(found: Document, initial: Kernel, best: Kernel) -> Html:
    drawn: list[Child] = []
    bars = plots.engines(initial.busy_ms, best.busy_ms, (initial.latency.ms, best.latency.ms))
    drawn.append(figure(bars, "How long each engine works, and what part of the kernel's time that is."))
    lanes = [(name, one.timeline) for name, one in (("initial", initial), ("best", best)) if one.timeline]
    drawn.append(
        figure(plots.timelines(lanes), "Which engine or queue is busy when; the darker, the busier.")
    )
    roofs = [(name, one.roofline) for name, one in (("initial", initial), ("best", best)) if one.roofline]
    drawn.append(
        figure(plots.roofline(roofs), "Operations of matrix products per second, over those per byte moved.")
    )
    drawn.append(figure(plots.engine_roofs(roofs), ENGINE_ROOFS))
    names = f"Grey is the initial kernel, blue the best. All figures are {how(best.latency)}."
    legend = el("p", names if any(drawn) else "No profile was recorded of them.", class_="dim")
    content: list[Child] = [legend, _bottleneck(initial, best), *drawn, _bandwidth(roofs)]
    rows = [
        (f"{name} ({NOTES[name]})" if name in NOTES else name, readable(name, was), readable(name, now))
        for name, (was, now) in moved(initial.counters, best.counters)[:COUNTERS]
    ]
    if rows:
        counters = table(("counter", "initial", "best"), rows, numbers=(1, 2))
        content.append(el("details", el("summary", "Counters that moved, most moved first"), counters))
    return section("Before and after", content)


def _bottleneck(initial: Kernel, best: Kernel) -> Html:
    return el(
        "p", f"Bound by: {initial.bottleneck or 'unknown'} before, {best.bottleneck or 'unknown'} after."
    )


def _bandwidth(roofs: Sequence[tuple[str, Roofline]]) -> Html | None:
    told = [
        f"{name} {one.bandwidth_percent:.1f} % ({one.attained_bytes / 1e9:.4g} GB/s)" for name, one in roofs
    ]
    return el("p", f"Of the HBM's bandwidth is used: {', '.join(told)}.") if told else None


# --- the path --------------------------------------------------------------------------------------


def path(found: Document) -> Html:
    path, run = found.path, found.run
    bounds = {"tight bound": run.tight_bound_ms, "NKIBench roofline": run.plain_bound_ms}
    drawn = figure(
        plots.progress(path, bounds),
        "A dot is a correct kernel, a cross one that was not; the line is the best so far, numbers are the "
        "changes below.",
    )
    steps = [_step(one) for one in path.line[1:]]
    changes = el("ol", steps, class_="path") if steps else el("p", "No change made it faster.")
    taken = [
        f"{one.kind}: {one.candidate} ({one.reason}), back to {one.restored or 'nothing'}"
        for one in path.taken_back
    ]
    back = [el("h3", "Taken back"), el("ul", [el("li", text) for text in taken])] if taken else None
    return section("The path of improvements", drawn, changes, back)


def _step(one: Improvement) -> Html:
    gained = "" if one.speedup is None else times(one.speedup)
    kind = None if one.speedup is None else "better" if one.speedup > 1 else "worse"
    several = len(one.rewrites) > 1
    name = f"{count(len(one.rewrites), 'rewrite')} together" if several else one.title
    expected = (
        None if one.expected is None else f"expected {times(one.expected)}: {one.grade or 'not graded'}"
    )
    facts = [f"{one.technique or 'by hand'}, by {one.author}", expected, f"round {one.round}, {one.at}"]
    return el(
        "li",
        el("strong", name),
        el("br"),
        f"{ms(one.latency.ms)} {how(one.latency)}, ",
        el("span", gained or "the first", class_=kind),
        f", {times(one.total)} in all",
        el("ul", [el("li", text) for text in one.rewrites]) if several else None,
        el("div", "; ".join(fact for fact in facts if fact), class_="dim"),
        el("div", one.lesson, class_="dim") if one.lesson else None,
    )
