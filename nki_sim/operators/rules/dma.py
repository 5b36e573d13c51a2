"""The hardware's rules on what DMA computes on the way: transposes, and sums of several sources."""

from __future__ import annotations

from collections.abc import Iterator

from nki_sim.forms import Form, index_role
from nki_sim.operators.rules.shapes import Breach
from nki_sim.targets import Target

_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_V3 = 3


def transposed(form: Form, target: Target) -> Iterator[Breach]:
    """dst is src with its axes reversed; of four, the outer two are swapped."""
    del target
    dst, src = form["dst"], form["src"]
    sizes = tuple(count for _, count in src.dims)
    axes = _AXES.get(len(sizes))
    given = form.param("axes")
    if axes is None or given not in {None, axes}:
        yield Breach(
            "transpose_axes", f"axes {given} of a src of {len(sizes)} dimensions", "src",
            "|".join(map(str, _AXES.values())), str(given), "transpose 2 to 4 dimensions with these axes",
        )  # fmt: skip
        return
    wanted, found = tuple(sizes[axis] for axis in axes), tuple(count for _, count in dst.dims)
    if found != wanted:
        yield Breach(
            "shape_mismatch", f"dst is {found}, the transpose of src {sizes} is {wanted}", "dst", str(wanted),
            str(found), "declare dst with the transposed shape",
        )  # fmt: skip


_GATHERED_COLUMNS = 128
_GATHERED_ROWS = 16


def gathered(form: Form, target: Target) -> Iterator[Breach]:
    """A transpose of rows that indices choose: 2-byte types from HBM, uint32 indices, NeuronCore-v3 on."""
    src, index = form["src"], form.operand(index_role("src"))
    if index is None or index.elements == 1:
        return
    counts = [count for _, count in src.dims]
    wrong = {
        f"src is {src.dtype}, not of 2 bytes": src.itemsize != 2,
        f"src is in {src.buffer}, not in HBM": not src.in_hbm,
        f"the indices are {index.dtype} in {index.buffer}": (index.dtype, index.buffer) != ("uint32", "sbuf"),
        f"{counts[0]} rows are gathered, not a multiple of 16": counts[0] % _GATHERED_ROWS != 0,
        f"rows end in {counts[-1]} elements, the limit is 128": counts[-1] > _GATHERED_COLUMNS,
        f"two middle dimensions of {counts[1:-1]}": len(counts) == 4 and min(counts[1:3]) > 1,
        f"{target.name} has no transposes of gathered rows": target.generation < _V3,
    }
    for what, broken in wrong.items():
        if broken:
            yield Breach(
                "indirect_transpose", what, "src", "2-byte rows of HBM", what,
                "gather with nisa.dma_copy first, and transpose what it brought",
            )  # fmt: skip


def sources(form: Form, target: Target) -> Iterator[Breach]:
    """Every source has as many elements as dst; indices serve a sum of two, and name each place once."""
    del target
    dst, *given = (item for item in form.tiles)
    for item in given:
        if item.elements != dst.elements:
            yield Breach(
                "shape_mismatch", f"{item.role} has {item.elements} elements, dst has {dst.elements}",
                item.role, dst.elements, item.elements, "all sources have the elements of dst",
            )  # fmt: skip
    indexed = any(item.index_step for item in form.operands)
    if indexed and (len(given) != 2 or form.param("unique_indices") is False):
        yield Breach(
            "indirect_sources", f"{len(given)} sources with indices", "dst", "2 sources, unique indices",
            len(given), "one source is dst itself, the other is added to it; indices must be unique",
        )  # fmt: skip
