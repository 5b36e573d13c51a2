"""Buffer scope: a buffer that each iteration fills anew is declared inside the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from agent_core.builtin import syntax
from agent_core.builtin.model import Kernel, Loop, Node, Statement, inside
from agent_core.builtin.transforms.base import Choice, Refused, Transform
from agent_core.builtin.values import Tensor
from nki_sim.targets import Target


class BufferScope(Transform[tuple[Tensor, Loop]]):
    """Moves a declaration into the loop that uses it, so that iterations do not wait for each other."""

    id: ClassVar[str] = "buffer_scope"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = "every iteration writes all of the buffer before it reads any of it"

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, tuple[Tensor, Loop]]:
        del target
        return {
            f"{kernel.label(item.tensor)} into {kernel.label(loop)}": (item.tensor, loop)
            for item in kernel.declarations.values()
            if item.tensor is not None and item.tensor.on_chip
            for loop in kernel.loops
            if loop.path == item.path and any(inside(loop, user) for user in kernel.users(item.tensor))
        }

    def choices(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop]) -> tuple[Choice, ...]:
        del target
        _check(kernel, *place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop], choice: Choice) -> str:
        del target, choice
        tensor, loop = place
        _check(kernel, tensor, loop)
        declared = kernel.declarations[tensor.id]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node is declared:
                return []
            if node is loop:
                return [syntax.with_body(loop.node, [declared.node, *(item.node for item in loop.body)])]
            return None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _check(kernel: Kernel, tensor: Tensor, loop: Loop) -> None:
    users = kernel.users(tensor)
    outside = [item for item in users if not inside(loop, item)]
    if outside:
        raise Refused(f"{tensor.name} is also used outside the loop over {loop.var}")
    if tensor.id in kernel.escaping:
        raise Refused(f"{tensor.name} has a second name or is used by what cannot be read")
    first = users[0]
    if (
        first.path != (*kernel.declarations[tensor.id].path, loop)
        or first.guards
        or not _fills(first, tensor)
    ):
        raise Refused(f"iterations over {loop.var} do not start by filling {tensor.name}")


def _fills(item: Statement, tensor: Tensor) -> bool:
    mine = [access for access in item.accesses if access.tensor.id == tensor.id]
    filled = all(access.writes and not access.reads and access.view.whole for access in mine)
    return filled and not tensor.copies
