"""Joins the equal tiles of a list into one wide tile, in which they lie side by side.

Windows that a loop moves over one tile can be widened, but those over a list of tiles cannot, because no
instruction takes two tiles at once. Joined tiles hold the same elements for the same time in as many bytes
per partition, so only what an instruction may cover changes.
"""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.list_tiles import render_index
from targets.nki.rewrites.transform import RewriteRefused, read_rewritten
from targets.nki.rewrites.values import Affine, DimensionRange, Tensor


def find_walked_lists(kernel: Kernel, loop: Loop) -> tuple[Tensor, ...]:
    """Return the lists of tiles of which a loop picks one after the other."""
    found = {
        access.tensor.id: access.tensor
        for item in kernel.operations()
        for access in item.accesses
        if any(loop.id in pick.loops for pick in access.view.picks)
    }
    return tuple(found[number] for number in sorted(found))


def join_tiles(kernel: Kernel, lists: Collection[Tensor], target: Target) -> Kernel:
    """Return the kernel with one wide tile in place of each list.

    Raises:
        RewriteRefused: a list is not of equal tiles in SBUF with rows only, or is used otherwise than by
            windows of one tile.
    """
    ids = {tensor.id for tensor in lists}
    for tensor in lists:
        _check_list(kernel, tensor)

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if not isinstance(node, Statement):
            return None
        if node.tensor is not None and node.tensor.id in ids:
            return [_declare_joined(kernel, node, node.tensor)]
        texts: dict[str, str | None] = {
            access.role: _window_text(kernel, node, access)
            for access in node.accesses
            if access.tensor.id in ids
        }
        return [syntax.replace_arguments(node.node, texts)] if texts else None

    source = syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))
    joined = read_rewritten(source, kernel.arguments, target)
    _check_same_elements(kernel, joined, ids)
    return joined


def _check_list(kernel: Kernel, tensor: Tensor) -> None:
    name, declared = tensor.name, kernel.declarations.get(tensor.id)
    if declared is None or tensor.id in kernel.escaping_ids:
        raise RewriteRefused(f"the list {name} has a second name or is used by what cannot be read")
    if tensor.buffer != "sbuf":
        raise RewriteRefused(f"the tiles of {name} lie in {tensor.buffer}, where each has banks of its own")
    if len(tensor.copies) != 1 or len(tensor.shape) != 2:
        raise RewriteRefused(f"{name} is a list of lists, or its tiles have more than rows and columns")


def _declare_joined(kernel: Kernel, item: Statement, tensor: Tensor) -> cst.BaseStatement:
    rows = shape_texts(kernel, item)[0]
    words = ", ".join(f"{key}={item.texts[key]}" for key in ("dtype", "buffer") if key in item.texts)
    width = tensor.copies[0] * tensor.shape[1]
    made = syntax.parse_statement(f"{tensor.name} = {kernel.nl}.ndarray(({rows}, {width}), {words})")
    return syntax.with_leading_lines(made, syntax.leading_lines(item.node))


def _window_text(kernel: Kernel, item: Statement, access: Access) -> str:
    """The source of an operand's elements in the wide tile."""
    view, tensor = access.view, access.tensor
    plain = view.plain and not view.within and [axis.source for axis in view.axes] == [0, 1]
    if access.role not in item.texts or not plain or any(window.step != 1 for window in view.box):
        raise RewriteRefused(f"{item.op} takes {tensor.name} rearranged, in steps or in a list of operands")
    rows, columns = view.box[0], _joined_columns(access)
    kept = ":" if rows.size == tensor.shape[0] else _slice_text(kernel, rows)
    return f"{tensor.name}[{kept}, {_slice_text(kernel, columns)}]"


def _joined_columns(access: Access) -> DimensionRange:
    window = access.view.box[1]
    start = window.start + access.view.picks[0].scale_by(access.tensor.shape[1])
    return DimensionRange(start, window.size, window.step)


def _slice_text(kernel: Kernel, window: DimensionRange) -> str:
    end = window.start + Affine(window.size)
    return f"{render_index(kernel, window.start)} : {render_index(kernel, end)}"


def _check_same_elements(old: Kernel, new: Kernel, ids: Collection[int]) -> None:
    """Check that every instruction takes the elements that it took before."""
    trips = [[loop.trips for loop in kernel.loops] for kernel in (old, new)]
    if len(old.nodes) != len(new.nodes) or trips[0] != trips[1]:
        raise RewriteRefused("the kernel with joined tiles reads differently")
    for before, after in zip(old.statements, new.statements, strict=True):
        if before.kind is not StatementKind.OPERATE:
            continue
        same = before.op == after.op and before.arguments == after.arguments
        if not same or len(before.accesses) != len(after.accesses):
            raise RewriteRefused(f"{before.op} reads differently with joined tiles")
        for mine, other in zip(before.accesses, after.accesses, strict=True):
            box = mine.view.box
            if mine.tensor.id in ids:
                box = (box[0], _joined_columns(mine))
            if (mine.tensor.name, box) != (other.tensor.name, other.view.box):
                raise RewriteRefused(f"{before.op} takes other elements of {mine.tensor.name} when joined")
