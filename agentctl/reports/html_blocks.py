"""The building blocks of a report's sections: sections, tables, figures."""

from __future__ import annotations

from collections.abc import Sequence

from agentctl.reports.markup import Child, Html, element


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


def html_figure(drawn: Html | None, caption: str) -> Html | None:
    return None if drawn is None else element("figure", drawn, element("figcaption", caption), tabindex=0)
