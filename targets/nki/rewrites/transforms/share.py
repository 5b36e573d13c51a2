"""Sharing: two engines split one instruction, each taking some of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.column_splits import (
    COLUMN_STEP,
    MIN_SHARE,
    balanced_columns,
    check_columns,
    is_splittable,
    result_width,
    split_columns,
)
from targets.nki.rewrites.engine_moves import can_run_on, form_on, other_engines, write_on
from targets.nki.rewrites.estimate import estimate_kernel, form_ns
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, sites_by_result


class ShareColumns(Transform[Statement]):
    """Splits an instruction's columns between its engine and another one: evenly, or fewer for the other.

    Where both wait for what comes before, the slower engine would end late.
    """

    id: ClassVar[str] = "share"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "elements are computed one by one, and every engine computes the same function"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return sites_by_result(item for item in kernel.operations() if is_splittable(item))

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        check_columns(place)
        assert place.form is not None
        able = [name for name in other_engines(place) if can_run_on(place.form, name, target)]
        shares = {name: _share_columns(kernel, target, place, engine=name) for name in able}
        found: list[Choice] = [
            {"engine": name, "columns": columns}
            for name, n in shares.items()
            for columns in dict.fromkeys((n, n // 2 // COLUMN_STEP * COLUMN_STEP))
            if columns >= MIN_SHARE * result_width(place)
        ]
        if not found:
            raise RewriteRefused(f"no other engine has time for a part of this {place.op}")
        return tuple(found)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del target
        check_columns(place)
        width = result_width(place)
        kept, moved = split_columns(kernel, place, Fraction(width - int(choice["columns"]), width))
        moved = write_on(kernel, place, moved, str(choice["engine"]))

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return [kept, syntax.with_leading_lines(moved, [])] if node is place else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _share_columns(kernel: Kernel, target: Target, item: Statement, *, engine: str) -> int:
    """How many columns to move so that both engines finish together; 0 if it is not worth it."""
    assert item.form is not None
    busy = estimate_kernel(kernel, target).busy_ns
    mine = form_ns(item.form, target)[item.engine] * item.trips
    other = form_ns(form_on(item.form, engine), target)[engine] * item.trips
    return balanced_columns(busy[item.engine], busy[engine], mine, other, result_width(item))
