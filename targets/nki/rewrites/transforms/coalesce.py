"""Coalescing: one instruction moves the results of several iterations from a tile that holds them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from nki_sim.targets import Target
from targets.nki.rewrites.estimate import tile_bytes
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Statement
from targets.nki.rewrites.transfer_coalescing import emit_coalesced, find_movers, plan_coalesce
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, number_site
from targets.nki.rewrites.values import Tensor

COALESCE_SIZES = (2, 4, 8, 16, 32)
SBUF_FRACTION = 8
"""A gathered tile takes at most 1 / this of SBUF, so that it does not evict data that is used again."""


class Coalesce(Transform[tuple[Loop, Statement]]):
    """Replaces the stores, drains or copies of several iterations by one."""

    id: ClassVar[str] = "coalesce"
    counter: ClassVar[str] = "dma_active_time_percent"
    keeps: ClassVar[str] = (
        "every piece has a place of its own until it is moved, "
        "and nothing else in the loop uses where it goes"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, tuple[Loop, Statement]]:
        del target
        found: dict[str, tuple[Loop, Statement]] = {}
        for loop, item in find_movers(kernel):
            dst = item.find_access("dst")
            if dst is not None:
                base = f"{item.op} to {dst.tensor.name} over {kernel.unique_label(loop)}"
                found[number_site(base, found)] = (loop, item)
        return found

    def list_choices(
        self, kernel: Kernel, target: Target, place: tuple[Loop, Statement]
    ) -> tuple[Choice, ...]:
        loop, mover = place
        plan = plan_coalesce(kernel, loop, mover)
        sizes = {
            loop.trips,
            *(size for size in COALESCE_SIZES if loop.trips % size == 0 and size < loop.trips),
        }
        if loop.index_text != loop.var:
            sizes = {loop.trips}
        limit = _max_pieces(plan.tile, target)
        fitting = [size for size in sorted(sizes, reverse=True) if 1 < size <= limit]
        if not fitting:
            raise RewriteRefused(
                f"{plan.tile.name} of {tile_bytes(plan.tile)} bytes per partition has room for {limit} "
                f"iterations, and {loop.trips} over {loop.var} have no such divisor"
            )
        return tuple({"iterations": size} for size in fitting)

    def apply(self, kernel: Kernel, target: Target, place: tuple[Loop, Statement], choice: Choice) -> str:
        del target
        loop, mover = place
        name = kernel.fresh_name(f"MOVE_{loop.var.removeprefix('i_').upper()}")
        return emit_coalesced(plan_coalesce(kernel, loop, mover), int(choice["iterations"]), name)


def _max_pieces(tile: Tensor, target: Target) -> int:
    """How many pieces a tile may hold: up to half of PSUM, in whole banks or parts of one, or a share of
    SBUF.
    """
    each = tile_bytes(tile)
    if tile.buffer == "sbuf":
        return target.sbuf_usable_bytes // SBUF_FRACTION // each
    bank = target.psum_bank_bytes
    if bank % each and each % bank:
        return bank // each
    return bank * target.psum_banks // 2 // each
