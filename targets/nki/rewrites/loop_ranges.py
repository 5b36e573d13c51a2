"""Blocks of loop iterations: which sizes divide a loop, and how the source writes its range."""

from __future__ import annotations

import libcst as cst

from targets.nki.rewrites.kernel_ir import Kernel, Loop

BLOCK_SIZES = (2, 4, 8, 16)


def dividing_block_sizes(loop: Loop) -> tuple[int, ...]:
    """The block sizes that divide a loop that counts 0, 1, ...; empty for any other loop."""
    if loop.index_text != loop.var:
        return ()
    return tuple(size for size in BLOCK_SIZES if loop.trips % size == 0 and size < loop.trips)


def range_name(kernel: Kernel, loop: Loop) -> str:
    """The loop's range function as the source writes it."""
    assert isinstance(loop.node.iter, cst.Call)
    return kernel.module.code_for_node(loop.node.iter.func)


def ordered_range_name(kernel: Kernel, loop: Loop) -> str:
    """The name of a range whose iterations pass data on, which affine ranges must not."""
    return range_name(kernel, loop).replace("affine_range", "sequential_range")
