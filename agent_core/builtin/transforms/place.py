"""Placement: a tile lies in PSUM, from where VectorE reads a second operand in half the time, or in SBUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from agent_core.builtin import syntax
from agent_core.builtin.model import Kernel, Node, Statement
from agent_core.builtin.transform import Choice, Refused, Transform
from agent_core.builtin.values import Tensor
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target

OTHER = {"sbuf": "psum", "psum": "sbuf"}


class Place(Transform[Tensor]):
    """Moves a tile that engines make and read between SBUF and PSUM."""

    id: ClassVar[str] = "place"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "both memories hold float32, and the instructions that use the tile reach both"

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Tensor]:
        del target
        return {
            kernel.label(item.tensor): item.tensor
            for item in kernel.declarations.values()
            if item.tensor is not None and item.tensor.buffer in OTHER and not _is_moved(kernel, item.tensor)
        }

    def choices(self, kernel: Kernel, target: Target, place: Tensor) -> tuple[Choice, ...]:
        del target
        goal = OTHER[place.buffer]
        check_place(kernel, place, goal)
        return ({"memory": goal},)

    def apply(self, kernel: Kernel, target: Target, place: Tensor, choice: Choice) -> str:
        del target
        check_place(kernel, place, str(choice["memory"]))
        declared = kernel.declarations[place.id]
        new = syntax.with_arguments(declared.node, {"buffer": f"{kernel.nl}.{choice['memory']}"})

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return [new] if node is declared else None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _is_moved(kernel: Kernel, tensor: Tensor) -> bool:
    """Whether DMA or a product is among the users: they bind a tile to its memory."""
    return any(item.engine in {"dma", "tensor"} for item in kernel.users(tensor))


def check_place(kernel: Kernel, tensor: Tensor, goal: str) -> None:
    """Check that a tile may lie in a memory, and may gain by it.

    Raises:
        Refused: an instruction cannot reach it there, or none is faster.
    """
    if tensor.id in kernel.escaping:
        raise Refused(f"{tensor.name} has a second name or is used by what cannot be read")
    if tensor.dtype != "float32":
        raise Refused(f"{tensor.name} holds {tensor.dtype}")
    if tensor.copies:
        raise Refused(f"{tensor.name} is a list of tiles")
    users = kernel.users(tensor)
    for item in users:
        if goal == "psum" and item.engine == "gpsimd":
            raise Refused(f"{item.op} on GpSimd does not reach PSUM")
        for access in item.accesses:
            allowed = OPERATORS[item.op].by_name[access.role].buffers
            if access.tensor.id == tensor.id and goal not in allowed:
                raise Refused(f"{item.op} takes no {access.role} in {goal}")
    if goal == "psum" and not any(_gains(item, tensor) for item in users):
        raise Refused(f"no instruction is faster with {tensor.name} in PSUM")


def _gains(item: Statement, tensor: Tensor) -> bool:
    """Whether an instruction takes two tiles, of which this would be the only one in PSUM."""
    inputs = [access.tensor for access in item.accesses if not access.writes]
    mine = [other for other in inputs if other.id == tensor.id]
    return item.op == "tensor_tensor" and len(mine) == 1 and all(other.buffer == "sbuf" for other in inputs)
