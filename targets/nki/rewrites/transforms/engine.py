"""Engine choice: moves an instruction that several engines can run to a less busy one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.engine_moves import has_other_engines, other_engines, write_on
from targets.nki.rewrites.kernel_ir import Kernel, Statement
from targets.nki.rewrites.transform import Choice, Transform, sites_by_result


class ChooseEngine(Transform[Statement]):
    """Moves an instruction to another engine."""

    id: ClassVar[str] = "engine"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "every engine of the operator computes the same function in float32"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return sites_by_result(item for item in kernel.operations() if has_other_engines(item))

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        del kernel, target
        return tuple({"engine": name} for name in other_engines(place))

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del target
        new = write_on(kernel, place, place.node, str(choice["engine"]))
        return syntax.render_module(
            kernel, syntax.rebuild_block(kernel.body, lambda node: [new] if node is place else None)
        )
