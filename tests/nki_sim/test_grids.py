"""Grids of tiles and blocks against NumPy: what kernels that walk them compute, what they tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.errors import KernelError
from nki_sim.frontend import grids
from nki_sim.frontend.recorder import Recorder
from nki_sim.frontend.storage import MemoryRegion
from nki_sim.frontend.tensor import Tensor

WALK = """
@nki.jit
def kernel(x):
    source = nl.tiles(x, tile_shape=(128, 256))
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    goal = nl.tiles(out, tile_shape=(128, 256))
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            part = source[i, j]
            tile = nl.ndarray(part.element_shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile.data, src=part.data)
            nisa.activation(dst=tile, op=nl.copy, data=tile, scale=2.0)
            nisa.dma_copy(dst=goal[i, j].data, src=tile)
    return out
"""

BLOCKS = """
@nki.jit
def kernel(x):
    source = nl.blocks(x, tile_shape=(64, 128), block_shape=(1, 3))
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    goal = nl.blocks(out, tile_shape=(64, 128), block_shape=(1, 3))
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            block = source[i, j]
            held = nl.alloc_blocks(
                tile_shape=block.tile_shape, block_shape=block.block_shape, element_shape=block.element_shape,
                buffer=nl.sbuf, dtype=x.dtype,
            )
            nisa.dma_copy(dst=held.data, src=block.data)
            inside = nl.tiles(held)
            for k in range(inside.shape[1]):
                tile = inside[0, k].data
                nisa.activation(dst=tile, op=nl.copy, data=tile, scale=2.0)
            nisa.dma_copy(dst=goal[i, j].data, src=held.data)
    return out
"""

ROWS = """
@nki.jit
def kernel(x):
    held = nl.alloc_tiles(tile_shape=(128, 64), element_shape=x.shape, buffer=nl.sbuf, dtype=x.dtype)
    source = nl.tiles(x, tile_shape=(128, 64))
    out = nl.alloc_tiles(tile_shape=(128, 64), element_shape=x.shape, buffer=nl.shared_hbm, dtype=x.dtype)
    for i in range(source.shape[0]):
        nisa.dma_copy(dst=held[i, :].data, src=source[i, :].data)
    for i in range(held.shape[0]):
        row = held[i].data
        nisa.activation(dst=row, op=nl.copy, data=row, scale=2.0)
        nisa.dma_copy(dst=out[i, :].data, src=row)
    return out.data
"""


@pytest.mark.parametrize("shape", [(256, 512), (200, 300), (128, 256), (1, 1)])
@pytest.mark.parametrize("text", [WALK, BLOCKS, ROWS], ids=["tiles", "blocks", "allocated"])
def test_a_kernel_that_walks_a_grid(simulate: Any, text: str, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    (found,) = simulate(text, values)
    np.testing.assert_allclose(found, 2 * values, rtol=1e-6)


def declare(shape: tuple[int, ...], buffer: str = "hbm") -> Tensor:
    recorder = Recorder(targets.load("trn2"), "kernel.py", max_instructions=10)
    return recorder.declare(shape, "float32", buffer, "t")


def elements(view: Tensor, size: int) -> Any:
    """The storage elements that a view walks, in order."""
    return np.ndarray(
        view.shape, np.int64, np.arange(size), view.offset * 8, [8 * step for step, _ in view._dims]
    )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_selection_is_the_slice_of_numpy(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=2, max_size=4)))
    rank = data.draw(st.integers(2, len(shape)))
    tile = tuple(data.draw(st.integers(1, 6)) for _ in range(rank))
    per_block = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    blocked = data.draw(st.booleans())
    source = declare(shape)
    grid = (
        grids.blocks(source, tile_shape=tile, block_shape=per_block)
        if blocked
        else grids.tiles(source, tile_shape=tile)
    )
    before = len(shape) - rank
    steps = [1] * before + [t * (b if blocked else 1) for t, b in zip(tile, per_block, strict=True)]
    assert grid.index_step_elements == tuple(steps)
    assert grid.shape == tuple(-(-size // step) for size, step in zip(shape, steps, strict=True))
    keys: list[Any] = []
    expected: list[Any] = []
    for at, (cells, step) in enumerate(zip(grid.shape, steps, strict=True)):
        first = data.draw(st.integers(0, cells - 1))
        last = data.draw(st.integers(first + 1, cells))
        if data.draw(st.booleans()):
            keys.append(data.draw(st.sampled_from([first, first - cells])))
            expected.append(first if at < before else slice(first * step, (first + 1) * step))
        else:
            keys.append(slice(first, last))
            expected.append(slice(first * step, last * step))
    found = grid[tuple(keys)]
    wanted = np.arange(source.size).reshape(shape)[tuple(expected)]
    assert found.element_shape == wanted.shape
    assert found.is_data_representable
    assert (elements(found.data, source.size) == wanted).all()
    inside = grids.tiles(found)
    assert inside.element_shape == wanted.shape
    assert inside.tile_shape == tile


def test_what_a_grid_says_of_itself() -> None:
    grid = grids.blocks(declare((3, 300, 500)), tile_shape=(128, 256), block_shape=(2, 1))
    assert isinstance(grid, grids.NkiGrid)
    assert (grid.shape, grid.tile_shape, grid.block_shape) == ((3, 2, 2), (128, 256), (2, 1))
    assert grid.index_step_elements == (1, 256, 256)
    assert grid.buffer is MemoryRegion.hbm
    assert grid.dtype == declare((2, 2)).dtype
    corner = grid[2, -1, -1]
    assert (corner.shape, corner.element_shape, corner.is_remainder) == ((), (44, 244), True)
    assert not grid[0, 0, 0].is_remainder
    assert grids.tiles(grid[0, 0, 0]).shape == (2, 1)
    assert grids.tiles(grid, tile_shape=(100, 100)).shape == (3, 3, 5)


def test_tiles_that_lie_apart_on_chip_are_no_operand(refused: Any) -> None:
    text = """
@nki.jit
def kernel(x):
    held = nl.alloc_tiles(tile_shape=(128, 64), element_shape=(256, 128), buffer=nl.sbuf, dtype=x.dtype)
    if held[:, 0].is_data_representable or held.is_data_representable:
        return x
    held[:, 0].data
"""
    assert refused(text).code == "grid_selection"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("nl.tiles(x)", "missing_argument"),
        ("nl.tiles(7, tile_shape=(1, 1))", "argument_type"),
        ("nl.tiles(x, tile_shape=[128, 64])", "argument_type"),
        ("nl.tiles(x, tile_shape=(128, 0))", "argument_type"),
        ("nl.tiles(x, tile_shape=(True, 4))", "argument_type"),
        ("nl.tiles(x, tile_shape=(128,))", "shape"),
        ("nl.tiles(x, tile_shape=(2, 2, 2))", "shape"),
        ("nl.blocks(x, tile_shape=(8, 8), block_shape=(2,))", "shape"),
        ("nl.tiles(x, tile_shape=(8, 8))[99, 0]", "index_range"),
        ("nl.tiles(x, tile_shape=(8, 8))[0, 0, 0]", "too_many_indices"),
        ("nl.tiles(x, tile_shape=(8, 8))[0:8:2]", "slice"),
        ("nl.tiles(x, tile_shape=(8, 8))[3:3]", "slice"),
        ("nl.tiles(x, tile_shape=(8, 8))['a']", "index_type"),
        ("nl.alloc_tiles(tile_shape=(8, 8), element_shape=(2, 8, 8), buffer=nl.sbuf, dtype=x.dtype)",
         "shape"),
        ("nl.alloc_tiles(tile_shape=(8, 8), element_shape=(8, 8), buffer='sbuf', dtype=x.dtype)",
         "unsupported_memory"),
    ],
)  # fmt: skip
def test_wrong_grids_are_refused_by_name(refused: Any, line: str, code: str) -> None:
    assert refused(f"@nki.jit\ndef kernel(x):\n    {line}\n    return x\n").code == code


@pytest.fixture
def refused(tracing: Any) -> Any:
    """The error that a kernel of x, 128 by 128, ends with."""

    def trace(text: str) -> KernelError:
        with pytest.raises(KernelError) as caught:
            tracing(text, ArraySpec((128, 128), "float32"))
        return caught.value

    return trace
