"""Placement: a tile lies in PSUM, from where VectorE reads a second operand in half the time, or in SBUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.model import Kernel, Node
from targets.nki.rewrites.placing import check_place
from targets.nki.rewrites.transform import Choice, Transform
from targets.nki.rewrites.values import Tensor

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
