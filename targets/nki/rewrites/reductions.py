"""Row reductions: what rewrites that move or fuse them need to know about one."""

from __future__ import annotations

from targets.nki.rewrites.elementwise import has_plain_arguments
from targets.nki.rewrites.kernel_ir import Statement
from targets.nki.rewrites.values import TensorView

SPLITTABLE_OPERATORS = frozenset({"add", "multiply", "maximum", "minimum"})
"""Operators for which reducing the parts' results equals reducing everything."""


def reduces_rows(item: Statement) -> bool:
    """Whether a `tensor_reduce` leaves one number per partition, with an operator that can be split."""
    data = item.find_access("data")
    if item.op != "tensor_reduce" or item.form is None or data is None or not has_plain_arguments(item):
        return False
    axes = item.form.param("axis")
    given = axes if isinstance(axes, tuple) else (axes,)
    everything = set(given) == set(range(1, len(data.view.axes)))
    return everything and item.form.param("op") in SPLITTABLE_OPERATORS and "keepdims" not in item.texts


def free_axes_text(view: TensorView) -> str:
    """The source of a view's axes after the partitions."""
    axes = [str(axis) for axis in range(1, len(view.axes))]
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
