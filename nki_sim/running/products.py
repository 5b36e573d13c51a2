"""Computes one large product for many tiles: operands as single matrices, gathered if necessary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from nki_sim.running.matmul_fusion import MatrixBlock
from nki_sim.semantics.arrays import NUMPY, Array, Float, load_float32
from nki_sim.semantics.matrix import multiply

ContractionOrder = Literal["tiles", "rows"]
"""Order of the contraction: tile after tile, or row after row with the tiles' rows side by side."""

Blocks = Sequence[Sequence[MatrixBlock]]
"""[i][k]: blocks along the free axis, each a list along the contraction."""


@dataclass(frozen=True, eq=False)
class MatrixProduct:
    """stationary.T @ moving, computed in place of instruction `number`; the result is tensor `result`.

    Without `result` it goes to the dst of that instruction, added to its contents if `adds`.
    """

    number: int
    result: int | None
    stationary: Blocks
    moving: Blocks
    adds: bool = False


def multiply_blocks(product: MatrixProduct, memory: Callable[[int], Array]) -> Float:
    """Return [M, N] in float32; `memory` gives a tensor's elements as one flat array."""
    left, right = product.stationary, product.moving
    orders = [order for order in _contraction_orders(left) if order in _contraction_orders(right)]
    order = (orders or _contraction_orders(right) or _contraction_orders(left) or ["tiles"])[0]
    return multiply(_join_matrix(left, order, memory), _join_matrix(right, order, memory))


def _join_matrix(blocks: Blocks, order: ContractionOrder, memory: Callable[[int], Array]) -> Float:
    """[K, free] in float32: a view if the blocks are one matrix in memory in this order."""
    if order not in _contraction_orders(blocks):
        return _gather_blocks(blocks, order, memory)
    head = blocks[0][0]
    down = head.down
    if order == "rows" and len(blocks[0]) > 1:
        down = blocks[0][1].offset - head.offset
    rows, columns = sum(block.rows for block in blocks[0]), sum(line[0].columns for line in blocks)
    return load_float32(_block_view(head._replace(down=down, rows=rows, columns=columns), memory))


def _contraction_orders(blocks: Blocks) -> list[ContractionOrder]:
    """The orders in which blocks form one matrix with a single step along each axis."""
    head = blocks[0][0]
    if not _share_layout(blocks):
        return []
    starts = [block.offset - head.offset for block in blocks[0]]
    tops = [0, *accumulate(block.rows for block in blocks[0])]
    found: list[ContractionOrder] = []
    if all(start == top * head.down for start, top in zip(starts, tops, strict=False)):
        found.append("tiles")
    even = len({block.rows for block in blocks[0]}) == 1
    gap = starts[1] if len(starts) > 1 else 0
    if even and head.down == gap * len(starts) and all(start == k * gap for k, start in enumerate(starts)):
        found.append("rows")
    return found


def _share_layout(blocks: Blocks) -> bool:
    """Whether all blocks are in one tensor with equal steps, their columns side by side."""
    head, line = blocks[0][0], blocks[0]
    columns = 0
    for blocks_of_line in blocks:
        for block, above in zip(blocks_of_line, line, strict=True):
            same = block._replace(offset=0, rows=0, columns=0) == head._replace(offset=0, rows=0, columns=0)
            if not same or block.offset - above.offset != columns * head.across:
                return False
        columns += blocks_of_line[0].columns
    return True


def _gather_blocks(blocks: Blocks, order: ContractionOrder, memory: Callable[[int], Array]) -> Float:
    depth, width = sum(block.rows for block in blocks[0]), sum(line[0].columns for line in blocks)
    out: Float = np.empty((depth, width), np.float32)
    tiles = len(blocks[0])
    columns = 0
    for line in blocks:
        rows = 0
        for k, block in enumerate(line):
            part = out[k::tiles] if order == "rows" else out[rows : rows + block.rows]
            part[:, columns : columns + block.columns] = load_float32(_block_view(block, memory))
            rows += block.rows
        columns += line[0].columns
    return out


def _block_view(block: MatrixBlock, memory: Callable[[int], Array]) -> Array:
    dtype = NUMPY[block.dtype]
    strides = (block.down * dtype.itemsize, block.across * dtype.itemsize)
    shape, start = (block.rows, block.columns), block.offset * dtype.itemsize
    return np.ndarray(shape, dtype, memory(block.base), start, strides)
