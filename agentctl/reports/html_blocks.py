"""The building blocks of a report's sections: sections, tables, figures."""

from __future__ import annotations

from collections.abc import Sequence

from agentctl.plots import PlotFigure
from agentctl.reports.markup import Child, Html, element, render_svg


def html_section(name: str, *content: Child) -> Html:
    return element("section", element("h2", name), content)


def html_table(head: Sequence[str], rows: Sequence[Sequence[Child]], *, numbers: Sequence[int] = ()) -> Html:
    """Return a table; the columns `numbers` are right-aligned."""
    kinds = ["n" if place in numbers else None for place in range(len(head))]
    top = element(
        "tr", [element("th", text, class_=kind, scope="col") for text, kind in zip(head, kinds, strict=True)]
    )
    body = [
        element("tr", [element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)])
        for row in rows
    ]
    return element(
        "div",
        element("table", element("thead", top), element("tbody", body), class_="data"),
        class_="scroll",
        tabindex=0,
    )


def fact_table(rows: Sequence[tuple[str, Child]]) -> Html:
    body = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in rows]
    return element("div", element("table", element("tbody", body)), class_="scroll", tabindex=0)


def html_figure(found: PlotFigure | None) -> Html | None:
    if found is None:
        return None
    items = [element("li", text, class_=f"key-{kind}") for kind, text in found.legend]
    legend = element("ul", items, class_="chart-legend") if items else None
    return element(
        "figure", render_svg(found.drawing), element("figcaption", found.caption, legend), tabindex=0
    )
