"""Finds round trips through HBM: data that an iteration stores in the kernel's own tensor and loads again.

The tile that was stored still holds the data, so it can be copied on chip, or read in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind, loop_contains
from targets.nki.rewrites.slices import parse_windows
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, DimensionRange, Tensor


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """`load` reads what `store` wrote to HBM in the same iteration, from a tile on chip."""

    store: Statement
    load: Statement
    source: str
    """Source of the loaded part of the stored tile."""


def is_own_in_hbm(kernel: Kernel, tensor: Tensor) -> bool:
    """Whether a tensor in HBM is declared in the kernel and has no second name."""
    return not tensor.is_on_chip and tensor.id in kernel.declarations and tensor.id not in kernel.escaping_ids


def never_leaves(kernel: Kernel, tensor: Tensor) -> bool:
    """Whether only instructions and its declaration name a tensor; it is not returned either."""
    others = (
        item for item in kernel.statements if item.kind not in {StatementKind.OPERATE, StatementKind.DECLARE}
    )
    return tensor.id not in kernel.escaping_ids and not any(tensor.name in item.uses for item in others)


def find_own_loads(kernel: Kernel) -> list[Statement]:
    """The loads to the chip from HBM tensors that the kernel declared itself."""
    found = [item for item in kernel.operations() if item.op == "dma_copy"]
    return [
        item
        for item in found
        if is_own_in_hbm(kernel, _require_access(item, "src").tensor)
        and _require_access(item, "dst").tensor.is_on_chip
    ]


def find_round_trip(kernel: Kernel, load: Statement) -> RoundTrip:
    """The round trip that ends with a load.

    Raises:
        RewriteRefused: the data was not stored by one transfer earlier in the same iteration.
    """
    middle, goal = _require_access(load, "src"), _require_access(load, "dst")
    hbm = middle.tensor
    writers = [item for item in kernel.users_of(hbm) if item.writes_tensor(hbm)]
    if len(writers) != 1 or writers[0].op != "dma_copy":
        raise RewriteRefused(f"{hbm.name} is not written by one transfer")
    store = writers[0]
    kept, stored = _require_access(store, "src"), _require_access(store, "dst")
    tile = kept.tensor
    if load.path[: len(store.path)] != store.path or store.order > load.order:
        raise RewriteRefused(f"{hbm.name} is not stored in the iteration that loads it")
    if store.guards != load.guards:
        raise RewriteRefused(f"{hbm.name} is stored or loaded under a condition")
    if {tile.dtype, hbm.dtype, goal.tensor.dtype} != {tile.dtype}:
        raise RewriteRefused(f"what goes through {hbm.name} is converted on the way")
    if (
        not tile.is_on_chip
        or tile.copies
        or not (kept.view.is_whole and kept.view.plain)
        or not goal.view.plain
    ):
        raise RewriteRefused(f"{tile.name} is not stored whole, or rearranged")
    if not (stored.view.plain and middle.view.plain) or kept.view.shape != stored.view.shape:
        raise RewriteRefused(f"{hbm.name} is rearranged on the way")
    _check_unchanged(kernel, tile, store, load=load)
    return RoundTrip(store, load, _loaded_part(kernel, store, load))


def replace_load(kernel: Kernel, load: Statement) -> str:
    """The source with an on-chip copy in place of the load.

    Raises:
        RewriteRefused: as for `find_round_trip`.
    """
    trip = find_round_trip(kernel, load)
    words = {"dst": load.texts["dst"], "src": trip.source}
    copy = syntax.with_leading_lines(
        syntax.make_call(f"{kernel.nisa}.tensor_copy", words), syntax.leading_lines(load.node)
    )

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        return [copy] if node is load else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def changes_in_loops(kernel: Kernel, tensor: Tensor, loops: list[Loop]) -> bool:
    """Whether a later iteration of one of the loops may find other contents."""
    return any(
        item.writes_tensor(tensor)
        for item in kernel.statements
        if any(loop_contains(loop, item) for loop in loops)
    )


def _require_access(item: Statement, role: str) -> Access:
    found = item.find_access(role)
    assert found is not None
    return found


def _check_unchanged(kernel: Kernel, tile: Tensor, store: Statement, *, load: Statement) -> None:
    around = [loop for loop in load.path if loop not in store.path]
    if (
        kernel.may_change(tile, store, load)
        or changes_in_loops(kernel, tile, around)
        or tile.id in kernel.escaping_ids
    ):
        raise RewriteRefused(f"{tile.name} changes before it is loaded again")
    if kernel.may_rebind(tile.name, store, load):
        raise RewriteRefused(f"{tile.name} is the name of something else where it is loaded again")


def _loaded_part(kernel: Kernel, store: Statement, load: Statement) -> str:
    """Source of the loaded part of the stored tile: all of it, or some of its columns."""
    stored, loaded, tile = (
        _require_access(store, "dst"),
        _require_access(load, "src"),
        _require_access(store, "src").tensor,
    )
    *rows, columns = zip(stored.view.box, loaded.view.box, strict=True)
    if stored.view.picks != loaded.view.picks or any(first != second for first, second in rows):
        raise RewriteRefused(f"{stored.tensor.name} is loaded from elsewhere than it was stored")
    if columns[0] == columns[1]:
        return tile.name
    first, second = columns
    if len(tile.shape) != len("pf") or not _is_within(kernel, second, first):
        raise RewriteRefused(f"{stored.tensor.name} is loaded in other parts than it was stored")
    # Then a window means the same in both, even if it counts from the end.
    if first.start != Affine(0) or first.size != stored.tensor.shape[-1]:
        raise RewriteRefused(f"not all columns of {stored.tensor.name} are stored")
    text = parse_windows(kernel, load.texts["src"], len(loaded.tensor.shape))[-1]
    if not text.kept:
        raise RewriteRefused(f"one column of {stored.tensor.name} is loaded")
    return f"{tile.name}[:, {text.text}]"


def _is_within(kernel: Kernel, inner: DimensionRange, outer: DimensionRange) -> bool:
    low, high = (inner.start - outer.start).value_range(kernel.trips)
    return inner.step == outer.step == 1 and low >= 0 and high + inner.size <= outer.size
