"""Wider transfers: one load replaces the loads of several iterations, so that it moves more bytes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import ClassVar

from nki_sim.targets import Target
from targets.nki.rewrites import staging
from targets.nki.rewrites.estimate import tile_bytes
from targets.nki.rewrites.kernel_ir import Kernel, Loop
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor


class Widen(Transform[tuple[Tensor, Loop]]):
    """Loads before a loop, in one transfer, what its iterations loaded piece by piece."""

    id: ClassVar[str] = "widen_transfer"
    counter: ClassVar[str] = "dma_active_time_percent"
    keeps: ClassVar[str] = "the pieces are neighbours in HBM and do not change during the loop"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, tuple[Tensor, Loop]]:
        del target
        return {
            f"{kernel.unique_label(item.tensor)} over {kernel.unique_label(loop)}": (item.tensor, loop)
            for item in kernel.declarations.values()
            if item.tensor is not None and item.tensor.buffer == "sbuf"
            for loop in item.path
        }

    def list_choices(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop]) -> tuple[Choice, ...]:
        plan = self._plan_widen(kernel, place)
        if plan.bytes_factor * tile_bytes(plan.tensor) > target.sbuf_usable_bytes:
            raise RewriteRefused(f"{plan.tensor.name} for all iterations does not fit SBUF")
        inner = [loop for loop in staging.mergeable_loops(plan) if loop is not plan.loop]
        subsets = [part for size in range(len(inner) + 1) for part in combinations(inner, size)]
        names = [" ".join(loop.var for loop in (plan.loop, *part)) for part in subsets]
        return tuple({"one transfer for": name} for name in names)

    def apply(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop], choice: Choice) -> str:
        del target
        plan = self._plan_widen(kernel, place)
        names = str(choice["one transfer for"]).split()
        return staging.emit_staged(
            plan, [loop for loop in staging.mergeable_loops(plan) if loop.var in names]
        )

    def _plan_widen(self, kernel: Kernel, place: tuple[Tensor, Loop]) -> staging.StagePlan:
        tensor, loop = place
        plan = staging.plan_stage(kernel, tensor, loop)
        staging.check_may_precede(plan)
        staging.check_is_no_list(plan)
        if loop not in plan.grown:
            raise RewriteRefused(f"{tensor.name} does not depend on {loop.var}: hoist it instead")
        if plan.sole_load is None:
            raise RewriteRefused(f"{tensor.name} is not loaded from HBM by one plain transfer")
        if loop not in staging.mergeable_loops(plan):
            raise RewriteRefused(f"the iterations over {loop.var} do not load neighbouring data")
        return plan
