"""Buffer scope: a buffer that each iteration fills completely is declared inside the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node, Statement, loop_contains
from targets.nki.rewrites.slices import covering_loops
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor


class BufferScope(Transform[tuple[Tensor, Loop]]):
    """Moves a declaration into the loop that uses it, so that iterations do not wait for each other."""

    id: ClassVar[str] = "buffer_scope"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = "every iteration writes all of the buffer before it reads any of it"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, tuple[Tensor, Loop]]:
        del target
        return {
            f"{kernel.unique_label(item.tensor)} into {kernel.unique_label(loop)}": (item.tensor, loop)
            for item in kernel.declarations.values()
            if item.tensor is not None and item.tensor.is_on_chip
            for loop in kernel.loops
            if loop.path[: len(item.path)] == item.path
            and any(loop_contains(loop, user) for user in kernel.users_of(item.tensor))
        }

    def list_choices(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop]) -> tuple[Choice, ...]:
        del target
        _check_scope(kernel, *place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop], choice: Choice) -> str:
        del target, choice
        tensor, loop = place
        _check_scope(kernel, tensor, loop)
        declared = kernel.declarations[tensor.id]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node is declared:
                return []
            if node is loop:
                return [syntax.replace_body(loop.node, [declared.node, *(item.node for item in loop.body)])]
            return None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _check_scope(kernel: Kernel, tensor: Tensor, loop: Loop) -> None:
    users = kernel.users_of(tensor)
    outside = [item for item in users if not loop_contains(loop, item)]
    if outside:
        raise RewriteRefused(f"{tensor.name} is also used outside the loop over {loop.var}")
    if kernel.declarations[tensor.id].guards:
        raise RewriteRefused(f"{tensor.name} is declared under a condition")
    if tensor.id in kernel.escaping_ids:
        raise RewriteRefused(f"{tensor.name} has a second name or is used by what cannot be read")
    if tensor.copies:
        raise RewriteRefused(f"{tensor.name} is a list of tiles")
    first, declared = users[0], kernel.declarations[tensor.id]
    if any(kernel.may_rebind(text, declared, first) for text in declared.texts.values()):
        raise RewriteRefused(
            f"the declaration of {tensor.name} means something else in the loop over {loop.var}"
        )
    between = (item for item in kernel.statements if declared.order < item.order < first.order)
    if any(tensor.name in item.mentions for item in between):
        raise RewriteRefused(f"something is said of {tensor.name} in front of the loop over {loop.var}")
    if not _fills_tensor(kernel, loop, first, tensor=tensor):
        raise RewriteRefused(f"iterations over {loop.var} do not start by filling {tensor.name}")


def _fills_tensor(kernel: Kernel, loop: Loop, first: Statement, *, tensor: Tensor) -> bool:
    """Whether the first user in the loop, alone or over loops of its own, writes all of the tensor."""
    mine = [access for access in first.accesses if access.tensor.id == tensor.id]
    inner = first.path[len(loop.path) + 1 :]
    reading = [
        item for item in kernel.users_of(tensor) if item is not first and inner and inner[0] in item.path
    ]
    alone = first.path[: len(loop.path) + 1] == (*loop.path, loop) and not first.guards and not reading
    return alone and all(
        item.writes and not item.reads and item.view.plain and covering_loops(item.view, inner) is not None
        for item in mine
    )
