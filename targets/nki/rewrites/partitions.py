"""Which partitions of a tile a statement takes: the first index of the tile's every mention."""

from __future__ import annotations

import libcst as cst

from targets.nki.rewrites import syntax


def window(low: str, high: str) -> cst.SubscriptElement:
    """`low:high`, with space around the colon where a bound is a sum or product."""
    colon = ":" if low.isidentifier() | low.isdigit() and high.isidentifier() | high.isdigit() else " : "
    return syntax.elements(f"{low}{colon}{high}")[0]


def with_rows(item: cst.BaseStatement, name: str, rank: int, rows: cst.SubscriptElement) -> cst.BaseStatement:
    """The statement with these partitions of a tile of `rank` dimensions."""

    def change(parts: list[cst.SubscriptElement] | None) -> cst.BaseExpression:
        rest = parts[1:] if parts else syntax.elements(":") * (rank - 1)
        return syntax.subscript(name, [rows, *rest])

    return syntax.reindex(item, name, change)
