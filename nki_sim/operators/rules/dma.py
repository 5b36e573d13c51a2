"""The hardware's rules on what DMA computes: transposes, and sums of several sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nki_sim.forms import Form, Operand, index_role
from nki_sim.operators.rules.shapes import Breach
from nki_sim.targets import Target

_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_V3 = 3
_PRIORITIES = 4


def priority_range(form: Form, target: Target) -> Iterator[Breach]:
    """There are four priority levels; 0 goes first."""
    del target
    level = form.param("priority")
    if isinstance(level, int) and not 0 <= level < _PRIORITIES:
        yield Breach(
            "argument_range", f"priority is {level}", "priority", f"0..{_PRIORITIES - 1}", level,
            "0 goes before all others, 3 after them",
        )  # fmt: skip


def dge_mode(form: Form, target: Target) -> Iterator[Breach]:
    """Software makes the descriptors of gathers and scatters; hardware descriptors need NeuronCore-v3."""
    mode = form.param("dge_mode")
    if mode == "hwdge" and target.generation < _V3:
        yield Breach(
            "generation", f"dge_mode.hwdge is for NeuronCore-v3 and later, not {target.name}", "dst",
            "NeuronCore-v3", target.name, "leave dge_mode out",
        )  # fmt: skip
    if mode in {"hwdge", "none"} and any(item.is_scattered for item in form.operands):
        yield _mode_breach(str(mode), "a vector of indices", "unknown|swdge")


def _mode_breach(mode: str, what: str, wanted: str) -> Breach:
    return Breach(
        "dge_mode", f"dge_mode.{mode} does not serve {what}", "dge_mode", wanted, mode,
        "leave dge_mode out: the compiler then chooses one that does",
    )  # fmt: skip


def transpose_descriptors(form: Form, target: Target) -> Iterator[Breach]:
    """Software makes only descriptors of gathering transposes, hardware those of small 2-byte transposes."""
    del target
    src, mode = form["src"], form.param("dge_mode")
    if mode == "swdge" and not src.index_step:
        yield _mode_breach("swdge", "a transpose without indices", "unknown|hwdge|none")
    if mode == "hwdge" and not _hardware_transposes(src):
        sizes = tuple(count for _, count in src.dims)
        yield _mode_breach("hwdge", f"a transpose of {sizes} {src.dtype}", "[16, up to 128] of 2 bytes")


def skip_mode(form: Form, target: Target) -> Iterator[Breach]:
    """Only transfers with indices can skip indices out of bounds."""
    del target
    if form.param("oob_mode") == "skip" and not any(item.index_step for item in form.operands):
        yield Breach(
            "argument_pair", f"oob_mode.skip is given to {form.op} without indices", "oob_mode", "indices",
            "absent", "leave oob_mode out",
        )  # fmt: skip


def hwdge_dtypes(form: Form, target: Target) -> Iterator[Breach]:
    """Transfers with hardware descriptors do not convert elements."""
    del target
    dst, src = form["dst"], form["src"]
    if form.param("dge_mode") == "hwdge" and dst.dtype != src.dtype:
        yield Breach(
            "dtype_mismatch", f"dst is {dst.dtype}, src is {src.dtype}, with dge_mode.hwdge", "dst",
            src.dtype, dst.dtype, "leave dge_mode out, or reinterpret one side with .view()",
        )  # fmt: skip


_HARDWARE_ROWS = 16


def _hardware_transposes(src: Operand) -> bool:
    """2 bytes; [16, F], or [1|2|4|8|16, ..., S, F] with 16 dividing the product of first and S.

    F is at most 128 anyway: it is the partitions of dst.
    """
    sizes = [count for _, count in src.dims]
    first = sizes[0]
    if len(sizes) == 2:
        rows = first == _HARDWARE_ROWS
    else:
        rows = _HARDWARE_ROWS % first == 0 and first * sizes[-2] % _HARDWARE_ROWS == 0
    return src.itemsize == 2 and rows


def transpose_axes(form: Form, target: Target) -> Iterator[Breach]:
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


def gather_transpose(form: Form, target: Target) -> Iterator[Breach]:
    """A transpose of indexed rows: 2-byte types from HBM, uint32 indices, NeuronCore-v3 on."""
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


def sum_sources(form: Form, target: Target) -> Iterator[Breach]:
    """Every source has as many elements as dst.

    Indices are allowed in a sum of two of which one is dst itself, and name each place once.
    """
    del target
    dst, *given = form.tiles
    for item in given:
        if item.elements != dst.elements:
            yield Breach(
                "shape_mismatch", f"{item.role} has {item.elements} elements, dst has {dst.elements}",
                item.role, dst.elements, item.elements, "all sources have the elements of dst",
            )  # fmt: skip
    indexed = any(item.index_step for item in form.operands)
    if indexed and (form.param("unique_indices") is False or find_updated_source(form) is None):
        yield Breach(
            "indirect_sources", f"{len(given)} sources with indices, unique_indices="
            f"{form.param('unique_indices')}", "dst", "dst and another", len(given),
            "add a tile to rows of HBM, or rows of HBM to a tile: one of the two sources is dst itself, and "
            "indices name each place once",
        )  # fmt: skip


_SUMMANDS = 2


def find_updated_source(form: Form) -> Operand | None:
    """The source that stands for dst in a sum with indices: of two, the one that is accessed as dst is.

    The other source is in HBM if dst is on chip, and on chip if dst is in HBM. None if this does not hold.
    """
    dst, *given = form.tiles
    alike = [item for item in given if replace(item, role=dst.role) == dst]
    others = [item for item in given if item not in alike]
    fits = len(given) == _SUMMANDS and len(alike) == 1 and others[0].in_hbm != dst.in_hbm
    return alike[0] if fits else None
