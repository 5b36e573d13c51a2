"""Block sizes: changes a tile-size constant so that instructions and transfers get larger.

The kernel is read with both values and compared; only the changes that a tiling causes are allowed. As tiles
grow, loops over them get proportionally fewer trips, windows in HBM stay contiguous, and no instruction mixes
elements along a retiled dimension, except where what it makes of all tiles is put together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import ClassVar

from nki_sim.targets import Target
from targets.nki.rewrites.kernel_ir import Access, IntegerConstant, Kernel, Statement, StatementKind
from targets.nki.rewrites.tile_reductions import combines_tiles, gathers_tiles
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, read_rewritten
from targets.nki.rewrites.values import Affine, DimensionRange, Tensor

SIZE_FACTORS = (2, 4, 8)
_MIXING_INSTRUCTIONS = frozenset(
    {"tensor_reduce", "tensor_tensor_scan", "tensor_scalar_reduce", "activation_reduce"}
)
_ELEMENT_WISE_INSTRUCTIONS = frozenset(
    (
        "dma_copy", "dma_transpose", "tensor_copy", "memset", "nc_matmul", "nc_transpose", "tensor_tensor",
        "tensor_scalar", "scalar_tensor_tensor", "activation", "reciprocal",
    )
)  # fmt: skip


class ChangeTileSize(Transform[IntegerConstant]):
    """Changes a tile-size constant."""

    id: ClassVar[str] = "tile_size"
    counter: ClassVar[str] = "dma_active_time_percent"
    keeps: ClassVar[str] = (
        "tiles of the new size cover the same elements, and nothing mixes elements across them"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, IntegerConstant]:
        del target
        return {name: item for name, item in kernel.constants.items() if item.value > 1}

    def list_choices(self, kernel: Kernel, target: Target, place: IntegerConstant) -> tuple[Choice, ...]:
        del target
        values = _candidate_values(place.value, kernel)
        if not values:
            raise RewriteRefused(f"{place.name} has no other sensible value")
        return tuple({"value": value} for value in values)

    def apply(self, kernel: Kernel, target: Target, place: IntegerConstant, choice: Choice) -> str:
        source = _replace_value(kernel, place, int(choice["value"]))
        check_same_tiling(kernel, read_rewritten(source, kernel.arguments, target))
        return source


def _candidate_values(value: int, kernel: Kernel) -> list[int]:
    """Multiples and divisors worth trying, and values with which some loop would run once."""
    tried = [value * factor for factor in SIZE_FACTORS] + [value // 2]
    tried += [
        value * loop.trips // part for loop in kernel.loops for part in (1, 2, 3) if loop.trips % part == 0
    ]
    return sorted({item for item in tried if item > 0 and item != value}, reverse=True)


def _replace_value(kernel: Kernel, constant: IntegerConstant, value: int) -> str:
    found = [item for item in kernel.tree.find_line(constant.place) if isinstance(item, ast.Assign)]
    (assign,) = [item for item in found if _assigns_name(item, constant.name)]
    return kernel.tree.replace_expression(assign.value, str(value))


def _assigns_name(item: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in item.targets)


def check_same_tiling(old: Kernel, new: Kernel) -> None:
    """Check that `new`, the kernel with another constant, computes what `old` does.

    Raises:
        RewriteRefused: something changed other than the tiling.
    """
    if len(old.nodes) != len(new.nodes) or len(old.loops) != len(new.loops):
        raise RewriteRefused("the kernel reads differently")
    retiled = {a.id for a, b in zip(old.loops, new.loops, strict=True) if a.trips != b.trips}
    if not retiled:
        raise RewriteRefused("no loop runs over tiles of this size")
    for before, after in zip(old.statements, new.statements, strict=True):
        if StatementKind.OPAQUE in {before.kind, after.kind}:
            raise RewriteRefused(
                f"with this value a statement cannot be read: {after.reason or before.reason}"
            )
        if before.kind is StatementKind.OPERATE:
            _check_operation(old, new, before, after=after, retiled=retiled)
    if any(a.guards != () for a in old.statements):
        raise RewriteRefused("a condition picks out one iteration")


def _check_operation(
    old: Kernel, new: Kernel, before: Statement, *, after: Statement, retiled: set[str]
) -> None:
    if before.arguments != after.arguments:
        raise RewriteRefused(f"an argument of {before.op} depends on the size")
    moving = (value.loops for value in before.arguments.values() if isinstance(value, Affine))
    if retiled & frozenset().union(*moving):
        raise RewriteRefused(f"an argument of {before.op} moves with the tiles")
    for a, b in zip(before.accesses, after.accesses, strict=True):
        if gathers_tiles(old, before, a.tensor.id, retiled) and gathers_tiles(
            new, after, b.tensor.id, retiled
        ):
            continue
        for dim in _resized_dimensions(old, new, a, b=b, retiled=retiled):
            _check_element_mixing(old, before, a, dim=dim, retiled=retiled)


def _resized_dimensions(
    old: Kernel, new: Kernel, a: Access, *, b: Access, retiled: set[str]
) -> Iterator[int]:
    """The dimensions in which an access's window changes size; each must be a tile of a retiled loop."""
    scale = {loop.id: (loop.trips, twin.trips) for loop, twin in zip(old.loops, new.loops, strict=True)}
    for dim, (first, second) in enumerate(zip(a.view.box, b.view.box, strict=True)):
        if first.size == second.size:
            grows = a.tensor.shape[dim] != b.tensor.shape[dim]
            _check_unchanged_window(a.tensor, first, second, scale, grows=grows)
            continue
        walked = first.start.loops & retiled
        if walked:
            _check_tile_window(a.tensor, first, second, scale=scale)
        elif first.start != second.start or not (
            (first.start == Affine(0) and _holds_one_tile(old, a, retiled)) or _is_uniform(old, a.tensor, dim)
        ):
            raise RewriteRefused(f"a window of {a.tensor.name} changes size without moving with the tiles")
        yield dim


def _check_unchanged_window(
    tensor: Tensor,
    first: DimensionRange,
    second: DimensionRange,
    scale: Mapping[str, tuple[int, int]],
    *,
    grows: bool,
) -> None:
    """Refuse unless a window of unchanged size moves by one index per tile, or not with the tiles at all.

    In a dimension that `grows` (or shrinks) with the tiles it must move; otherwise it is another part of
    them.
    """
    changed = {name for name in first.start.loops if scale[name][0] != scale[name][1]}
    counts_tiles = first.size == 1 and not tensor.copies and tensor.is_on_chip
    if first.start == second.start and (counts_tiles if changed else not grows):
        return
    raise RewriteRefused(f"a window of {tensor.name} moves differently, or is another part of it")


def _check_tile_window(
    tensor: Tensor, first: DimensionRange, second: DimensionRange, *, scale: Mapping[str, tuple[int, int]]
) -> None:
    for name in first.start.loops | second.start.loops:
        was, now = first.start.coefficient(name), second.start.coefficient(name)
        trips, new_trips = scale[name]
        if trips == new_trips:
            same = was == now
        else:
            same = was == first.size and now == second.size and was * trips == now * new_trips
        if not same:
            raise RewriteRefused(f"windows of {tensor.name} would overlap or leave gaps")
    if first.start.const != second.start.const:
        raise RewriteRefused(f"a window of {tensor.name} starts elsewhere")


def _holds_one_tile(kernel: Kernel, access: Access, retiled: set[str]) -> bool:
    """Whether a tensor holds one tile: it is declared inside a loop over tiles, or indexed by one."""
    declared = kernel.declarations.get(access.tensor.id)
    inside = declared is not None and any(loop.id in retiled for loop in declared.path)
    return access.tensor.is_on_chip and (inside or bool(access.view.loops & retiled))


def _is_uniform(kernel: Kernel, tensor: Tensor, dim: int) -> bool:
    """Whether a tile holds the same at each place along a dimension: one number, or a row for all rows."""
    writers = [item for item in kernel.users_of(tensor) if item.writes_tensor(tensor)]
    return tensor.is_on_chip and bool(writers) and all(_fills_evenly(item, dim) for item in writers)


def _fills_evenly(item: Statement, dim: int) -> bool:
    dst, src = item.find_access("dst"), item.find_access("src")
    if dst is None or dst.reads or not dst.view.plain or len(dst.view.axes) <= dim:
        return False
    if item.op == "memset":
        return True
    axes = src.view.axes if src is not None and item.op == "dma_copy" else ()
    return len(axes) == len(dst.view.axes) and axes[dim].step == 0 and dst.view.axes[dim].source == dim


def _check_element_mixing(
    kernel: Kernel, item: Statement, access: Access, *, dim: int, retiled: set[str]
) -> None:
    """Refuse if elements mix along a retiled dimension, unless all tiles are put together."""
    if item.op == "nc_matmul" and access.role in {"stationary", "moving"} and dim == 0:
        _check_accumulation(kernel, item, retiled)
    elif item.op in _MIXING_INSTRUCTIONS or item.find_access("reduce_res") is not None:
        if dim > 0 and not combines_tiles(kernel, item, retiled):
            raise RewriteRefused(f"{item.op} combines elements along the tiles")
    elif item.op not in _ELEMENT_WISE_INSTRUCTIONS:
        raise RewriteRefused(f"{item.op} is not known to keep elements apart")


def _check_accumulation(kernel: Kernel, item: Statement, retiled: set[str]) -> None:
    dst = item.find_access("dst")
    assert dst is not None
    declared = kernel.declarations.get(dst.tensor.id)
    loops = [loop for loop in item.path if loop.id in retiled and loop.id not in dst.view.loops]
    outside = declared is not None and any(loop not in declared.path for loop in loops)
    accumulates = outside and "accumulate" not in item.arguments
    if not accumulates and not combines_tiles(kernel, item, retiled):
        raise RewriteRefused("the product is not accumulated over the tiles")
