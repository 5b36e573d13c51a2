"""Round trips through HBM: what an iteration stores in a tensor of the kernel's own and loads again.

The tile that was stored still holds it, so that it can be copied on chip, or read where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.model import Access, Kernel, Kind, Loop, Node, Statement, inside
from targets.nki.rewrites.slices import windows
from targets.nki.rewrites.transform import Refused
from targets.nki.rewrites.values import Affine, Range, Tensor


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """`load` reads what `store` has written to HBM in the same iteration, from a tile on chip."""

    store: Statement
    load: Statement
    source: str
    """Source of the part of the stored tile that is loaded."""


def own_in_hbm(kernel: Kernel, tensor: Tensor) -> bool:
    """Whether a tensor in HBM is declared in the kernel and has no second name."""
    return not tensor.on_chip and tensor.id in kernel.declarations and tensor.id not in kernel.escaping


def never_leaves(kernel: Kernel, tensor: Tensor) -> bool:
    """Whether nothing but instructions and its declaration names a tensor: it is not returned either."""
    others = (item for item in kernel.statements if item.kind not in {Kind.OPERATE, Kind.DECLARE})
    return tensor.id not in kernel.escaping and not any(tensor.name in item.uses for item in others)


def loads(kernel: Kernel) -> list[Statement]:
    """The transfers to the chip from tensors in HBM that the kernel made itself."""
    found = [item for item in kernel.operations() if item.op == "dma_copy"]
    return [
        item
        for item in found
        if own_in_hbm(kernel, _role(item, "src").tensor) and _role(item, "dst").tensor.on_chip
    ]


def round_trip(kernel: Kernel, load: Statement) -> RoundTrip:
    """The round trip that ends with a load.

    Raises:
        Refused: what it loads is not what one transfer has stored before it in the same iteration.
    """
    middle, goal = _role(load, "src"), _role(load, "dst")
    hbm = middle.tensor
    writers = [item for item in kernel.users(hbm) if item.writes(hbm)]
    if len(writers) != 1 or writers[0].op != "dma_copy":
        raise Refused(f"{hbm.name} is not written by one transfer")
    store = writers[0]
    kept, stored = _role(store, "src"), _role(store, "dst")
    tile = kept.tensor
    if load.path[: len(store.path)] != store.path or store.order > load.order:
        raise Refused(f"{hbm.name} is not stored in the iteration that loads it")
    if store.guards != load.guards:
        raise Refused(f"{hbm.name} is stored or loaded under a condition")
    if {tile.dtype, hbm.dtype, goal.tensor.dtype} != {tile.dtype}:
        raise Refused(f"what goes through {hbm.name} is converted on the way")
    if not tile.on_chip or tile.copies or not (kept.view.whole and kept.view.plain) or not goal.view.plain:
        raise Refused(f"{tile.name} is not stored whole, or rearranged")
    if not (stored.view.plain and middle.view.plain) or kept.view.shape != stored.view.shape:
        raise Refused(f"{hbm.name} is rearranged on the way")
    _check_unchanged(kernel, tile, store, load)
    return RoundTrip(store, load, _part(kernel, store, load))


def kept_on_chip(kernel: Kernel, load: Statement) -> str:
    """The source with a copy on chip in place of the load.

    Raises:
        Refused: as `round_trip`.
    """
    trip = round_trip(kernel, load)
    words = {"dst": load.texts["dst"], "src": trip.source}
    copy = syntax.at_front(syntax.call(f"{kernel.nisa}.tensor_copy", words), syntax.leading(load.node))

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        return [copy] if node is load else None

    return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def changes_in(kernel: Kernel, tensor: Tensor, loops: list[Loop]) -> bool:
    """Whether a later iteration of one of the loops may find other contents."""
    return any(item.writes(tensor) for item in kernel.statements if any(inside(loop, item) for loop in loops))


def _role(item: Statement, role: str) -> Access:
    found = item.access(role)
    assert found is not None
    return found


def _check_unchanged(kernel: Kernel, tile: Tensor, store: Statement, load: Statement) -> None:
    around = [loop for loop in load.path if loop not in store.path]
    if kernel.changes(tile, store, load) or changes_in(kernel, tile, around) or tile.id in kernel.escaping:
        raise Refused(f"{tile.name} changes before it is loaded again")
    if kernel.rebinds(tile.name, store, load):
        raise Refused(f"{tile.name} is the name of something else where it is loaded again")


def _part(kernel: Kernel, store: Statement, load: Statement) -> str:
    """Source of the part of the stored tile that is loaded: all of it, or some of its columns."""
    stored, loaded, tile = _role(store, "dst"), _role(load, "src"), _role(store, "src").tensor
    *rows, columns = zip(stored.view.box, loaded.view.box, strict=True)
    if stored.view.picks != loaded.view.picks or any(first != second for first, second in rows):
        raise Refused(f"{stored.tensor.name} is loaded from elsewhere than it was stored")
    if columns[0] == columns[1]:
        return tile.name
    first, second = columns
    if len(tile.shape) != len("pf") or not _lies_in(kernel, second, first):
        raise Refused(f"{stored.tensor.name} is loaded in other parts than it was stored")
    # Then a window means the same in both, also where it counts from the end.
    if first.start != Affine(0) or first.size != stored.tensor.shape[-1]:
        raise Refused(f"not all columns of {stored.tensor.name} are stored")
    text = windows(kernel, load.texts["src"], len(loaded.tensor.shape))[-1]
    if not text.kept:
        raise Refused(f"one column of {stored.tensor.name} is loaded")
    return f"{tile.name}[:, {text.text}]"


def _lies_in(kernel: Kernel, inner: Range, outer: Range) -> bool:
    low, high = (inner.start - outer.start).span(kernel.trips)
    return inner.step == outer.step == 1 and low >= 0 and high + inner.size <= outer.size
