"""Forwarding: an instruction works where a later copy would put its result, or on what the copy took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import names_in
from targets.nki.rewrites.elementwise import find_sole_writer
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.part_forwarding import compute_copied_parts
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor

WRITE_DESTINATION, READ_SOURCE = "write the destination", "read the source"
COMPUTE_PARTS = "compute each part where it is copied"


class Forward(Transform[Statement]):
    """Removes a copy on chip."""

    id: ClassVar[str] = "forward"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "the copied tile had no other use, and neither side changes in between"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return find_copies(kernel)

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        reasons, found = [], []
        for way in _WAYS:
            try:
                self.apply(kernel, target, place, {"by": way})
                found.append({"by": way})
            except RewriteRefused as refusal:
                reasons.append(str(refusal))
        if not found:
            raise RewriteRefused("; ".join(reasons))
        return tuple(found)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del target
        return _WAYS[str(choice["by"])](kernel, place)


def _may_rebind_destination(
    kernel: Kernel, copy: Statement, writer: Statement, *, declared: Statement | None
) -> bool:
    """Whether the copy's destination, declared at the writer if needed, may mean something else there."""
    names, own = names_in(copy.texts["dst"]), frozenset[str]()
    if declared is not None:
        own = declared.binds
        names = names.union(*map(names_in, declared.texts.values()))
    between = [item for item in kernel.statements if writer.order <= item.order < copy.order]
    others = [item for item in between if item is not declared]
    return any((names & item.binds) or (own & item.uses) for item in others)


def find_copies(kernel: Kernel) -> dict[str, Statement]:
    """The copies on chip, by site name."""
    found = [item for item in kernel.operations() if item.op == "tensor_copy"]
    return {_copy_site(item, found): item for item in found}


def _copy_site(item: Statement, copies: list[Statement]) -> str:
    twins = [other for other in copies if other.texts.get("dst") == item.texts.get("dst")]
    number = twins.index(item)
    return f"copy to {item.texts.get('dst')}" + (f"#{number + 1}" if number else "")


def _write_destination(kernel: Kernel, copy: Statement) -> str:
    """The source in which the writer of the copied tile writes the copy's destination."""
    dst, src = copy.find_access("dst"), copy.find_access("src")
    assert dst is not None
    assert src is not None
    source, goal = src.tensor, dst.tensor
    writer = find_sole_writer(kernel, source)
    if (
        writer is None
        or len(kernel.users_of(source)) != 2
        or not src.view.is_whole
        or source.id in kernel.escaping_ids
    ):
        raise RewriteRefused(f"{source.name} is not made in one place for this copy alone")
    if (writer.path, writer.guards) != (copy.path, copy.guards):
        raise RewriteRefused(f"{source.name} is made in another block than it is copied")
    if source.dtype != goal.dtype or dst.view.shape != src.view.shape:
        raise RewriteRefused("the copy converts or reshapes")
    if not src.view.plain:
        raise RewriteRefused(f"{source.name} is rearranged on the way")
    touched = [item for item in kernel.users_of(goal) if writer.order <= item.order < copy.order]
    declared = kernel.declarations.get(goal.id)
    if touched or declared is None or goal.id in kernel.escaping_ids:
        raise RewriteRefused(f"{goal.name} is used before the copy")
    early = declared.order < writer.order
    if _may_rebind_destination(kernel, copy, writer, declared=None if early else declared):
        raise RewriteRefused(f"{copy.texts['dst']} means something else where {source.name} is made")
    if not early and (declared.path, declared.guards) != (writer.path, writer.guards):
        raise RewriteRefused(f"{goal.name} is declared elsewhere")
    new = syntax.replace_arguments(writer.node, {"dst": copy.texts["dst"]})
    old = kernel.declarations[source.id]

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is copy or (node is declared and not early):
            return []
        if node is old:
            return []
        return [*([] if early else [declared.node]), new] if node is writer else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def read_copied_source(kernel: Kernel, copy: Statement) -> str:
    """The source in which readers of the copy read the copied tile, or the copied part of it.

    Raises:
        RewriteRefused: the copied tile does not hold the same values at each of these readers.
    """
    dst, src = copy.find_access("dst"), copy.find_access("src")
    assert dst is not None
    assert src is not None
    goal, text = dst.tensor, copy.texts["src"]
    if find_sole_writer(kernel, goal) is not copy or goal.id in kernel.escaping_ids:
        raise RewriteRefused(f"{goal.name} is not made by this copy alone")
    if src.tensor.id in kernel.escaping_ids:
        raise RewriteRefused(f"{src.tensor.name} has a second name or is used by what cannot be read")
    if src.tensor.dtype != goal.dtype or not src.view.plain or src.tensor.copies:
        raise RewriteRefused("the copy converts, or rearranges what it takes")
    if src.view.shape != dst.view.shape or len(src.tensor.shape) != len(goal.shape):
        raise RewriteRefused("the copy reshapes")
    readers = [item for item in kernel.users_of(goal) if item is not copy]
    end = max(readers, key=lambda item: item.order, default=copy)
    changed = kernel.may_change(src.tensor, copy, end) or end.writes_tensor(src.tensor)
    changed = changed or kernel.may_rebind(text, copy, end)
    home = kernel.declarations.get(src.tensor.id)
    elsewhere = any((item.path, item.guards) != (copy.path, copy.guards) for item in readers)
    if changed or home is None or elsewhere:
        raise RewriteRefused(f"{src.tensor.name} does not stay as it is until the copy's last use")
    whole = src.view.is_whole
    if not whole and not all(_reads_whole_tile(item, goal) for item in readers):
        raise RewriteRefused(f"{goal.name} is a part of {src.tensor.name} and read in parts itself")
    old = kernel.declarations[goal.id]

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is copy or node is old:
            return []
        if node not in readers or not isinstance(node, Statement):
            return None
        if whole:
            return [syntax.rename_variable(node.node, goal.name, src.tensor.name)]
        mine = [access.role for access in node.accesses if access.tensor.id == goal.id]
        return [syntax.replace_arguments(node.node, dict.fromkeys(mine, text))]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


_WAYS: dict[str, Callable[[Kernel, Statement], str]] = {
    WRITE_DESTINATION: _write_destination,
    READ_SOURCE: read_copied_source,
    COMPUTE_PARTS: compute_copied_parts,
}


def _reads_whole_tile(item: Statement, tile: Tensor) -> bool:
    """Whether an instruction reads all of a tile wherever it names it."""
    mine = [access for access in item.accesses if access.tensor.id == tile.id]
    return all(access.view.is_whole and item.texts.get(access.role) == tile.name for access in mine)
