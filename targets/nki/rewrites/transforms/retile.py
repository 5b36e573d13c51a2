"""Retiling: cuts a dimension into other tiles, in a kernel whose sizes are numbers.

Engines and transfers cost nearly as much for small tiles as for large ones. `tile_size` changes the size of
tiles that a constant names. Here nothing has a name, as in a raised kernel: what changes together follows
from the instructions. A last tile with fewer rows or columns, which runs after its loop, joins the others if
the new size divides the whole dimension. Tiles in a list whose number follows from several loops become one
wide tile first. Tiles that a loop sums up can have any size, and of a single tile no
loop and no sum is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from nki_sim.targets import Target
from targets.nki.rewrites.joined_tiles import find_walked_lists, join_tiles
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node
from targets.nki.rewrites.retiling import Tiling, find_tails, write_tiling
from targets.nki.rewrites.single_tiles import dissolve_single_tiles
from targets.nki.rewrites.tile_classes import TileClass, find_tile_class, group_axes
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, read_rewritten
from targets.nki.rewrites.transforms.tile_size import check_same_tiling

MAX_CHOICES = 3


@dataclass(frozen=True, eq=False)
class RetilePlan:
    """A class of tiles that cover `extent` elements; `tail` is the width of a last tile, 0 if none."""

    found: TileClass
    tail: int
    dropped: frozenset[Node]

    @property
    def extent(self) -> int:
        return self.found.width * self.found.trips + self.tail


class Retile(Transform[Loop]):
    """Cuts the dimension that a loop walks into tiles of another size."""

    id: ClassVar[str] = "retile"
    counter: ClassVar[str] = "dma_active_time_percent"
    keeps: ClassVar[str] = (
        "tiles of the new size cover the same elements, and nothing mixes elements across them, "
        "or it puts the results of all tiles together; "
        "a last tile that joins them runs the same instructions"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Loop]:
        del target
        return {kernel.unique_label(loop): loop for loop in kernel.loops if loop.stop.isdigit()}

    def list_choices(self, kernel: Kernel, target: Target, place: Loop) -> tuple[Choice, ...]:
        plan = _plan_retile(kernel, target, place)
        limit = _width_limit(plan.found, target)
        most = plan.found.trips + 1 if plan.tail else plan.found.trips - 1
        widths = [size for size in range(limit, 0, -1) if plan.extent in range(size, most * size + 1, size)]
        if not widths:
            raise RewriteRefused(
                f"no size up to {limit} cuts {plan.extent} elements into at most {most} tiles"
            )
        return tuple({"width": size} for size in widths[:MAX_CHOICES])

    def apply(self, kernel: Kernel, target: Target, place: Loop, choice: Choice) -> str:
        plan, width = _plan_retile(kernel, target, place), int(choice["width"])
        if plan.extent % width:
            raise RewriteRefused(f"{width} does not divide the {plan.extent} elements")
        if plan.tail or plan.found.backwards:
            plan = _normalise_tiles(target, kernel.loops.index(place), plan)
        kernel = plan.found.kernel
        source = write_tiling(plan.found, Tiling(width, plan.extent // width))
        check_same_tiling(kernel, read_rewritten(source, kernel.arguments, target))
        return dissolve_single_tiles(source, kernel, target) if width == plan.extent else source


def _plan_retile(kernel: Kernel, target: Target, loop: Loop) -> RetilePlan:
    """The class of a loop's tiles, in the kernel or in one with joined tiles."""
    try:
        found = find_tile_class(kernel, loop)
    except RewriteRefused:
        lists = find_walked_lists(kernel, loop)
        if not lists:
            raise
        number = kernel.loops.index(loop)
        kernel = join_tiles(kernel, lists, target)
        loop = kernel.loops[number]
        found = find_tile_class(kernel, loop)
    first = next(one for one in kernel.loops if one.id in found.loops)
    if first is not loop:
        raise RewriteRefused(f"the loop over {first.var} stands for these tiles")
    return RetilePlan(found, *find_tails(found))


def _normalise_tiles(target: Target, number: int, plan: RetilePlan) -> RetilePlan:
    """Return the plan for a kernel whose loops run forwards, and that has no last tile of its own.

    A last tile is dropped after its loop, the one with this number, is cut into tiles so small that they
    also make up the last one.
    """
    found, kernel = plan.found, plan.found.kernel
    width = gcd(found.width, plan.tail)
    if width < 2:
        raise RewriteRefused(f"tiles of {found.width} and a last one of {plan.tail} have no common part")
    if width != found.width:
        before = read_rewritten(
            write_tiling(found, Tiling(found.width, found.trips), plan.dropped), kernel.arguments, target
        )
        parts = Tiling(width, found.width * found.trips // width)
        check_same_tiling(
            before, read_rewritten(write_tiling(found, parts, plan.dropped), kernel.arguments, target)
        )
    whole = write_tiling(found, Tiling(width, plan.extent // width), plan.dropped)
    child = read_rewritten(whole, kernel.arguments, target)
    return RetilePlan(find_tile_class(child, child.loops[number]), 0, frozenset())


def _width_limit(found: TileClass, target: Target) -> int:
    """The largest tile that the instructions take along this dimension."""
    limit = found.width * found.trips + found.width
    for item in found.kernel.operations():
        for group in group_axes(item):
            for access, axis in group:
                dim = access.view.axes[axis].source
                if dim is None or not found.is_tiled(access, dim):
                    continue
                if access.tensor.is_on_chip and dim == 0:
                    limit = min(limit, target.partitions)
                if item.op == "nc_matmul" and axis == 1:
                    most = (
                        target.matmul_stationary_max
                        if access.role == "stationary"
                        else target.matmul_moving_max
                    )
                    limit = min(limit, most)
    return limit
