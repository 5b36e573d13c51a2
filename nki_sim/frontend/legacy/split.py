"""Splits accesses with more dimensions than engines walk into parts, as the legacy compiler does.

Only instructions that compute each position of their result from the same position of their operands are
split, along the dimensions that give the fewest parts. Dimensions that one walk covers count as one, in
reductions too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from nki_sim.frontend.lowering.emit import is_column
from nki_sim.frontend.tensor import Tensor
from nki_sim.operators import Operator

_BY_PLACE = frozenset({
    "activation", "dma_copy", "memset", "reciprocal", "scalar_tensor_tensor", "tensor_copy",
    "tensor_copy_predicated", "tensor_scalar", "tensor_tensor",
})  # fmt: skip


class _Axis(NamedTuple):
    """A free dimension of all whole tiles: its size, and its step in each tile."""

    size: int
    steps: tuple[int, ...]


def split_to_rank(operator: Operator, given: dict[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """Yield the arguments of instructions whose tiles all have at most `most` dimensions.

    Yields the arguments unchanged if they fit or the instruction cannot be split.
    """
    tiles = {role: view for role, view in given.items() if isinstance(view, Tensor)}
    if all(len(view._dims) <= most for view in tiles.values()):
        yield given
        return
    if operator.name == "tensor_reduce":
        yield _flatten_reduction(given)
        return
    if operator.name not in _BY_PLACE:
        yield given
        return
    shape = tiles["dst"].shape
    whole = {role: view for role, view in tiles.items() if view.shape == shape}
    columns = {role: view for role, view in tiles.items() if role not in whole}
    plain = all(view._lookup is None for view in tiles.values()) and all(map(is_column, columns.values()))
    if not plain or len({view._storage.on_chip for view in whole.values()}) != 1:
        yield given
        return
    narrow = {
        role: view._with_pattern(view._offset, (view._dims[0], (1, 1))) for role, view in columns.items()
    }
    for parts in _split_views(list(whole.values()), most):
        yield {**given, **narrow, **dict(zip(whole, parts, strict=True))}


def _flatten_reduction(given: dict[str, Any]) -> dict[str, Any]:
    """Return a reduction whose tiles have no axes of one element, and neighbours of one walk as one axis."""
    dst, data = given["dst"], given["data"]
    axes = given["axis"] if isinstance(given["axis"], tuple) else (given["axis"],)
    wide = [number for number in range(1, data.ndim) if data.shape[number] > 1]
    into = [dim for dim in dst._dims[1:] if dim[1] > 1]
    kept = [data._dims[number] for number in wide if number not in axes]
    plain = data._lookup is None and dst._lookup is None
    if not plain or [size for _, size in kept] != [size for _, size in into]:
        return given
    rows = _join_axes([_Axis(size, (step, to)) for (step, size), (to, _) in zip(kept, into, strict=True)])
    ends = _join_axes([_Axis(data.shape[axis], (data._dims[axis][0],)) for axis in axes if axis in wide])
    rows, ends = rows or [_Axis(1, (1, 1))], ends or [_Axis(1, (1,))]
    read = (data._dims[0], *((axis.steps[0], axis.size) for axis in (*rows, *ends)))
    written = (dst._dims[0], *((axis.steps[1], axis.size) for axis in rows))
    return {
        **given,
        "data": data._with_pattern(data._offset, read),
        "dst": dst._with_pattern(dst._offset, written),
        "axis": tuple(range(1 + len(rows), 1 + len(rows) + len(ends))),
    }


def _split_views(views: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Split the views into parts with few enough dimensions; the first dimension stays whole."""
    axes = _join_axes(
        [
            _Axis(count, tuple(view._dims[axis][0] for view in views))
            for axis, count in enumerate(views[0].shape)
            if axis and count > 1
        ]
    )
    by_size = sorted(range(len(axes)), key=lambda axis: axes[axis].size)
    looped = [axes[axis] for axis in by_size[: max(0, len(axes) + 1 - most)]]
    kept = [axes[axis] for axis in sorted(by_size[len(looped) :])] or [_Axis(1, (1,) * len(views))]
    for place in product(*(range(axis.size) for axis in looped)):
        yield [
            view._with_pattern(
                view._offset + sum(at * axis.steps[number] for at, axis in zip(place, looped, strict=True)),
                (view._dims[0], *((axis.steps[number], axis.size) for axis in kept)),
            )
            for number, view in enumerate(views)
        ]


def _join_axes(axes: Sequence[_Axis]) -> list[_Axis]:
    """Merge neighbouring axes that one walk covers in every view."""
    found: list[_Axis] = []
    for axis in axes:
        walks = [step * axis.size for step in axis.steps]
        if found and list(found[-1].steps) == walks:
            found[-1] = _Axis(found[-1].size * axis.size, axis.steps)
        else:
            found.append(axis)
    return found
