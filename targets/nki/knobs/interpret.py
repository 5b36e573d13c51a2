"""Runs a loop tree directly in NumPy: the meaning of the knobs, whatever instructions they lower to.

Results are rounded to the buffer's type when they are written, as on the device. Unwritten elements are NaN,
so that reading them shows. A matrix product adds to what the tensor engine has written since the buffer was
made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from targets.nki.knobs.functions import REDUCTIONS
from targets.nki.knobs.loop_tree import Allocate, Fill, KernelTree, Loop, Node, Region, Span, Statement, Tile
from targets.nki.knobs.operators import STATE_SLOT

Floats = NDArray[np.float32]


def interpret_kernel(kernel: KernelTree, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the output of a kernel on arrays by name, in its declared type."""
    state = _Interpreter(kernel, inputs)
    state.run_body(kernel.body, {})
    return state.arrays[kernel.output.name].astype(_numpy_dtype(kernel.output.dtype))


def _numpy_dtype(name: str) -> Any:
    return getattr(ml_dtypes, name, None) or np.dtype(name)


class _Interpreter:
    def __init__(self, kernel: KernelTree, inputs: Mapping[str, NDArray[Any]]) -> None:
        self.arrays: dict[str, Floats] = {
            name: np.asarray(array, np.float32) for name, array in inputs.items()
        }
        self.arrays[kernel.output.name] = np.full(kernel.output.shape, np.nan, np.float32)
        self._types = {kernel.output.name: kernel.output.dtype}
        self._chip = {tile.name: tile for tile in kernel.buffers}

    def run_body(self, body: tuple[Node, ...], at: dict[str, int]) -> None:
        for node in body:
            match node:
                case Loop():
                    for number in range(node.trips):
                        self.run_body(node.body, {**at, node.variable: number})
                case Allocate(tile):
                    self.arrays[tile.name] = np.full(_tile_shape(tile), np.nan, np.float32)
                    self._types[tile.name] = tile.dtype
                case Fill(tile, value):
                    self.arrays[tile.name][...] = value
                case Statement():
                    self._run_statement(node, at)

    def _run_statement(self, node: Statement, at: Mapping[str, int]) -> None:
        operands = {slot: self._view_region(region, at) for slot, region in node.operands}
        numbers = node.entry.numbers & node.settings.keys()
        constants = {slot: np.asarray(node.settings[slot], np.float32) for slot in numbers}
        found = node.entry.meaning(node.settings, {**operands, **constants})
        result = self._view_region(node.result, at)
        before = np.array(result)
        if node.adds and node.entry.fades is not None:
            before = before * operands[node.entry.fades]
        if node.adds:
            found = REDUCTIONS[node.combine].combine(before, found)
        elif node.entry.memory == "psum" and node.entry.reduces is not None:
            found = np.where(np.isnan(before), found, before + found)
        result[...] = (
            np.asarray(found).astype(_numpy_dtype(self._types[node.result.tensor])).astype(np.float32)
        )
        if STATE_SLOT in operands:
            operands[STATE_SLOT][...] = operands["data"]

    def _view_region(self, region: Region, at: Mapping[str, int]) -> Floats:
        """The elements of a region: rows over partitions, each with a row of elements or one element."""
        array = self.arrays[region.tensor]
        first, *others = region.spans
        if region.rows:
            return np.repeat(array[None, slice(*_span_bounds(first, at))], region.rows, axis=0)
        if region.tensor not in self._chip:
            rows = (slice(*_span_bounds(span, at)) for span in region.spans)
            place: tuple[int | slice, ...] = (*(_span_start(span, at) for span in region.lead), *rows)
            found: Floats = array[place]
            return found if others else found[:, None]
        tile = _span_start(first, at)
        return array[:, tile, slice(*_span_bounds(others[0], at)) if others else slice(0, 1)]


def _tile_shape(tile: Tile) -> tuple[int, int, int]:
    return tile.rows, tile.tiles, tile.row


def _span_start(span: Span, at: Mapping[str, int]) -> int:
    return sum(at[variable] * factor for variable, factor in span.terms)


def _span_bounds(span: Span, at: Mapping[str, int]) -> tuple[int, int]:
    start = _span_start(span, at) * span.tile
    return start, start + span.size
