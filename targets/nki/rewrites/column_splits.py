"""Splits instructions in two by columns: which can be split, and the source of both parts.

An elementwise instruction computes the same if one engine has some of its columns and another one the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import libcst as cst

from nki_sim.forms import Form
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substitute_names
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.elementwise import has_plain_arguments
from targets.nki.rewrites.kernel_ir import Access, Kernel, Statement
from targets.nki.rewrites.transform import RewriteRefused

COLUMN_WISE = frozenset({"scalar_tensor_tensor", "tensor_copy", "tensor_scalar", "tensor_tensor"})
"""Elementwise instructions that several engines have."""
COLUMN_STEP = 32
"""Columns are split in multiples of this."""
MIN_SHARE = 1 / 16
"""Smallest share that is worth giving to an engine."""


def result_width(item: Statement) -> int:
    """Number of columns of the result."""
    dst = item.find_access("dst")
    return dst.view.shape[-1] if dst is not None else 0


def is_splittable(item: Statement) -> bool:
    """Whether an instruction could be split, if its operands allow it."""
    return item.op in COLUMN_WISE and result_width(item) >= COLUMN_STEP + COLUMN_STEP


def balanced_columns(busy: float, other_busy: float, cost: float, other_cost: float, width: int) -> int:
    """Number of columns to move to another engine so that both take equally long; 0 if too few.

    `busy` includes the whole instruction on its engine, where it costs `cost`; on the other it would cost
    `other_cost`.
    """
    share = (busy - other_busy) / (cost + other_cost)
    count = int(share * width) // COLUMN_STEP * COLUMN_STEP
    return count if MIN_SHARE * width <= count <= (1 - MIN_SHARE) * width else 0


def narrow_form(item: Statement, columns: int) -> Form:
    """The form of an instruction for this number of its columns."""
    assert item.form is not None
    wide = {access.role for access in _full_width_accesses(item)}
    operands = tuple(
        replace(operand, dims=(*operand.dims[:-1], (operand.dims[-1][0], columns)))
        if operand.role in wide
        else operand
        for operand in item.form.operands
    )
    return replace(item.form, operands=operands)


def _full_width_accesses(item: Statement) -> list[Access]:
    """The operands that have a column for each column of the result."""
    dst = item.find_access("dst")
    assert dst is not None
    return [access for access in item.accesses if access.view.shape[-1] == dst.view.shape[-1]]


def check_columns(item: Statement) -> None:
    """Check that an instruction may be split.

    Raises:
        RewriteRefused: its columns are not independent.
    """
    if not has_plain_arguments(item):
        raise RewriteRefused(f"{item.op} has arguments that may not be meant for a part")
    dst = item.find_access("dst")
    assert dst is not None
    for access in item.accesses:
        if access not in _full_width_accesses(item) and access.view.shape[-1] != 1:
            raise RewriteRefused(f"{access.role} has other columns than the result")
        if access.tensor.id == dst.tensor.id and access.view != dst.view:
            raise RewriteRefused(f"{item.op} reads other parts of {dst.tensor.name} than it writes")
    for access in _full_width_accesses(item):
        if not access.view.plain:
            raise RewriteRefused(f"{access.role} is rearranged")


def split_columns(
    kernel: Kernel, item: Statement, share: Fraction
) -> tuple[cst.BaseStatement, cst.BaseStatement]:
    """The instruction for this share of the columns, and for the others.

    Raises:
        RewriteRefused: the columns of an operand are not written in a form that can be split.
    """
    windows = {
        access.role: _split_operand(kernel, item, access, share=share)
        for access in _full_width_accesses(item)
    }
    first: dict[str, str | None] = {role: front for role, (front, _) in windows.items()}
    last: dict[str, str | None] = {role: back for role, (_, back) in windows.items()}
    return syntax.replace_arguments(item.node, first), syntax.replace_arguments(item.node, last)


def _split_operand(kernel: Kernel, item: Statement, access: Access, *, share: Fraction) -> tuple[str, str]:
    """The columns of an operand up to its share and from there on, in source that is right for any width."""
    rank, text = len(access.tensor.shape), item.texts[access.role]
    node = syntax.parse_expression(text)
    if isinstance(node, cst.Name):
        return _split_window(
            text,
            [":"] * (rank - 1),
            "0",
            high="",
            middle=_share_text(_width_text(kernel, item, text, access=access), share),
        )
    if not isinstance(node, cst.Subscript) or access.tensor.copies or len(node.slice) > rank:
        raise RewriteRefused(f"{text} is not indexed plainly")
    parts = [kernel.module.code_for_node(part.slice) for part in node.slice]
    base = kernel.module.code_for_node(node.value)
    if len(parts) < rank:
        parts += [":"] * (rank - 1 - len(parts))
        return _split_window(
            base,
            parts,
            "0",
            high="",
            middle=_share_text(_width_text(kernel, item, base, access=access), share),
        )
    piece = node.slice[-1].slice
    if not isinstance(piece, cst.Slice) or piece.step is not None:
        raise RewriteRefused(f"the columns of {text} are not written as a slice")
    low = kernel.module.code_for_node(piece.lower) if piece.lower else "0"
    high = kernel.module.code_for_node(piece.upper) if piece.upper else ""
    if low.startswith("-") or high.startswith("-"):
        raise RewriteRefused(f"the columns of {text} are counted from the end")
    width = substitute_names(
        "high - low", {"high": high or _width_text(kernel, item, base, access=access), "low": low}
    )
    middle = substitute_names("low + offset", {"low": low, "offset": _share_text(width, share)})
    return _split_window(base, parts[:-1], low, high=high, middle=middle)


def _width_text(kernel: Kernel, item: Statement, name: str, *, access: Access) -> str:
    """The number of columns of a tensor: the name in its declaration if there is one, else its shape."""
    tensor = access.tensor
    declared = kernel.declarations.get(tensor.id)
    if declared is not None and tensor.name == name:
        told = shape_texts(kernel, declared)[-1]
        if told.isdecimal() or (told.isidentifier() and not kernel.may_rebind(told, declared, item)):
            return told
    return f"{name}.shape[{len(tensor.shape) - 1}]"


def _share_text(width: str, share: Fraction) -> str:
    if width.isdecimal():
        return str(int(width) * share.numerator // share.denominator)
    product = "" if share.numerator == 1 else f" * {share.numerator}"
    return f"{syntax.group_factor(width, first=True)}{product} // {share.denominator}"


def _split_window(base: str, parts: Sequence[str], low: str, *, high: str, middle: str) -> tuple[str, str]:
    """Two windows that meet in the middle."""
    ends = _slice_text(low, middle), _slice_text(middle, high)
    first, last = (f"{base}[{', '.join([*parts, piece])}]" for piece in ends)
    return first, last


def _slice_text(low: str, high: str) -> str:
    return f"{low}:{high}" if f"{low}{high}".isalnum() else f"{low} : {high}".rstrip()
