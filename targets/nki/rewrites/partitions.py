"""Which partitions of a tile a statement takes: the first index of the tile's every mention."""

from __future__ import annotations

import libcst as cst

from targets.nki.rewrites import syntax


def partition_window(low: str, high: str) -> cst.SubscriptElement:
    """`low:high`, with space around the colon where a bound is a sum or product."""
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
