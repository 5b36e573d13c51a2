"""Computes each part of a tile where a copy puts it, instead of the whole tile afterwards.

Many kernels copy each product from PSUM to its columns of a row, and then add or scale the whole row. The
instruction can take each product from PSUM itself: the copies and the row between them are gone, and it works
on one part while the next one is made.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.column_splits import COLUMN_WISE, check_columns
from targets.nki.rewrites.elementwise import find_sole_writer, has_plain_arguments
from targets.nki.rewrites.kernel_ir import (
    Access,
    Kernel,
    Loop,
    Node,
    Statement,
    StatementKind,
    list_statements,
)
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, Tensor

_ELEMENTWISE = COLUMN_WISE | {"activation"}


@dataclass(frozen=True, slots=True)
class _Plan:
    """A copy to a part of a tile, and the only reader of that tile; `moved` has to come before the copies."""

    copy: Statement
    reader: Statement
    loop: Loop
    """The outermost loop around the copy that is not around the reader."""
    moved: tuple[Statement, ...]


def compute_copied_parts(kernel: Kernel, copy: Statement) -> str:
    """The source in which the reader of a tile computes each part where the copy would have put it.

    Raises:
        RewriteRefused: the copies do not fill the tile once, or the reader does not compute column by column.
    """
    plan = _plan_parts(kernel, copy)
    goal = _access(copy, "dst").tensor
    columns = _column_text(copy)

    def part(name: str) -> str:
        return f"{name}[{', '.join([*[':'] * (len(goal.shape) - 1), columns])}]"

    words: dict[str, str | None] = {
        access.role: copy.texts["src"] if access.tensor.id == goal.id else part(access.tensor.name)
        for access in plan.reader.accesses
        if access.view.shape[-1] == goal.shape[-1]
    }
    computed = syntax.replace_arguments(plan.reader.node, words)
    dropped = {plan.reader, kernel.declarations[goal.id], *plan.moved}

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is plan.loop:
            return [*(item.node for item in plan.moved), *syntax.rebuild_block([node], emit_inside)]
        return emit_inside(node)

    def emit_inside(node: Node) -> list[cst.BaseStatement] | None:
        if node is copy:
            return [computed]
        return [] if node in dropped else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _access(item: Statement, role: str) -> Access:
    found = item.find_access(role)
    assert found is not None
    return found


def _plan_parts(kernel: Kernel, copy: Statement) -> _Plan:
    goal, src = _access(copy, "dst").tensor, _access(copy, "src")
    declared = kernel.declarations.get(goal.id)
    others = [item for item in kernel.users_of(goal) if item is not copy]
    if len(others) != 1 or declared is None or goal.copies or goal.id in kernel.escaping_ids:
        raise RewriteRefused(f"{goal.name} is not copied in parts for one reader")
    (reader,) = others
    depth = len(reader.path)
    inner = copy.path[depth:]
    if (
        reader.writes_tensor(goal)
        or declared.path != reader.path
        or copy.path[:depth] != reader.path
        or not inner
        or reader.order < copy.order
        or any(item.guards for item in (copy, reader, declared))
    ):
        raise RewriteRefused(f"{goal.name} is not read once after all of its parts are copied")
    plain = src.view.plain and src.tensor.id not in kernel.escaping_ids and has_plain_arguments(copy)
    same = src.view.shape == _access(copy, "dst").view.shape and len(src.view.shape) == len(goal.shape)
    if not plain or src.tensor.dtype != goal.dtype or not same:
        raise RewriteRefused("the copy converts, or rearranges what it takes")
    _check_parts(_access(copy, "dst"), inner)
    _check_reader(kernel, reader, goal)
    return _Plan(copy, reader, inner[0], _find_moved(kernel, reader, inner[0], goal))


def _check_parts(dst: Access, inner: Sequence[Loop]) -> None:
    """Check that the iterations of the loops write all columns, each once."""
    *rows, columns = dst.view.box
    shape = dst.tensor.shape
    whole = all(one.start == Affine(0) and one.size == size for one, size in zip(rows, shape, strict=False))
    steps = dict(columns.start.terms)
    reached = columns.size
    for loop in sorted(inner, key=lambda loop: steps.get(loop.id, 0)):
        if steps.pop(loop.id, 0) != reached:
            break
        reached *= loop.trips
    else:
        if whole and not steps and not columns.start.const and reached == shape[-1] and dst.view.plain:
            return
    raise RewriteRefused(f"the copies do not fill the columns of {dst.tensor.name} one after the other")


def _check_reader(kernel: Kernel, reader: Statement, goal: Tensor) -> None:
    dst = _access(reader, "dst").tensor if reader.find_access("dst") is not None else None
    if reader.op not in _ELEMENTWISE or dst is None:
        raise RewriteRefused(f"{reader.op} does not compute column by column")
    check_columns(reader)
    if find_sole_writer(kernel, dst) is not reader:
        raise RewriteRefused(f"{dst.name} is not made by this {reader.op} alone")
    for access in reader.accesses:
        wide = access.view.shape[-1] == goal.shape[-1]
        if wide and not (access.view.is_whole and reader.texts[access.role] == access.tensor.name):
            raise RewriteRefused(f"{access.role} is a part of {access.tensor.name}")
        if wide and access.tensor.shape != goal.shape:
            raise RewriteRefused(f"{access.tensor.name} has another shape than {goal.name}")


def _find_moved(kernel: Kernel, reader: Statement, loop: Loop, goal: Tensor) -> tuple[Statement, ...]:
    """What stands between the loop and the reader and is needed by the reader, in order.

    Raises:
        RewriteRefused: it cannot come before the loop.
    """
    block = reader.path[-1].body if reader.path else kernel.body
    between = block[block.index(loop) + 1 : block.index(reader)]
    needed = {access.tensor.id for access in reader.accesses} - {goal.id}
    moved: list[Statement] = []
    stays = list_statements([loop])
    for node in reversed(between):
        made = {
            access.tensor.id for item in list_statements([node]) for access in item.accesses if access.writes
        }
        declares = {item.tensor.id for item in list_statements([node]) if item.tensor is not None}
        if not needed & (made | declares):
            continue
        if not isinstance(node, Statement) or node.kind not in {StatementKind.DECLARE, StatementKind.OPERATE}:
            raise RewriteRefused(f"what {reader.op} needs is made in a loop after the copies")
        moved.insert(0, node)
        needed |= {access.tensor.id for access in node.accesses}
    if goal.id in needed:
        raise RewriteRefused(f"what {reader.op} needs is made from {goal.name}")
    stays += [item for item in list_statements(between) if item not in moved]
    for item in [*moved, reader]:
        _check_precedes(item, [other for other in stays if item is reader or other.order < item.order], goal)
    return tuple(moved)


def _check_precedes(item: Statement, others: Iterable[Statement], goal: Tensor) -> None:
    """Check that a statement may come before others that it followed."""
    for other in others:
        if other.kind is StatementKind.OPAQUE:
            raise RewriteRefused(f"what cannot be read is in between: {other.reason}")
        counted = {loop.var for loop in other.path if loop not in item.path}
        if (item.binds & (other.uses | other.binds)) | (item.uses & (other.binds | counted) - {goal.name}):
            raise RewriteRefused(f"{item.op or 'a declaration'} uses a name that changes in between")
        for mine in item.accesses:
            if mine.tensor.id != goal.id and any(
                mine.tensor.id == theirs.tensor.id and (mine.writes or theirs.writes)
                for theirs in other.accesses
            ):
                raise RewriteRefused(f"{mine.tensor.name} changes, or is used, in between")


def _column_text(copy: Statement) -> str:
    """The columns of the copy's destination, as its source says them."""
    goal = _access(copy, "dst").tensor
    match ast.parse(copy.texts["dst"], mode="eval").body:
        case ast.Subscript(ast.Name(goal.name), ast.Tuple(parts)) if len(parts) == len(goal.shape):
            return ast.unparse(parts[-1])
    raise RewriteRefused("the columns of the copy are not said by one slice")
