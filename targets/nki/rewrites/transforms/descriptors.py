"""Descriptors made ahead: transfers with known addresses do not wait for descriptors at run time.

Each transfer needs descriptors that say what goes where. From NeuronCore-v3 on the hardware makes them during
the run, for two transfers at a time, and each transfer waits for its own; GpSimd makes them if told to. A
transfer of the same bytes in every launch can have its descriptors in HBM before the launch, at the cost of
the room they take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform

TransferStatements = tuple[Statement, ...]


class Descriptors(Transform[TransferStatements]):
    """Has descriptors made before the launch."""

    id: ClassVar[str] = "descriptors"
    counter: ClassVar[str] = "dynamic_dma_size_percent"
    keeps: ClassVar[str] = (
        "descriptors say the same, whoever makes them; the addresses of these are the same in every launch"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, TransferStatements]:
        del target
        transfers = tuple(item for item in kernel.operations() if item.engine == "dma")
        return {"all transfers": transfers} if transfers else {}

    def list_choices(self, kernel: Kernel, target: Target, place: TransferStatements) -> tuple[Choice, ...]:
        del kernel
        _waiting_transfers(place, target)
        return ({"dge_mode": "none"},)

    def apply(self, kernel: Kernel, target: Target, place: TransferStatements, choice: Choice) -> str:
        waiting = _waiting_transfers(place, target)
        mode: dict[str, str | None] = {"dge_mode": f"{kernel.nisa}.dge_mode.{choice['dge_mode']}"}

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return [syntax.replace_arguments(node.node, mode)] if node in waiting else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _waiting_transfers(transfers: TransferStatements, target: Target) -> TransferStatements:
    """Return the transfers that wait for descriptors and do not have to.

    Raises:
        RewriteRefused: there are none.
    """
    found = tuple(
        item for item in transfers if item.form is not None and _waits_for_descriptors(item.form, target)
    )
    if not found:
        raise RewriteRefused("no transfer waits for descriptors that could be made ahead")
    return found


def _waits_for_descriptors(form: Form, target: Target) -> bool:
    operator = OPERATORS[form.op]
    return "dge_mode" in operator.arguments_by_name and operator.cost(form, target).descriptor_ns > 0.0
