"""Source code as HTML tables: a kernel with the cost of each line, and the difference of two kernels."""

from __future__ import annotations

from collections.abc import Mapping

from agentctl.reports.document import LineCost
from agentctl.reports.markup import Html, element
from agentctl.views.highlight import highlight_source

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
