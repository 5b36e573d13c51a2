"""Takes the scales of MX operands out of the tiles that kernels pass: one view for each quadrant of the data.

Scales lie in the quadrant of their group, in four neighbouring partitions, from the tile's first one on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nki_sim.forms import Dims
from nki_sim.frontend.psum import infer_accumulate
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.frontend.views import View
from nki_sim.operators.rules.mx import QUADRANT, SCALE_ROWS


def prepare_product(given: dict[str, Any]) -> None:
    """Split both scale tiles of an MX product, and decide whether it adds to its destination."""
    for role in ("stationary", "moving"):
        _split_scales(given, role, f"{role}_scale")
    infer_accumulate(given)


def prepare_quantisation(given: dict[str, Any]) -> None:
    """Split the scale tile that a quantisation writes."""
    _split_scales(given, "src", "dst_scale")


def _split_scales(given: dict[str, Any], data_role: str, role: str) -> None:
    data, scale = given.get(data_role), given.get(role)
    if not isinstance(data, Tensor) or not isinstance(scale, Tensor):
        return  # the checks of arguments say which one is missing
    quadrants = -(-data.shape[0] // QUADRANT)
    needed = QUADRANT * (quadrants - 1) + SCALE_ROWS
    if scale.shape[0] < needed:
        fail(
            "mx_scale_shape", f"{role} ({scale.name}) has {scale.shape[0]} partitions, scales of "
            f"{data.name} reach to partition {needed}",
            "declare as many partitions as the data has: scales lie in 4 of each quadrant of 32",
        )  # fmt: skip
    _check_quadrant(data, scale, role)
    _check_indices(data, scale, role)
    given[role] = [_take_quadrant(scale, QUADRANT * number) for number in range(quadrants)]


def _check_indices(data: Tensor, scale: Tensor, role: str) -> None:
    """Check that an index chooses the same columns of numbers and of scales, or none."""
    numbers, scales = (
        None if view._lookup is None or not view._lookup.by_column else _place_of_index(view._lookup.source)
        for view in (data, scale)
    )
    if numbers != scales:
        fail(
            "mx_scale_index", f"{role} ({scale.name}) and {data.name} are not chosen by the same index",
            "pass both as .indirect(index) views of one index, or neither",
        )  # fmt: skip


def _place_of_index(index: View) -> tuple[int, int, Dims]:
    return index._storage.id, index._offset, index._dims


def _take_quadrant(scale: Tensor, start: int) -> Tensor:
    """The scales of the quadrant that begins `start` partitions on, with the offsets of its columns."""
    lookup = scale._lookup
    if lookup is None or not lookup.by_column:
        return scale[start : start + SCALE_ROWS]
    row = scale._dims[0][0]
    part = type(scale)(scale._storage, scale._offset + start * row, ((row, SCALE_ROWS), *scale._dims[1:]))
    source = lookup.source
    assert isinstance(source, Tensor)
    return part._with_lookup(replace(lookup, source=source[start : start + QUADRANT]))


def _check_quadrant(data: Tensor, scale: Tensor, role: str) -> None:
    """Check that a tile of scales over several quadrants has them where their groups are."""
    if scale._storage.site.shape[0] <= QUADRANT:
        return  # the compiler can place it in the quadrant of the data
    theirs, mine = (view._start_position[0] // QUADRANT for view in (data, scale))
    if theirs != mine:
        fail(
            "mx_scale_quadrant", f"{role} ({scale.name}) begins in quadrant {mine}, {data.name} in {theirs}",
            "scales lie in the quadrant of the partitions that they scale",
        )  # fmt: skip
