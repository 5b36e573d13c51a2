"""Steps for kernels whose tiles do not fit in SBUF, which gain little by themselves or only together.

Loops that hand data on are fused until the tiles of one iteration are enough. If lists of tiles stay too long
to be kept, the loops are put in an order in which fewer bytes of them come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nki_sim.targets import Target
from targets.nki.rewrites.estimate import estimate_kernel
from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites
from targets.nki.rewrites.kernel_ir import Kernel, KernelArgument
from targets.nki.rewrites.tile_reloads import count_reloaded_bytes
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS

MIN_SAVED_SHARE = 0.02
"""Share of the bytes that come back that a step has to save."""


def fit_tiles(kernel: Kernel, arguments: Sequence[KernelArgument], target: Target) -> list[RewrittenKernel]:
    """The kernels after one step after the other; none if everything fits, or nothing helps."""
    fused = list(_fuse_loops(kernel, arguments, target))
    if fused and fused[-1].estimate.sbuf_bytes == estimate_kernel(kernel, target).sbuf_bytes:
        fused = []
    return [*fused, *_order_loops(fused[-1].kernel if fused else kernel, arguments, target)]


def _fuse_loops(
    kernel: Kernel, arguments: Sequence[KernelArgument], target: Target
) -> Iterator[RewrittenKernel]:
    """Of several pairs of loops, fuse the first one, as deep as it can be."""
    needed = estimate_kernel(kernel, target).sbuf_bytes
    while needed > target.sbuf_usable_bytes:
        children = _explore(kernel, arguments, target, technique="fuse_loops")
        child = next((one for one in children if one.estimate.sbuf_bytes <= needed), None)
        if child is None:
            return
        yield child
        kernel, needed = child.kernel, child.estimate.sbuf_bytes


def _order_loops(
    kernel: Kernel, arguments: Sequence[KernelArgument], target: Target
) -> Iterator[RewrittenKernel]:
    """Move the loop outside others that saves most."""
    coming = count_reloaded_bytes(kernel, target)
    while coming:
        children = _explore(kernel, arguments, target, technique="interchange")
        counted = [(count_reloaded_bytes(one.kernel, target), one) for one in children]
        least, child = min(counted, key=lambda pair: pair[0], default=(coming, None))
        if child is None or least > (1 - MIN_SAVED_SHARE) * coming:
            return
        yield child
        kernel, coming = child.kernel, least


def _explore(
    kernel: Kernel, arguments: Sequence[KernelArgument], target: Target, *, technique: str
) -> Sequence[RewrittenKernel]:
    transforms = [TRANSFORMS[technique]]
    return explore_rewrites(kernel, arguments, target, transforms=transforms, keep_going=True)[0]
