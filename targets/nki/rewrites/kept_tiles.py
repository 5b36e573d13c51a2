"""Keeps on chip what each iteration of a loop loads or makes again, as the legacy compiler does.

A port of a legacy kernel issues what the kernel says. The legacy compiler issues less: it keeps loaded tiles
from one iteration to the next, and moves what does not change out of its loop, if there is room. These steps
say so in the port. In other kernels only loads are kept. Most of these steps gain nothing by themselves, as
long as the kernel waits for something else.
"""

from __future__ import annotations

from collections.abc import Sequence

from nki_sim.targets import Target
from targets.nki.rewrites.estimate import SBUF_IS_FULL, estimate_kernel
from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites
from targets.nki.rewrites.hbm_staging import HELD_TWICE
from targets.nki.rewrites.kernel_ir import Kernel, KernelArgument
from targets.nki.rewrites.staging import FIRST_ITERATION
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS

MAX_KEPT = 12
"""Tiles that are kept at most; for each, all hoists of the kernel are tried, in a tenth of a second."""

_HOIST = TRANSFORMS["hoist"]


def keep_tiles(
    kernel: Kernel, arguments: Sequence[KernelArgument], target: Target, *, computed: bool
) -> list[RewrittenKernel]:
    """The kernels after one more tile is kept, each time the one that saves the engines most work.

    Loaded tiles are kept, and with `computed` others too, if that leaves room for the loaded ones. Nothing is
    kept if the kernel's tiles do not fit as it is, or if not all of those that are loaded again can be kept:
    the room is better used for something else then.
    """
    if estimate_kernel(kernel, target).sbuf_bytes > target.sbuf_usable_bytes:
        return []
    made = _keep_all(kernel, arguments, target, computed=computed)
    return made or (_keep_all(kernel, arguments, target, computed=False) if computed else [])


def _keep_all(
    kernel: Kernel, arguments: Sequence[KernelArgument], target: Target, *, computed: bool
) -> list[RewrittenKernel]:
    """The kernels after one more tile is kept, until all are; empty if loaded ones are left."""
    made: list[RewrittenKernel] = []
    while len(made) <= MAX_KEPT:
        children, refusals = explore_rewrites(kernel, arguments, target, transforms=[_HOIST], keep_going=True)
        loaded = _list_loaded(kernel, target)
        kept = [
            one
            for one in children
            if (one.choice == FIRST_ITERATION if one.site in loaded else computed and not one.choice)
        ]
        if not kept:
            return made if all(_has_room(refusals, site) for site in loaded) else []
        made.append(min(kept, key=lambda one: sum(one.estimate.busy_ns.values())))
        kernel = made[-1].kernel
    return []


def _list_loaded(kernel: Kernel, target: Target) -> set[str]:
    """The sites of tiles that are loaded, and not computed."""
    return {
        site
        for site, (tensor, _) in _HOIST.find_sites(kernel, target).items()
        if all(item.op == "dma_copy" for item in kernel.users_of(tensor) if item.writes_tensor(tensor))
    }


def _has_room(refusals: Sequence[str], site: str) -> bool:
    """Whether no lack of room is the reason why a tile is not kept."""
    mine = [told for told in refusals if told.startswith(f"{_HOIST.id} {site}: ")]
    return not any(SBUF_IS_FULL in told or told.endswith(HELD_TWICE) for told in mine)
