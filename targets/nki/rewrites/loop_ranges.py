"""Blocks of iterations: which sizes divide a loop, and how the source spells its range."""

from __future__ import annotations

import libcst as cst

from targets.nki.rewrites.kernel_ir import Kernel, Loop

BLOCK_SIZES = (2, 4, 8, 16)


def dividing_block_sizes(loop: Loop) -> tuple[int, ...]:
    """Numbers of iterations that divide a loop that counts 0, 1, ...; none for any other loop."""
    if loop.index_text != loop.var:
        return ()
    return tuple(size for size in BLOCK_SIZES if loop.trips % size == 0 and size < loop.trips)


def range_name(kernel: Kernel, loop: Loop) -> str:
    """How the source spells the loop's range function."""
    assert isinstance(loop.node.iter, cst.Call)
    return kernel.module.code_for_node(loop.node.iter.func)


def ordered_range_name(kernel: Kernel, loop: Loop) -> str:
    """How the source would spell a range whose iterations hand something on, which affine ones must not."""
    return range_name(kernel, loop).replace("affine_range", "sequential_range")
