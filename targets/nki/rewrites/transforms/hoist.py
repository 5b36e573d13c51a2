"""Hoisting: moves what a loop recomputes or reloads in every iteration in front of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import ClassVar

from nki_sim.targets import Target
from targets.nki.rewrites import hbm_staging, staging
from targets.nki.rewrites.estimate import tile_bytes
from targets.nki.rewrites.kernel_ir import Kernel, Loop
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor

THROUGH_HBM: Choice = {"through": "hbm"}
"""The choice for lists of tiles and what SBUF cannot hold: each iteration loads what a loop stored before."""


class Hoist(Transform[tuple[Tensor, Loop]]):
    """Makes a tile before a loop on which its contents do not depend."""

    id: ClassVar[str] = "hoist"
    counter: ClassVar[str] = "hbm_read_bytes"
    keeps: ClassVar[str] = (
        "every iteration made the same contents from inputs that do not change in the loop; "
        "nothing else used the intermediate results"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, tuple[Tensor, Loop]]:
        del target
        return {
            f"{kernel.unique_label(item.tensor)} out of {kernel.unique_label(loop)}": (item.tensor, loop)
            for item in kernel.declarations.values()
            if item.tensor is not None
            for loop in item.path
        }

    def list_choices(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop]) -> tuple[Choice, ...]:
        plan = self._plan_hoist(kernel, place)
        is_list = plan.grown and plan.tensor.copies
        if is_list or plan.bytes_factor * tile_bytes(plan.tensor) > target.sbuf_usable_bytes:
            staging.check_may_precede(plan)
            hbm_staging.check_is_computed(plan)
            return (THROUGH_HBM,)
        if plan.stays:
            return (staging.FIRST_ITERATION,)
        loops = staging.mergeable_loops(plan)
        subsets = [part for size in range(len(loops) + 1) for part in combinations(loops, size)]
        merged = [{"one transfer for": " ".join(loop.var for loop in part)} for part in subsets if part]
        return (staging.FIRST_ITERATION, {}, *merged)

    def apply(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop], choice: Choice) -> str:
        del target
        plan = self._plan_hoist(kernel, place)
        if choice == THROUGH_HBM:
            return hbm_staging.emit_through_hbm(plan)
        staging.check_is_no_list(plan)
        if choice == staging.FIRST_ITERATION:
            return staging.emit_in_first_iteration(plan)
        names = str(choice.get("one transfer for", "")).split()
        merged = [loop for loop in staging.mergeable_loops(plan) if loop.var in names]
        if len(merged) != len(names):
            raise RewriteRefused(f"no transfer can serve all iterations over {', '.join(names)}")
        return staging.emit_staged(plan, merged)

    def _plan_hoist(self, kernel: Kernel, place: tuple[Tensor, Loop]) -> staging.StagePlan:
        tensor, loop = place
        plan = staging.plan_stage(kernel, tensor, loop)
        if loop in plan.grown:
            raise RewriteRefused(f"{tensor.name} depends on {loop.var}")
        return plan
