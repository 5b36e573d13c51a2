"""Engine choice: moves an instruction that several engines can run to a less busy one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from nki_sim.operators import OPERATORS
from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Statement
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, sites_by_result


class ChooseEngine(Transform[Statement]):
    """Moves an instruction to another engine."""

    id: ClassVar[str] = "engine"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "every engine of the operator computes the same function in float32"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return sites_by_result(item for item in kernel.operations() if len(OPERATORS[item.op].engines) > 1)

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        del kernel, target
        return tuple({"engine": name} for name in other_engines(place))

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del target
        new = syntax.replace_arguments(place.node, {"engine": f"{kernel.nisa}.engine.{choice['engine']}"})
        return syntax.render_module(
            kernel, syntax.rebuild_block(kernel.body, lambda node: [new] if node is place else None)
        )


def other_engines(item: Statement) -> tuple[str, ...]:
    """Return the other engines that have the instruction.

    Raises:
        RewriteRefused: they do not compute the same.
    """
    if item.op == "nc_transpose":
        raise RewriteRefused("the vector engine transposes 32x32 blocks, not whole tiles")
    wide = [access.tensor for access in item.accesses if access.tensor.dtype in {"int32", "uint32"}]
    if wide:
        raise RewriteRefused(
            f"{wide[0].name} holds integers, of which engines keep different numbers of bits"
        )
    return tuple(name for name in OPERATORS[item.op].engines if name != item.engine)
