"""Strip-mining: a loop becomes a loop over blocks around a loop over the iterations of a block."""

from __future__ import annotations

import libcst as cst

from agent_core.builtin import syntax
from agent_core.builtin.model import Kernel, Loop, Node
from agent_core.builtin.transforms.base import Refused

SIZES = (2, 4, 8, 16)


def block_sizes(loop: Loop) -> tuple[int, ...]:
    """Numbers of iterations that divide a loop that counts 0, 1, ...; none for any other loop."""
    if loop.index_text != loop.var:
        return ()
    return tuple(size for size in SIZES if loop.trips % size == 0 and size < loop.trips)


def range_name(kernel: Kernel, loop: Loop) -> str:
    """How the source spells the loop's range function."""
    assert isinstance(loop.node.iter, cst.Call)
    return kernel.module.code_for_node(loop.node.iter.func)


def split_loop(kernel: Kernel, loop: Loop, size: int, constant: str) -> str:
    """The source with a loop in blocks of `size` iterations, named by a module constant; order is kept.

    Raises:
        Refused: the loop does not count 0, 1, ..., or the size does not divide its iterations.
    """
    if loop.index_text != loop.var or loop.trips % size:
        raise Refused(f"the loop over {loop.var} does not fall into blocks of {size} iterations")
    outer, name = kernel.fresh(f"{loop.var}_block"), range_name(kernel, loop)
    assert isinstance(loop.node.body, cst.IndentedBlock)
    head = f"{name}({outer} * {constant}, ({outer} + 1) * {constant})"
    inner = syntax.loop(loop.var, head, loop.node.body.body)
    made = syntax.loop(outer, f"{name}({syntax.grouped(loop.stop, first=True)} // {constant})", [inner])

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        return [syntax.at_front(made, syntax.leading(loop.node))] if node is loop else None

    line = f"{constant} = {size}  # iterations over {loop.var} in a block"
    return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit), [line])
