"""Selects partitions of a tile in a statement: changes the first index wherever the tile occurs."""

from __future__ import annotations

import libcst as cst

from targets.nki.rewrites import syntax


def partition_window(low: str, high: str) -> cst.SubscriptElement:
    """`low:high`, with spaces around the colon if a bound is a sum or product."""
    colon = ":" if low.isidentifier() | low.isdigit() and high.isidentifier() | high.isdigit() else " : "
    return syntax.parse_subscript_elements(f"{low}{colon}{high}")[0]


def select_partitions(
    item: cst.BaseStatement, name: str, rank: int, rows: cst.SubscriptElement
) -> cst.BaseStatement:
    """The statement with these partitions of a tile of `rank` dimensions."""

    def change(parts: list[cst.SubscriptElement] | None) -> cst.BaseExpression:
        rest = parts[1:] if parts else syntax.parse_subscript_elements(":") * (rank - 1)
        return syntax.make_subscript(name, [rows, *rest])

    return syntax.reindex_tensor(item, name, change)
