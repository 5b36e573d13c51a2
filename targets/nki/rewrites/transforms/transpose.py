"""Transposes on the tensor engine: what DMA turned around on its way is loaded as it is and turned on chip.

DMA turns types of two bytes a little more slowly than it moves them, and others element by element, each for
the time of a whole descriptor. The tensor engine turns a block of 128 by 128 in the time of a short product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substituted
from targets.nki.rewrites.instructions import HINTS
from targets.nki.rewrites.model import Access, Kernel, Node, Statement
from targets.nki.rewrites.slices import Window, base_name, windows
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.transform import Choice, Refused, Transform, by_result

FLOATS = frozenset({"float32", "bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class Side:
    """An operand of two dimensions: its tensor's name and windows, and which are its rows and columns."""

    name: str
    windows: tuple[Window, ...]
    kept: tuple[int, int]

    def block(self, axis: int, index: str, size: int) -> str:
        """The source of a block of its rows (axis 0) or columns (1)."""
        words = [window.text for window in self.windows]
        known = {"low": self.windows[self.kept[axis]].lower, "index": index}
        ends = (substituted(f"low + {number} * {size}", known) for number in ("index", "(index + 1)"))
        words[self.kept[axis]] = " : ".join(ends)
        return f"{self.name}[{', '.join(words)}]"


@dataclass(frozen=True, slots=True)
class Turn:
    """What DMA turns; `rows` and `columns` are the sources of the sizes of what it reads."""

    kernel: Kernel
    item: Statement
    goal: Side
    source: Side
    rows: str
    columns: str


class Transpose(Transform[Statement]):
    """Turns on the tensor engine what DMA turned around."""

    id: ClassVar[str] = "transpose"
    counter: ClassVar[str] = "dma_active_time_percent"
    keeps: ClassVar[str] = (
        "the same elements come to lie in the same places; the tensor engine moves finite ones as they are"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return by_result(item for item in kernel.operations() if item.op == "dma_transpose")

    def choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        _turn(kernel, target, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        first, *others = _on_chip(_turn(kernel, target, place), target)
        made = [syntax.at_front(first, syntax.leading(place.node)), *others]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return made if node is place else None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _operands(item: Statement) -> tuple[Access, Access]:
    dst, src = item.access("dst"), item.access("src")
    assert dst is not None
    assert src is not None
    return dst, src


def _turn(kernel: Kernel, target: Target, item: Statement) -> Turn:
    """What a transfer turns, as the tensor engine could.

    Raises:
        Refused: it has other arguments, dimensions, types or sizes, or is written in a way that hides them.
    """
    dst, src = _operands(item)
    strange = sorted(item.texts.keys() - {"dst", "src", "axes"} - HINTS)
    if strange:
        raise Refused(f"{item.op} has {strange[0]}")
    if not (dst.view.plain and src.view.plain) or len(src.view.axes) != len("pf"):
        raise Refused(f"{src.tensor.name} is not turned as a matrix")
    if dst.tensor.dtype not in FLOATS or src.tensor.dtype != dst.tensor.dtype:
        raise Refused(f"the tensor engine does not turn {dst.tensor.dtype} as it is")
    rows, most = src.view.shape[0], target.partitions
    if rows > most and rows % most:
        raise Refused(f"the {rows} rows of {src.tensor.name} are not made of blocks of {most}")
    goal, source = (_side(kernel, item, access) for access in (dst, src))
    columns, turned = (_size(kernel, item, dst, goal, dim) for dim in goal.kept)
    if rows > most:
        _size(kernel, item, src, source, source.kept[0])
    return Turn(kernel, item, goal, source, turned, columns)


def _side(kernel: Kernel, item: Statement, access: Access) -> Side:
    """How the source names an operand.

    Raises:
        Refused: it is not a name, indexed or not, or not two of its dimensions are left.
    """
    text, rank = item.texts[access.role], len(access.tensor.shape)
    bare = isinstance(syntax.expression(text), cst.Name)
    whole = f"{text}[{', '.join([':'] * rank)}]" if bare else text
    found = windows(kernel, whole, rank)
    kept = [number for number, window in enumerate(found) if window.kept]
    if access.tensor.copies or len(kept) != len("pf"):
        raise Refused(f"{text} is not indexed as a matrix")
    sizes = [window.size for window in access.view.box]
    if any(found[number].text == ":" and sizes[number] != access.tensor.shape[number] for number in kept):
        raise Refused(f"{text} is a view of a part of {access.tensor.name}")
    return Side(base_name(whole), tuple(found), (kept[0], kept[1]))


def _size(kernel: Kernel, item: Statement, access: Access, side: Side, dim: int) -> str:
    """The source of the size of a window: as it is written, or its tensor's own.

    Raises:
        Refused: it has steps or counts from the end.
    """
    text = side.windows[dim].text
    low, *ends = (part.strip() for part in text.split(":"))
    open_end = ends == [""] and low not in {"", "0"}
    if "-" in text or len(ends) > 1 or open_end:
        raise Refused(f"{text} has steps or counts from the end")
    if not ends:  # nl.ds(start, size)
        call = cst.ensure_type(syntax.expression(text), cst.Call)
        return kernel.module.code_for_node(call.args[-1].value)
    if ends[0]:
        return substituted("high - low", {"high": ends[0], "low": low or "0"})
    declared = kernel.declarations.get(access.tensor.id)
    told = shape_texts(kernel, declared)[dim] if declared is not None else ""
    known = declared is not None and not kernel.rebinds(told, declared, item)
    return told if known else f"{side.name}.shape[{dim}]"


def _on_chip(turn: Turn, target: Target) -> list[cst.BaseStatement]:
    """The load of what is turned, where it is in HBM, and its transposes, block by block."""
    item, most = turn.item, target.partitions
    if _operands(item)[1].view.shape[0] <= most:
        return _block(turn, turn.rows, (item.texts["dst"], item.texts["src"]))
    index = turn.kernel.fresh("i_rows")
    parts = turn.goal.block(1, index, most), turn.source.block(0, index, most)
    count = f"{turn.kernel.nl}.affine_range({syntax.grouped(turn.rows, first=True)} // {most})"
    return [syntax.loop(index, count, _block(turn, str(most), parts))]


def _block(turn: Turn, rows: str, parts: tuple[str, str]) -> list[cst.BaseStatement]:
    """The transpose of so many rows, from the second to the first of two parts."""
    kernel, (dst, src) = turn.kernel, _operands(turn.item)
    nl, nisa, dtype = kernel.nl, kernel.nisa, f"{kernel.nl}.{dst.tensor.dtype}"
    (goal, data), name, lines = parts, dst.tensor.name, list[cst.BaseStatement]()
    if not src.tensor.on_chip:
        data = kernel.fresh(f"{name}_rows")
        tile = f"{data} = {nl}.ndarray(({rows}, {turn.columns}), dtype={dtype}, buffer={nl}.sbuf)"
        lines = [syntax.statement(tile), syntax.call(f"{nisa}.dma_copy", {"dst": data, "src": parts[1]})]
    turned = kernel.fresh(f"{name}_psum")
    tile = f"{turned} = {nl}.ndarray(({turn.columns}, {rows}), dtype={dtype}, buffer={nl}.psum)"
    return [
        *lines,
        syntax.statement(tile),
        syntax.call(f"{nisa}.nc_transpose", {"dst": turned, "data": data}),
        syntax.call(f"{nisa}.tensor_copy", {"dst": goal, "src": turned}),
    ]
