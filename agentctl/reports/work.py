"""Sections on the work: what was tried and what failed, what it cost, where the time went."""

from __future__ import annotations

from agentctl.reports import plots
from agentctl.reports.document import Document
from agentctl.reports.markup import Child, Html, el
from agentctl.reports.pieces import figure, section, table
from agentctl.views.spending import KINDS
from agentctl.words import discarded, duration, percentage, times, usd

KIND_WORDS = {
    "models": "asking models",
    "proposing": "proposing",
    "compile": "compiling and tracing",
    "execute": "executing and comparing",
    "paused": "paused",
    "idle": "nothing under way",
}


def tried(found: Document) -> Html:
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
                times(one["median_speedup"]),
            )
            for one in tries.techniques
        ]
        head = ("technique", "tried", "correct", "kept", "improvements", "median speed-up")
        content.append(table(head, rows, numbers=range(1, 6)))
    if tries.discarded:
        told = ", ".join(f"{number} {discarded(reason)}" for reason, number in tries.discarded.items())
        content.append(el("p", f"Correct and not kept: {told}."))
    if tries.failures:
        failed: list[tuple[Child, ...]] = [
            (
                el("code", one.code),
                one.stage,
                str(one.count),
                ", ".join(one.techniques),
                el("div", [el("div", text) for text in one.examples], class_="said"),
            )
            for one in tries.failures
        ]
        content.append(el("h3", "What failed"))
        content.append(table(("error", "stage", "kernels", "techniques", "said"), failed, numbers=(2,)))
    return section("What was tried", content or el("p", "Nothing yet."))


def spent(found: Document) -> Html:
    spending = found.spending
    split = {name: spending.split[name] for name in KINDS if spending.split[name] > 0}
    legend = [
        (KIND_WORDS[name], duration(seconds), percentage(100 * seconds / (spending.seconds or 1)))
        for name, seconds in split.items()
    ]
    content: list[Child] = [
        figure(plots.shares(spending.split), "Where the time went; several things at once share it."),
        table(("time", "h:mm:ss", "share"), legend, numbers=(1, 2)),
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
                usd(one.usd),
            )
            for one in spending.spent
        ]
        head = ("role", "model", "calls", "answered", "tokens in", "tokens out", "US$")
        paid = [(point.seconds, point.usd) for point in spending.curve]
        content.append(figure(plots.curve(paid, ("seconds", "US$")), "What was spent."))
        content.append(table(head, rows, numbers=range(2, 7)))
        each = usd(found.figures["cost_per_improvement_usd"])
        content.append(el("p", f"A kept improvement cost {each}."))
    return section("Cost and time", content)
