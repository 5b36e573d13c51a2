"""Instructions cut in two by columns: what can be, and the source of both parts.

An instruction that treats every element by itself does the same when one engine has some of its columns and
another one the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import libcst as cst

from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substituted
from targets.nki.rewrites.elementwise import is_plain
from targets.nki.rewrites.model import Access, Kernel, Statement
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.transform import Refused

BY_COLUMN = frozenset({"tensor_copy", "tensor_scalar", "tensor_tensor"})
"""Instructions of several engines that treat every element by itself."""
STEP = 32
"""Columns are shared in multiples of this."""
LEAST = 1 / 16
"""Share below which an engine is not asked."""


def width_of(item: Statement) -> int:
    """Columns of the result."""
    dst = item.access("dst")
    return dst.view.shape[-1] if dst is not None else 0


def is_wide(item: Statement) -> bool:
    """Whether an instruction could be cut, if its operands allow it."""
    return item.op in BY_COLUMN and width_of(item) >= STEP + STEP


def even_columns(busy: float, other_busy: float, cost: float, other_cost: float, width: int) -> int:
    """How many of an instruction's columns another engine takes so that both come out even; 0 if too few.

    `busy` is with the whole instruction on its engine, where it costs `cost`; on the other it would cost
    `other_cost`.
    """
    share = (busy - other_busy) / (cost + other_cost)
    count = int(share * width) // STEP * STEP
    return count if LEAST * width <= count <= (1 - LEAST) * width else 0


def narrowed(item: Statement, columns: int) -> Form:
    """The form of an instruction for so many of its columns."""
    assert item.form is not None
    wide = {access.role for access in _wide(item)}
    operands = tuple(
        replace(operand, dims=(*operand.dims[:-1], (operand.dims[-1][0], columns)))
        if operand.role in wide
        else operand
        for operand in item.form.operands
    )
    return replace(item.form, operands=operands)


def runs_on(form: Form, engine: str, target: Target) -> bool:
    """Whether an engine has an instruction and reaches its operands."""
    reached = engine != "gpsimd" or all(operand.buffer != "psum" for operand in form.operands)
    moved = replace(form, engine=engine)
    return reached and not any(True for _ in OPERATORS[form.op].breaches(moved, target))


def _wide(item: Statement) -> list[Access]:
    """The operands that have a column for each of the results."""
    dst = item.access("dst")
    assert dst is not None
    return [access for access in item.accesses if access.view.shape[-1] == dst.view.shape[-1]]


def check_columns(item: Statement) -> None:
    """Check that an instruction may be cut.

    Raises:
        Refused: its columns are not by themselves.
    """
    if not is_plain(item):
        raise Refused(f"{item.op} has arguments that may not be meant for a part")
    dst = item.access("dst")
    assert dst is not None
    for access in item.accesses:
        if access not in _wide(item) and access.view.shape[-1] != 1:
            raise Refused(f"{access.role} has other columns than the result")
        if access.tensor.id == dst.tensor.id and access.view != dst.view:
            raise Refused(f"{item.op} reads other parts of {dst.tensor.name} than it writes")
    for access in _wide(item):
        if not access.view.plain:
            raise Refused(f"{access.role} is rearranged")


def cut(kernel: Kernel, item: Statement, share: Fraction) -> tuple[cst.BaseStatement, cst.BaseStatement]:
    """The instruction for this share of the columns, and for the others.

    Raises:
        Refused: the columns of an operand are not written so that they can be cut.
    """
    windows = {access.role: _windows(kernel, item, access, share) for access in _wide(item)}
    first: dict[str, str | None] = {role: front for role, (front, _) in windows.items()}
    last: dict[str, str | None] = {role: back for role, (_, back) in windows.items()}
    return syntax.with_arguments(item.node, first), syntax.with_arguments(item.node, last)


def _windows(kernel: Kernel, item: Statement, access: Access, share: Fraction) -> tuple[str, str]:
    """The columns of an operand up to its share and from there on, in source that holds for any width."""
    rank, text = len(access.tensor.shape), item.texts[access.role]
    node = syntax.expression(text)
    if isinstance(node, cst.Name):
        return _cut(text, [":"] * (rank - 1), "0", "", _scaled(_width(kernel, item, text, access), share))
    if not isinstance(node, cst.Subscript) or access.tensor.copies or len(node.slice) > rank:
        raise Refused(f"{text} is not indexed plainly")
    parts = [kernel.module.code_for_node(part.slice) for part in node.slice]
    base = kernel.module.code_for_node(node.value)
    if len(parts) < rank:
        parts += [":"] * (rank - 1 - len(parts))
        return _cut(base, parts, "0", "", _scaled(_width(kernel, item, base, access), share))
    piece = node.slice[-1].slice
    if not isinstance(piece, cst.Slice) or piece.step is not None:
        raise Refused(f"the columns of {text} are not written as a slice")
    low = kernel.module.code_for_node(piece.lower) if piece.lower else "0"
    high = kernel.module.code_for_node(piece.upper) if piece.upper else ""
    if low.startswith("-") or high.startswith("-"):
        raise Refused(f"the columns of {text} are counted from the end")
    width = substituted("high - low", {"high": high or _width(kernel, item, base, access), "low": low})
    middle = substituted("low + offset", {"low": low, "offset": _scaled(width, share)})
    return _cut(base, parts[:-1], low, high, middle)


def _width(kernel: Kernel, item: Statement, name: str, access: Access) -> str:
    """The columns of a tensor: as its declaration has them, if that is a word, else what the tensor says."""
    tensor = access.tensor
    declared = kernel.declarations.get(tensor.id)
    if declared is not None and tensor.name == name:
        told = shape_texts(kernel, declared)[-1]
        if told.isdecimal() or (told.isidentifier() and not kernel.rebinds(told, declared, item)):
            return told
    return f"{name}.shape[{len(tensor.shape) - 1}]"


def _scaled(width: str, share: Fraction) -> str:
    if width.isdecimal():
        return str(int(width) * share.numerator // share.denominator)
    product = "" if share.numerator == 1 else f" * {share.numerator}"
    return f"{syntax.grouped(width, first=True)}{product} // {share.denominator}"


def _cut(base: str, parts: Sequence[str], low: str, high: str, middle: str) -> tuple[str, str]:
    """Two windows that meet in the middle."""
    ends = _slice(low, middle), _slice(middle, high)
    first, last = (f"{base}[{', '.join([*parts, piece])}]" for piece in ends)
    return first, last


def _slice(low: str, high: str) -> str:
    return f"{low}:{high}" if f"{low}{high}".isalnum() else f"{low} : {high}".rstrip()
