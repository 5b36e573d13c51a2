"""Renders a loop tree as readable, self-contained `nki.*` source: the same tree gives the same text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from textwrap import wrap

from targets.nki.knobs.ir import KernelIR
from targets.nki.knobs.loop_tree import (
    Allocate,
    Array,
    Fill,
    KernelTree,
    Loop,
    Node,
    Region,
    Span,
    Statement,
    Tile,
)
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.operators import Instruction, TileUse

WIDTH = 110
INDENT = "    "


def render_kernel(ir: KernelIR) -> str:
    """The source of a valid IR's kernel.

    Raises:
        KnobError: it is not valid; the message has the whole report.
    """
    return "\n".join(_Writer(ir, lower_kernel(ir)).source_lines()) + "\n"


@dataclass
class _Writer:
    ir: KernelIR
    kernel: KernelTree
    tiles: dict[str, Tile] = field(init=False)

    def __post_init__(self) -> None:
        self.tiles = {tile.name: tile for tile in self.kernel.buffers}

    def source_lines(self) -> Iterator[str]:
        yield from _docstring_lines(self.ir)
        yield from ("", "import nki", "import nki.isa as nisa", "import nki.language as nl", "", "")
        yield "@nki.jit"
        yield f"def {self.kernel.name}({', '.join(array.name for array in self.kernel.inputs)}):"
        for array in self.kernel.inputs:
            yield f"{INDENT}assert {array.name}.shape == {array.shape}"
        yield INDENT + _declare_output(self.kernel.output)
        yield ""
        yield from self._body_lines(self.kernel.body, 1)
        yield f"{INDENT}return {self.kernel.output.name}"

    def _body_lines(self, body: Iterable[Node], depth: int) -> Iterator[str]:
        pad = INDENT * depth
        for node in body:
            match node:
                case Loop():
                    yield f"{pad}for {node.variable} in range({node.trips}):"
                    yield from self._body_lines(node.body, depth + 1)
                case Allocate(tile):
                    yield pad + _declare_tile(tile)
                case Fill(tile, value):
                    yield f"{pad}nisa.memset(dst={tile.name}, value={value!r})"
                case Statement():
                    yield from self._statement_lines(node, pad)

    def _statement_lines(self, node: Statement, pad: str) -> Iterator[str]:
        for tile in node.scratch:
            yield pad + _declare_tile(tile)
        regions = {slot: self._index_region(region) for slot, region in node.operands}
        regions |= {
            "result": self._index_region(node.result),
            **{tile.name: tile.name for tile in node.scratch},
        }
        for instruction in node.entry.emit(node.settings, node.adds):
            yield from _call_lines(instruction, regions, pad)

    def _index_region(self, region: Region) -> str:
        """The index text of a region; a buffer that holds one partition tile has no index for it."""
        first, *others = region.spans
        tile = self.tiles.get(region.tensor)
        if tile is None:
            shape = _array_shape(self.kernel, region.tensor)
            if region.rows:
                spread = f"{region.tensor}.reshape((1, {shape[0]})).broadcast(0, {region.rows})"
                return f"{spread}[0:{region.rows}, {_element_slice(first)}]"
            whole = region.tensor if others else f"{region.tensor}.reshape({(*shape, 1)})"
            batch = "".join(f"{_start_text(span, 1)}, " for span in region.lead)
            return (
                f"{whole}[{batch}{_element_slice(first)}, {_element_slice(others[0]) if others else '0:1'}]"
            )
        if not others:
            return (
                region.tensor
                if tile.tiles == 1
                else f"{region.tensor}[:, {_slice_text(_start_text(first, 1), 1)}]"
            )
        row = ":" if others[0].size == tile.row else _element_slice(others[0])
        if tile.tiles == 1:
            return region.tensor if row == ":" else f"{region.tensor}[:, {row}]"
        return f"{region.tensor}[:, {_start_text(first, 1)}, {row}]"


def _docstring_lines(ir: KernelIR) -> Iterator[str]:
    yield f'"""{ir.graph.name}, lowered from three knobs; a tile is what one instruction takes.'
    yield ""
    for dim in ir.graph.dims:
        blocks = ir.trip_count(f"{dim.name}.block")
        count = ir.ltiles[dim.name]
        yield f"{dim.name}: {dim.size} = {blocks} blocks of {count} tiles of {dim.tile}"
    yield from wrap(f"loops, from the outside in: {' '.join(ir.loop_order)}", WIDTH)
    yield '"""'


def _declare_output(array: Array) -> str:
    return f"{array.name} = nl.ndarray({array.shape}, dtype=nl.{array.dtype}, buffer=nl.shared_hbm)"


def _declare_tile(tile: Tile) -> str:
    shape = (tile.rows, tile.tiles) if tile.row == 1 else (tile.rows, tile.tiles, tile.row)
    if tile.tiles == 1:
        shape = (tile.rows, tile.row)
    return f"{tile.name} = nl.ndarray({shape}, dtype=nl.{tile.dtype}, buffer=nl.{tile.memory})"


def _array_shape(kernel: KernelTree, name: str) -> tuple[int, ...]:
    return next(array.shape for array in (*kernel.inputs, kernel.output) if array.name == name)


def _element_slice(span: Span) -> str:
    return _slice_text(_start_text(span, span.tile), span.size)


def _slice_text(start: str, size: int) -> str:
    return f"0:{size}" if start == "0" else f"nl.ds({start}, {size})"


def _start_text(span: Span, unit: int) -> str:
    """Where a span starts, in units of which `unit` make a tile."""
    terms = [
        variable if factor * unit == 1 else f"{variable} * {factor * unit}" for variable, factor in span.terms
    ]
    return " + ".join(terms) or "0"


def _call_lines(instruction: Instruction, regions: dict[str, str], pad: str) -> Iterator[str]:
    arguments = [
        f"{keyword}={regions[value.slot] if isinstance(value, TileUse) else value}"
        for keyword, value in instruction.arguments
    ]
    line = f"{pad}nisa.{instruction.name}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        yield line
        return
    yield f"{pad}nisa.{instruction.name}("
    yield from (f"{pad}{INDENT}{argument}," for argument in arguments)
    yield f"{pad})"
