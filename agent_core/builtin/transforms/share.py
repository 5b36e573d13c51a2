"""Sharing: two engines do one instruction together, each for some of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar

import libcst as cst

from agent_core.builtin import syntax
from agent_core.builtin.arithmetic import substituted
from agent_core.builtin.elementwise import is_plain
from agent_core.builtin.estimate import estimate, form_ns
from agent_core.builtin.model import Access, Kernel, Node, Statement
from agent_core.builtin.staging import shape_texts
from agent_core.builtin.transforms.base import Choice, Refused, Transform
from agent_core.builtin.transforms.engine import other_engines
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target

BY_COLUMN = frozenset({"tensor_copy", "tensor_scalar", "tensor_tensor"})
"""Instructions of several engines that treat every element by itself."""
STEP = 32
"""Columns are shared in multiples of this."""
LEAST = 1 / 16
"""Share below which an engine is not asked."""


class Share(Transform[Statement]):
    """Splits an instruction between its engine and another one."""

    id: ClassVar[str] = "share"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "elements are computed one by one, and every engine computes the same function"

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        found: dict[str, Statement] = {}
        for item in kernel.operations():
            dst = item.access("dst")
            if dst is not None and item.op in BY_COLUMN and dst.view.shape[-1] >= STEP + STEP:
                base = f"{item.op} to {dst.tensor.name}"
                count = sum(name.partition("#")[0] == base for name in found)
                found[f"{base}#{count + 1}" if count else base] = item
        return found

    def choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        _check(place)
        able = [name for name in other_engines(place) if _runs_on(place, name, target)]
        shares = {name: _columns(kernel, target, place, name) for name in able}
        found: list[Choice] = [{"engine": name, "columns": n} for name, n in shares.items() if n]
        if not found:
            raise Refused(f"no other engine has time for a part of this {place.op}")
        return tuple(found)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del target
        _check(place)
        dst = place.access("dst")
        assert dst is not None
        width = dst.view.shape[-1]
        kept, moved = _parts(kernel, place, Fraction(width - int(choice["columns"]), width))
        moved = syntax.with_arguments(moved, {"engine": f"{kernel.nisa}.engine.{choice['engine']}"})

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return [kept, syntax.at_front(moved, [])] if node is place else None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _wide(item: Statement) -> list[Access]:
    """The operands that have a column for each of the results."""
    dst = item.access("dst")
    assert dst is not None
    return [access for access in item.accesses if access.view.shape[-1] == dst.view.shape[-1]]


def _check(item: Statement) -> None:
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


def _runs_on(item: Statement, engine: str, target: Target) -> bool:
    assert item.form is not None
    form = replace(item.form, engine=engine)
    reached = engine != "gpsimd" or all(operand.buffer != "psum" for operand in form.operands)
    return reached and not any(True for _ in OPERATORS[form.op].breaches(form, target))


def _columns(kernel: Kernel, target: Target, item: Statement, engine: str) -> int:
    """How many columns make the two engines come out even; 0 where it is not worth it."""
    assert item.form is not None
    busy = estimate(kernel, target).busy_ns
    mine = form_ns(item.form, target)[item.engine] * item.trips
    other = form_ns(replace(item.form, engine=engine), target)[engine] * item.trips
    share = (busy[item.engine] - busy[engine]) / (mine + other)
    dst = item.access("dst")
    assert dst is not None
    width = dst.view.shape[-1]
    count = int(share * width) // STEP * STEP
    return count if LEAST * width <= count <= (1 - LEAST) * width else 0


def _parts(kernel: Kernel, item: Statement, share: Fraction) -> tuple[cst.BaseStatement, cst.BaseStatement]:
    """The instruction for this share of the columns, and for the others."""
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
