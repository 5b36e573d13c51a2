"""Transposes on the tensor engine: data is loaded as it is and transposed on chip instead of by DMA.

DMA transposes 2-byte types a little more slowly than it moves them. It transposes other types element by
element, each in the time of a whole descriptor. The tensor engine transposes a block of 128 by 128 in the
time of a short product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substitute_names
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.instructions import HINTS
from targets.nki.rewrites.kernel_ir import Access, Kernel, Node, Statement
from targets.nki.rewrites.slices import SourceWindow, base_name, parse_windows
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, sites_by_result

FLOAT_DTYPES = frozenset({"float32", "bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class MatrixOperand:
    """A two-dimensional operand: its tensor's name and windows, and which of them are rows and columns."""

    name: str
    windows: tuple[SourceWindow, ...]
    kept: tuple[int, int]

    def block_text(self, axis: int, index: str, size: int) -> str:
        """The source of a block of the operand's rows (axis 0) or columns (1)."""
        words = [window.text for window in self.windows]
        known = {"low": self.windows[self.kept[axis]].lower, "index": index}
        ends = (substitute_names(f"low + {number} * {size}", known) for number in ("index", "(index + 1)"))
        words[self.kept[axis]] = " : ".join(ends)
        return f"{self.name}[{', '.join(words)}]"


@dataclass(frozen=True, slots=True)
class TransposePlan:
    """A transpose by DMA; `rows` and `columns` are the sources of the sizes of its input."""

    kernel: Kernel
    item: Statement
    goal: MatrixOperand
    source: MatrixOperand
    rows: str
    columns: str


class Transpose(Transform[Statement]):
    """Transposes on the tensor engine instead of by DMA."""

    id: ClassVar[str] = "transpose"
    counter: ClassVar[str] = "dma_active_time_percent"
    keeps: ClassVar[str] = (
        "the same elements come to lie in the same places; the tensor engine moves finite ones as they are"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return sites_by_result(item for item in kernel.operations() if item.op == "dma_transpose")

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        _plan_transpose(kernel, target, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        first, *others = _transpose_on_chip(_plan_transpose(kernel, target, place), target)
        made = [syntax.with_leading_lines(first, syntax.leading_lines(place.node)), *others]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return made if node is place else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _transfer_operands(item: Statement) -> tuple[Access, Access]:
    dst, src = item.find_access("dst"), item.find_access("src")
    assert dst is not None
    assert src is not None
    return dst, src


def _plan_transpose(kernel: Kernel, target: Target, item: Statement) -> TransposePlan:
    """Plan a DMA transpose for the tensor engine.

    Raises:
        RewriteRefused: the transfer's arguments, dimensions, types or sizes do not fit, or its source hides
            them.
    """
    dst, src = _transfer_operands(item)
    strange = sorted(item.texts.keys() - {"dst", "src", "axes"} - HINTS)
    if strange:
        raise RewriteRefused(f"{item.op} has {strange[0]}")
    if not (dst.view.plain and src.view.plain) or len(src.view.axes) != len("pf"):
        raise RewriteRefused(f"{src.tensor.name} is not turned as a matrix")
    if dst.tensor.dtype not in FLOAT_DTYPES or src.tensor.dtype != dst.tensor.dtype:
        raise RewriteRefused(f"the tensor engine does not turn {dst.tensor.dtype} as it is")
    rows, most = src.view.shape[0], target.partitions
    if rows > most and rows % most:
        raise RewriteRefused(f"the {rows} rows of {src.tensor.name} are not made of blocks of {most}")
    goal, source = (_parse_matrix_operand(kernel, item, access) for access in (dst, src))
    columns, turned = (_size_text(kernel, item, dst, side=goal, dim=dim) for dim in goal.kept)
    if rows > most:
        _size_text(kernel, item, src, side=source, dim=source.kept[0])
    return TransposePlan(kernel, item, goal, source, turned, columns)


def _parse_matrix_operand(kernel: Kernel, item: Statement, access: Access) -> MatrixOperand:
    """Parse how the source names an operand.

    Raises:
        RewriteRefused: it is not a name, with or without an index, or does not have two dimensions left.
    """
    text, rank = item.texts[access.role], len(access.tensor.shape)
    bare = isinstance(syntax.parse_expression(text), cst.Name)
    whole = f"{text}[{', '.join([':'] * rank)}]" if bare else text
    found = parse_windows(kernel, whole, rank)
    kept = [number for number, window in enumerate(found) if window.kept]
    if access.tensor.copies or len(kept) != len("pf"):
        raise RewriteRefused(f"{text} is not indexed as a matrix")
    sizes = [window.size for window in access.view.box]
    if any(found[number].text == ":" and sizes[number] != access.tensor.shape[number] for number in kept):
        raise RewriteRefused(f"{text} is a view of a part of {access.tensor.name}")
    return MatrixOperand(base_name(whole), tuple(found), (kept[0], kept[1]))


def _size_text(kernel: Kernel, item: Statement, access: Access, *, side: MatrixOperand, dim: int) -> str:
    """The source of a window's size: as written, or the tensor's own size.

    Raises:
        RewriteRefused: the window has steps or counts from the end.
    """
    text = side.windows[dim].text
    low, *ends = (part.strip() for part in text.split(":"))
    open_end = ends == [""] and low not in {"", "0"}
    if "-" in text or len(ends) > 1 or open_end:
        raise RewriteRefused(f"{text} has steps or counts from the end")
    if not ends:  # nl.ds(start, size)
        call = cst.ensure_type(syntax.parse_expression(text), cst.Call)
        return kernel.module.code_for_node(call.args[-1].value)
    if ends[0]:
        return substitute_names("high - low", {"high": ends[0], "low": low or "0"})
    declared = kernel.declarations.get(access.tensor.id)
    told = shape_texts(kernel, declared)[dim] if declared is not None else ""
    known = declared is not None and not kernel.may_rebind(told, declared, item)
    return told if known else f"{side.name}.shape[{dim}]"


def _transpose_on_chip(turn: TransposePlan, target: Target) -> list[cst.BaseStatement]:
    """The load of the input, if it is in HBM, and its transposes, block by block."""
    item, most = turn.item, target.partitions
    if _transfer_operands(item)[1].view.shape[0] <= most:
        return _transpose_block(turn, turn.rows, (item.texts["dst"], item.texts["src"]))
    index = turn.kernel.fresh_name("i_rows")
    parts = turn.goal.block_text(1, index, most), turn.source.block_text(0, index, most)
    count = f"{turn.kernel.nl}.affine_range({syntax.group_factor(turn.rows, first=True)} // {most})"
    return [syntax.make_loop(index, count, _transpose_block(turn, str(most), parts))]


def _transpose_block(turn: TransposePlan, rows: str, parts: tuple[str, str]) -> list[cst.BaseStatement]:
    """The transpose of `rows` rows, from the second of `parts` to the first."""
    kernel, (dst, src) = turn.kernel, _transfer_operands(turn.item)
    nl, nisa, dtype = kernel.nl, kernel.nisa, f"{kernel.nl}.{dst.tensor.dtype}"
    (goal, data), name, lines = parts, dst.tensor.name, list[cst.BaseStatement]()
    if not src.tensor.is_on_chip:
        data = kernel.fresh_name(f"{name}_rows")
        tile = f"{data} = {nl}.ndarray(({rows}, {turn.columns}), dtype={dtype}, buffer={nl}.sbuf)"
        lines = [
            syntax.parse_statement(tile),
            syntax.make_call(f"{nisa}.dma_copy", {"dst": data, "src": parts[1]}),
        ]
    turned = kernel.fresh_name(f"{name}_psum")
    tile = f"{turned} = {nl}.ndarray(({turn.columns}, {rows}), dtype={dtype}, buffer={nl}.psum)"
    return [
        *lines,
        syntax.parse_statement(tile),
        syntax.make_call(f"{nisa}.nc_transpose", {"dst": turned, "data": data}),
        syntax.make_call(f"{nisa}.tensor_copy", {"dst": goal, "src": turned}),
    ]
