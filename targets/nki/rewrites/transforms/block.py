"""Blocking: several iterations of an outer loop share what an inner loop loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from nki_sim.targets import Target
from targets.nki.rewrites.blocking import emit_block, plan_block
from targets.nki.rewrites.kernel_ir import Kernel, Loop
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform

BLOCK_SIZES = (4, 2, 8, 16, 32)


class BlockLoop(Transform[Loop]):
    """Cuts a loop into blocks whose iterations run innermost."""

    id: ClassVar[str] = "block"
    counter: ClassVar[str] = "hbm_read_bytes"
    keeps: ClassVar[str] = (
        "iterations of the loop touch disjoint data, so any order will do; "
        "what does not depend on the index is the same for all of a block"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Loop]:
        del target
        return {kernel.unique_label(loop): loop for loop in kernel.loops}

    def list_choices(self, kernel: Kernel, target: Target, place: Loop) -> tuple[Choice, ...]:
        del target
        plan_block(kernel, place)
        sizes = [size for size in BLOCK_SIZES if place.trips % size == 0 and size < place.trips]
        if not sizes:
            raise RewriteRefused(f"no block size divides the {place.trips} iterations over {place.var}")
        return tuple({"iterations": size} for size in sizes)

    def apply(self, kernel: Kernel, target: Target, place: Loop, choice: Choice) -> str:
        del target
        name = kernel.fresh_name(f"BLOCK_{place.var.removeprefix('i_').upper()}")
        return emit_block(plan_block(kernel, place), int(choice["iterations"]), name)
