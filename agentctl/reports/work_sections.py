"""Sections on the work: what was tried and what failed, what it cost, how the time was spent."""

from __future__ import annotations

from agentctl import plots
from agentctl.formatting import (
    format_discard_reason,
    format_duration,
    format_percent,
    format_speedup,
    format_usd,
)
from agentctl.reports.document import ReportDocument
from agentctl.reports.html_blocks import html_figure, html_section, html_table
from agentctl.reports.markup import Child, Html, element
from agentctl.reports.phrases import estimates_note
from agentctl.views.spending import KINDS

KIND_WORDS = {
    "models": "asking models",
    "proposing": "proposing",
    "compile": "compiling and tracing",
    "execute": "executing and comparing",
    "paused": "paused",
    "idle": "nothing under way",
}


def attempts_section(found: ReportDocument) -> Html:
    tries = found.tried
    content: list[Child] = []
    if tries.techniques:
        rows = [
            (
                one["technique"],
                str(one["tried"]),
                str(one["valid"]),
                str(one["kept"]),
                str(one["improvements"]),
                format_speedup(one["median_speedup"]),
            )
            for one in tries.techniques
        ]
        head = ("technique", "tried", "correct", "kept", "improvements", "median speed-up")
        content.append(html_table(head, rows, numbers=range(1, 6)))
    if tries.discarded:
        told = ", ".join(
            f"{number} {format_discard_reason(reason)}" for reason, number in tries.discarded.items()
        )
        content.append(element("p", f"Correct and not kept: {told}."))
    if tries.failures:
        failed: list[tuple[Child, ...]] = [
            (
                element("code", one.code),
                one.stage,
                str(one.count),
                ", ".join(one.techniques),
                element("div", [element("div", text) for text in one.examples], class_="said"),
            )
            for one in tries.failures
        ]
        content.append(element("h3", "What failed"))
        content.append(html_table(("error", "stage", "kernels", "techniques", "said"), failed, numbers=(2,)))
    return html_section("What was tried", content or element("p", "Nothing yet."))


def spending_section(found: ReportDocument) -> Html:
    spending = found.spending
    split = {name: spending.split[name] for name in KINDS if spending.split[name] > 0}
    legend = [
        (KIND_WORDS[name], format_duration(seconds), format_percent(100 * seconds / (spending.seconds or 1)))
        for name, seconds in split.items()
    ]
    content: list[Child] = [
        html_figure(plots.plot_shares(spending.split)),
        html_table(("time", "h:mm:ss", "share"), legend, numbers=(1, 2)),
    ]
    if spending.spent:
        rows = [
            (
                one.role,
                one.model or "",
                str(one.calls),
                str(one.answered),
                f"{one.input_tokens:,}",
                f"{one.output_tokens:,}",
                format_usd(one.usd),
            )
            for one in spending.spent
        ]
        head = ("role", "model", "calls", "answered", "tokens in", "tokens out", "US$")
        content.append(html_figure(plots.plot_spending(spending.curve)))
        content.append(html_table(head, rows, numbers=range(2, 7)))
        each = format_usd(found.figures["cost_per_improvement_usd"])
        content.append(element("p", f"A kept improvement cost {each}."))
        if guessed := estimates_note(found):
            content.append(element("p", f"{guessed}."))
    return html_section("Cost and time", content)
