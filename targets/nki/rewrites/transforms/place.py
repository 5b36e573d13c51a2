"""Placement: moves a tile to PSUM, from where VectorE reads a second operand in half the time, or to SBUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Node
from targets.nki.rewrites.memory_placement import check_placement
from targets.nki.rewrites.transform import Choice, Transform
from targets.nki.rewrites.values import Tensor

OTHER_MEMORY = {"sbuf": "psum", "psum": "sbuf"}


class PlaceTile(Transform[Tensor]):
    """Moves a tile that only engines write and read between SBUF and PSUM."""

    id: ClassVar[str] = "place"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "both memories hold float32, and the instructions that use the tile reach both"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Tensor]:
        del target
        return {
            kernel.unique_label(item.tensor): item.tensor
            for item in kernel.declarations.values()
            if item.tensor is not None
            and item.tensor.buffer in OTHER_MEMORY
            and not _is_bound_to_memory(kernel, item.tensor)
        }

    def list_choices(self, kernel: Kernel, target: Target, place: Tensor) -> tuple[Choice, ...]:
        del target
        goal = OTHER_MEMORY[place.buffer]
        check_placement(kernel, place, goal)
        return ({"memory": goal},)

    def apply(self, kernel: Kernel, target: Target, place: Tensor, choice: Choice) -> str:
        del target
        check_placement(kernel, place, str(choice["memory"]))
        declared = kernel.declarations[place.id]
        new = syntax.replace_arguments(declared.node, {"buffer": f"{kernel.nl}.{choice['memory']}"})

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return [new] if node is declared else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _is_bound_to_memory(kernel: Kernel, tensor: Tensor) -> bool:
    """Whether DMA or a product uses the tile, which fixes its memory."""
    return any(item.engine in {"dma", "tensor"} for item in kernel.users_of(tensor))
