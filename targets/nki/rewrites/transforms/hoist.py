"""Hoisting: what a loop recomputes or reloads in every iteration is made once, in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import ClassVar

from nki_sim.targets import Target
from targets.nki.rewrites import staging
from targets.nki.rewrites.estimate import tile_bytes
from targets.nki.rewrites.model import Kernel, Loop
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.values import Tensor

FIRST = "in the first iteration"


class Hoist(Transform[tuple[Tensor, Loop]]):
    """Makes a tile in front of a loop that its contents do not depend on."""

    id: ClassVar[str] = "hoist"
    counter: ClassVar[str] = "hbm_read_bytes"
    keeps: ClassVar[str] = (
        "every iteration made the same contents from inputs that do not change in the loop; "
        "nothing else used the intermediate results"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, tuple[Tensor, Loop]]:
        del target
        return {
            f"{kernel.label(item.tensor)} out of {kernel.label(loop)}": (item.tensor, loop)
            for item in kernel.declarations.values()
            if item.tensor is not None
            for loop in item.path
        }

    def choices(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop]) -> tuple[Choice, ...]:
        plan = self._plan(kernel, place)
        if plan.bytes_factor * tile_bytes(plan.tensor) > target.sbuf_usable_bytes:
            raise Refused(
                f"{plan.tensor.name} for all iterations needs {plan.bytes_factor * tile_bytes(plan.tensor)} "
                f"bytes per partition, {target.sbuf_usable_bytes} are usable"
            )
        loops = staging.mergeable(plan)
        subsets = [part for size in range(len(loops) + 1) for part in combinations(loops, size)]
        merged = [{"one transfer for": " ".join(loop.var for loop in part)} for part in subsets if part]
        return ({"when": FIRST}, {}, *merged)

    def apply(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop], choice: Choice) -> str:
        del target
        plan = self._plan(kernel, place)
        if choice.get("when") == FIRST:
            return staging.emit_in_place(plan)
        names = str(choice.get("one transfer for", "")).split()
        merged = [loop for loop in staging.mergeable(plan) if loop.var in names]
        if len(merged) != len(names):
            raise Refused(f"no transfer can serve all iterations over {', '.join(names)}")
        return staging.emit(plan, merged)

    def _plan(self, kernel: Kernel, place: tuple[Tensor, Loop]) -> staging.Stage:
        tensor, loop = place
        plan = staging.stage(kernel, tensor, loop)
        if loop in plan.grown:
            raise Refused(f"{tensor.name} depends on {loop.var}")
        return plan
