"""Descriptors made ahead: transfers whose addresses are known do not wait for them while the kernel runs.

Each transfer needs descriptors that say what goes where. From NeuronCore-v3 on the hardware makes them on
the way, two transfers at a time, and each waits for its own; GpSimd makes them where it is told to. What
moves the same bytes in every launch can have them in HBM before the launch, for the room that they take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.model import Kernel, Node, Statement
from targets.nki.rewrites.transform import Choice, Refused, Transform

Transfers = tuple[Statement, ...]


class Descriptors(Transform[Transfers]):
    """Has descriptors made before the launch."""

    id: ClassVar[str] = "descriptors"
    counter: ClassVar[str] = "dynamic_dma_size_percent"
    keeps: ClassVar[str] = (
        "descriptors say the same, whoever makes them; the addresses of these are the same in every launch"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Transfers]:
        del target
        transfers = tuple(item for item in kernel.operations() if item.engine == "dma")
        return {"all transfers": transfers} if transfers else {}

    def choices(self, kernel: Kernel, target: Target, place: Transfers) -> tuple[Choice, ...]:
        del kernel
        _waiting(place, target)
        return ({"dge_mode": "none"},)

    def apply(self, kernel: Kernel, target: Target, place: Transfers, choice: Choice) -> str:
        waiting = _waiting(place, target)
        mode: dict[str, str | None] = {"dge_mode": f"{kernel.nisa}.dge_mode.{choice['dge_mode']}"}

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return [syntax.with_arguments(node.node, mode)] if node in waiting else None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _waiting(transfers: Transfers, target: Target) -> Transfers:
    """The transfers that wait for descriptors and need not.

    Raises:
        Refused: there are none.
    """
    found = tuple(item for item in transfers if item.form is not None and _waits(item.form, target))
    if not found:
        raise Refused("no transfer waits for descriptors that could be made ahead")
    return found


def _waits(form: Form, target: Target) -> bool:
    operator = OPERATORS[form.op]
    return "dge_mode" in operator.by_name and operator.cost(form, target).descriptor_ns > 0.0
