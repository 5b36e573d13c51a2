"""What the sections of a report are made of: a section, tables, figures."""

from __future__ import annotations

from collections.abc import Sequence

from agentctl.reports.markup import Child, Html, el


def section(name: str, *content: Child) -> Html:
    return el("section", el("h2", name), content)


def table(head: Sequence[str], rows: Sequence[Sequence[Child]], *, numbers: Sequence[int] = ()) -> Html:
    """Return a table; the columns `numbers` are set to the right."""
    kinds = ["n" if place in numbers else None for place in range(len(head))]
    top = el("tr", [el("th", text, class_=kind, scope="col") for text, kind in zip(head, kinds, strict=True)])
    body = [
        el("tr", [el("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)]) for row in rows
    ]
    return el(
        "div", el("table", el("thead", top), el("tbody", body), class_="data"), class_="scroll", tabindex=0
    )


def facts(rows: Sequence[tuple[str, Child]]) -> Html:
    body = [el("tr", el("th", name, scope="row"), el("td", value)) for name, value in rows]
    return el("div", el("table", el("tbody", body)), class_="scroll", tabindex=0)


def figure(drawn: Html | None, caption: str) -> Html | None:
    return None if drawn is None else el("figure", drawn, el("figcaption", caption), tabindex=0)
