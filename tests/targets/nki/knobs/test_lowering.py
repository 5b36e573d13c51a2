"""Where statements, buffers and drains end up; and the tree, run directly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from targets.nki.knobs.interpret import interpret_kernel
from targets.nki.knobs.ir import KernelIR, Scope
from targets.nki.knobs.loop_tree import Allocate, Fill, KernelTree, Loop, Node, Statement
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.narrowing import widest_ir
from tests.support.workloads import WORKLOADS

GRAPH = WORKLOADS["matmul"].graph
SUM_OUTER = ("d1.block", "d0.block", "d0.tile", "d2.block", "d2.tile", "d1.tile")
SUM_INNER = ("d0.block", "d0.tile", "d2.block", "d2.tile", "d1.block", "d1.tile")


def _walk(body: tuple[Node, ...], above: tuple[str, ...] = ()) -> Iterator[tuple[Node, tuple[str, ...]]]:
    for node in body:
        yield node, above
        if isinstance(node, Loop):
            yield from _walk(node.body, (*above, node.variable))


def _loops_around(kernel: KernelTree, operator: str) -> list[tuple[str, ...]]:
    return [
        above
        for node, above in _walk(kernel.body)
        if isinstance(node, Statement) and node.entry.name == operator
    ]


def _list_buffers(kernel: KernelTree, buffer: str) -> tuple[str, ...]:
    return next(
        above for node, above in _walk(kernel.body) if isinstance(node, Allocate) and node.tile.name == buffer
    )


def _turn_knobs(ir: KernelIR, **scopes: Scope) -> KernelIR:
    for name, scope in scopes.items():
        ir = ir.with_knob(("buffer_scopes", *name.split("__")), scope)
    return ir


def test_buffers_are_made_where_their_scopes_say() -> None:
    ir = _turn_knobs(
        widest_ir(GRAPH, SUM_INNER, {"d0": 1, "d1": 2, "d2": 1}),
        sbuf_lhs__d0=Scope.PER_TILE, sbuf_lhs_T__d0=Scope.PER_TILE, psum_lhs_T__d0=Scope.PER_TILE,
        psum_output__d0=Scope.PER_TILE, psum_output__d2=Scope.PER_TILE, sbuf_rhs__d2=Scope.PER_TILE,
    )  # fmt: skip
    kernel = lower_kernel(ir)
    assert _list_buffers(kernel, "sbuf_output") == ()
    assert _list_buffers(kernel, "sbuf_lhs_T") == ("i_d0",)
    assert _list_buffers(kernel, "psum_output") == ("i_d0", "i_d2")
    assert _loops_around(kernel, "NKIMatmul") == [("i_d0", "i_d2", "i_d1")]


def test_what_is_staged_for_a_buffer_is_not_done_again_in_loops_of_its_readers() -> None:
    """The rows of lhs are loaded tile by tile, in no loop over d2, as all of them are kept transposed."""
    order = ("d2.block", "d2.tile", "d0.block", "d0.tile", "d1.block", "d1.tile")
    ir = _turn_knobs(
        widest_ir(GRAPH, order),
        sbuf_lhs__d0=Scope.PER_TILE, sbuf_lhs__d1=Scope.PER_TILE, sbuf_rhs__d2=Scope.PER_TILE,
        psum_output__d2=Scope.PER_TILE, sbuf_output__d2=Scope.PER_TILE,
    )  # fmt: skip
    kernel = lower_kernel(ir)
    assert _list_buffers(kernel, "sbuf_lhs") == ("i_d0", "i_d1")
    assert _loops_around(kernel, "NKITranspose") == [("i_d0", "i_d1")]
    assert _loops_around(kernel, "NKIMatmul") == [("i_d2", "i_d0", "i_d1")]


def _drain(kernel: KernelTree) -> Statement:
    return next(
        node
        for node, _ in _walk(kernel.body)
        if isinstance(node, Statement) and node.result.tensor == "sbuf_output"
    )


def test_psum_is_drained_once_or_block_by_block() -> None:
    ir = widest_ir(GRAPH, SUM_OUTER, {"d0": 1, "d1": 2, "d2": 1})
    whole, parts = lower_kernel(ir), lower_kernel(_turn_knobs(ir, psum_output__d1=Scope.PER_BLOCK))
    assert not _drain(whole).adds
    assert _drain(parts).adds
    fills = [node for node, _ in _walk(parts.body) if isinstance(node, Fill)]
    assert [(node.tile.name, node.value) for node in fills] == [("sbuf_output", 0.0)]
    assert not any(isinstance(node, Fill) for node, _ in _walk(whole.body))
    assert len(_loops_around(parts, "NKIMatmul")[0]) == 4


def test_one_block_is_copied_and_not_added() -> None:
    ir = widest_ir(GRAPH, SUM_OUTER, {"d0": 1, "d1": 4, "d2": 1})
    assert not _drain(lower_kernel(_turn_knobs(ir, psum_output__d1=Scope.PER_BLOCK))).adds


def test_instructions_take_as_much_as_their_buffers_hold() -> None:
    kernel = lower_kernel(widest_ir(GRAPH, SUM_INNER))
    loads = [
        node for node, _ in _walk(kernel.body) if isinstance(node, Statement) and node.entry.name == "NKILoad"
    ]
    assert [[span.size for span in node.operands[0][1].spans] for node in loads] == [[128, 512], [128, 1024]]


def test_loops_that_run_once_are_left_out() -> None:
    kernel = lower_kernel(widest_ir(GRAPH, SUM_INNER, {"d0": 2, "d1": 4, "d2": 2}))
    loops = {node.variable for node, _ in _walk(kernel.body) if isinstance(node, Loop)}
    assert loops == {"i_d0", "i_d1", "i_d2"}


def test_reading_what_was_never_written_shows() -> None:
    workload = WORKLOADS["softmax"]
    kernel = lower_kernel(workload.default)
    without = tuple(node for node in _without_loads(kernel.body))
    found = interpret_kernel(replace(kernel, body=without), workload.inputs())
    assert np.isnan(found).all()


def _without_loads(body: tuple[Node, ...]) -> Iterator[Node]:
    for node in body:
        if isinstance(node, Loop):
            yield replace(node, body=tuple(_without_loads(node.body)))
        elif not (isinstance(node, Statement) and node.entry.name == "NKILoad"):
            yield node
