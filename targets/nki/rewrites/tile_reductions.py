"""Reductions over tiles: where it does not matter into how many tiles the reduced elements are cut.

An instruction that reduces a tile mixes the tile's elements. If the results of all tiles are put together by
the same operator, and nothing else sees them, tiles of any size give the same. People write this in two ways:
a total to which each tile's result is added, and results side by side that are reduced once more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from targets.nki.rewrites.elementwise import has_plain_arguments
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Statement, loop_contains
from targets.nki.rewrites.reductions import SPLITTABLE_OPERATORS, reduces_rows
from targets.nki.rewrites.values import DimensionRange, LibrarySymbol, make_affine


@dataclass(frozen=True, slots=True)
class TileReduction:
    """`operator` reduces what an instruction reads, to `result`."""

    operator: str
    result: Access


def read_reduction(item: Statement) -> TileReduction | None:
    """The reduction that an instruction does, if results of parts can be put together by its operator."""
    if item.op == "nc_matmul":
        dst = item.find_access("dst")
        plain = not item.texts.keys() & {"accumulate", "is_transpose"}
        return TileReduction("add", dst) if dst is not None and plain else None
    role, operator = ("dst", "op") if item.op == "tensor_reduce" else ("reduce_res", "reduce_op")
    result, name = item.find_access(role), _symbol_name(item, operator)
    if result is None or name not in SPLITTABLE_OPERATORS or result.tensor.dtype != "float32":
        return None
    if item.op == "tensor_reduce":
        is_known = reduces_rows(item) and not item.arguments.get("negate")
    else:
        is_known = not item.texts.keys() & {"reduce_res_negate"} and (
            "reduce_cmd" not in item.texts or _symbol_name(item, "reduce_cmd") == "reset_reduce"
        )
    return TileReduction(name, result) if is_known else None


def combines_tiles(kernel: Kernel, item: Statement, loops: Collection[str]) -> bool:
    """Whether what an instruction reduces in the iterations of loops is put together by its operator."""
    found = read_reduction(item)
    if found is None or not found.result.tensor.is_on_chip:
        return False
    tensor = found.result.tensor
    if tensor.id in kernel.escaping_ids or tensor.id not in kernel.declarations:
        return False
    over = [loop for loop in item.path if loop.id in loops]
    if over and {loop.id for loop in over} <= found.result.view.loops:
        readers = [user for user in kernel.users_of(tensor) if not user.writes_tensor(tensor)]
        return bool(readers) and all(gathers_tiles(kernel, user, tensor.id, loops) for user in readers)
    return _adds_to_total(kernel, item, found, frozenset(loop.id for loop in over))


def find_totals(kernel: Kernel, loop: Loop) -> frozenset[int]:
    """Ids of tensors to which the iterations of a loop only add, so that their order does not matter.

    Addition stands for every operator that puts results of parts together.
    """
    inside = [item for item in kernel.operations() if loop_contains(loop, item)]
    adders: dict[int, list[str | None]] = {}
    for item in inside:
        for access in item.accesses:
            declared = kernel.declarations.get(access.tensor.id)
            if access.tensor.is_on_chip and declared is not None and not loop_contains(loop, declared):
                adders.setdefault(access.tensor.id, []).append(_added_operator(item, access))
    return frozenset(
        key
        for key, operators in adders.items()
        if None not in operators and len({*operators}) == 1 and key not in kernel.escaping_ids
    )


def _added_operator(item: Statement, access: Access) -> str | None:
    """The operator with which an instruction adds to a float32 tensor; None if it uses it otherwise."""
    if access.tensor.dtype != "float32" or access.tensor.copies:
        return None
    if item.op == "nc_matmul" and access.role == "dst" and access.tensor.buffer == "psum":
        return "product" if not item.texts.keys() & {"accumulate", "is_transpose"} else None
    dst, first, second = (item.find_access(role) for role in ("dst", "data1", "data2"))
    if item.op != "tensor_tensor" or not has_plain_arguments(item) or None in (dst, first, second):
        return None
    assert dst is not None
    mine = [one for one in (first, second) if one is not None and one.tensor.id == dst.tensor.id]
    name = _symbol_name(item, "op")
    if len(mine) != 1 or mine[0].view != dst.view or access.tensor.id != dst.tensor.id:
        return None
    return name if name in SPLITTABLE_OPERATORS else None


def gathers_tiles(kernel: Kernel, reader: Statement, tensor_id: int, loops: Collection[str]) -> bool:
    """Whether an instruction reduces results of tiles side by side, with the operator that made them."""
    data, name = reader.find_access("data"), _symbol_name(reader, "op")
    if (
        data is None
        or data.tensor.id != tensor_id
        or reader.op != "tensor_reduce"
        or not reduces_rows(reader)
    ):
        return False
    if not (data.view.is_whole and data.view.plain) or reader.texts.get("data") != data.tensor.name:
        return False
    if len(data.view.axes) != len("pf") or any(loop.id in loops for loop in reader.path):
        return False
    writers = [item for item in kernel.users_of(data.tensor) if item.writes_tensor(data.tensor)]
    return all(_fills_columns(item, tensor_id, operator=name, loops=loops) for item in writers)


def _fills_columns(item: Statement, tensor_id: int, *, operator: str | None, loops: Collection[str]) -> bool:
    """Whether an instruction reduces tiles to the columns of a tensor, one for each iteration of a loop."""
    found = read_reduction(item)
    if found is None or found.operator != operator or found.result.tensor.id != tensor_id:
        return False
    rows, columns = found.result.view.box
    counted = [loop for loop in item.path if loop.id in loops]
    return (
        len(counted) == 1
        and columns == DimensionRange(make_affine(0, {counted[0].id: 1}), 1)
        and counted[0].trips == found.result.tensor.shape[1]
        and rows.size == found.result.tensor.shape[0]
    )


def _adds_to_total(kernel: Kernel, item: Statement, found: TileReduction, over: frozenset[str]) -> bool:
    """Whether a tile's result is only added to a total, which nothing else sees before it is complete."""
    part = found.result.tensor
    users = [user for user in kernel.users_of(part) if user is not item]
    if len(users) != 1 or not (found.result.view.is_whole and found.result.view.plain):
        return False
    (adder,) = users
    operands = [adder.find_access(role) for role in ("dst", "data1", "data2")]
    dst, first, second = operands
    if adder.op != "tensor_tensor" or dst is None or first is None or second is None:
        return False
    same, other = (first, second) if first.tensor.id == dst.tensor.id else (second, first)
    total = dst.tensor
    declared = kernel.declarations.get(total.id)
    if (
        _symbol_name(adder, "op") != found.operator
        or not has_plain_arguments(adder)
        or same.view != dst.view
        or other.tensor.id != part.id
        or not (other.view.is_whole and other.view.plain)
        or {total.dtype, part.dtype} != {"float32"}
        or declared is None
        or total.id in kernel.escaping_ids
        or dst.view.loops & over
    ):
        return False
    inside = kernel.declarations[part.id].path
    near = adder.path == inside and adder.guards == item.guards == ()
    is_outside = not any(loop.id in over for loop in declared.path)
    is_new = all(any(loop.id == name for loop in inside) for name in over)
    watched = [user for user in kernel.users_of(total) if any(loop.id in over for loop in user.path)]
    return near and is_outside and is_new and watched == [adder]


def _symbol_name(item: Statement, role: str) -> str | None:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, LibrarySymbol) else None
