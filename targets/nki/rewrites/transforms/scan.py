"""Scans: replaces a loop that computes a recurrence step by step by one instruction for all steps.

`tensor_tensor_scan` computes h = (a[t] op0 h) op1 b[t] along a row. Written as a loop over columns this takes
several instructions per step, each on one element per partition and each waiting for the previous one.
A running sum or maximum, in which a column takes in the one before it, is such a recurrence with a[t] = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.recurrences import (
    Recurrence,
    Row,
    RowWriter,
    find_recurrence,
    last_step_text,
    row_partitions,
    text_at,
)
from targets.nki.rewrites.slices import substitute_name
from targets.nki.rewrites.transform import Choice, Transform

MIN_STEPS = 4
"""Number of steps from which a scan is worthwhile."""


class Scan(Transform[Loop]):
    """Computes all steps of a recurrence by one scan."""

    id: ClassVar[str] = "scan"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "a scan computes the same recurrence in float32"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Loop]:
        del target
        return {
            kernel.unique_label(loop): loop
            for loop in kernel.loops
            if loop.trips >= MIN_STEPS
            and _works_on_columns(loop)
            and not any(isinstance(item, Loop) for item in loop.body)
        }

    def list_choices(self, kernel: Kernel, target: Target, place: Loop) -> tuple[Choice, ...]:
        self.apply(kernel, target, place, {})
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Loop, choice: Choice) -> str:
        del target, choice
        made = _write_scan(kernel, place, find_recurrence(kernel, place))
        made[0] = syntax.with_leading_lines(made[0], syntax.leading_lines(place.node))

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return made if node is place else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _works_on_columns(loop: Loop) -> bool:
    """Whether a loop works only on single columns, on chip or on their way there or back."""
    if not all(isinstance(item, Statement) for item in loop.body):
        return False
    items = [item for item in loop.body if isinstance(item, Statement) and item.kind is StatementKind.OPERATE]
    views = [access.view for item in items for access in item.accesses]
    near = all(
        access.tensor.is_on_chip for item in items if item.op != "dma_copy" for access in item.accesses
    )
    return bool(items) and near and all(view.shape[1:] in {(), (1,)} for view in views)


def _write_scan(kernel: Kernel, loop: Loop, found: Recurrence) -> list[cst.BaseStatement]:
    """The scan, what prepares its operands, and what is made of its steps."""
    nl, nisa, state = kernel.nl, kernel.nisa, found.state
    writer = RowWriter(kernel, loop, row_partitions(kernel, state.view), f"{state.view.tensor.name}_steps")
    scale, shift = writer.write_tile(found.scale), writer.write_tile(found.shift)
    steps = writer.declare_row() if found.result is None else writer.row_text(found.result)
    words = {
        "dst": steps,
        "data0": scale,
        "data1": shift,
        "initial": text_at(state.text, loop) if found.moved is not None else state.text,
        "op0": f"{nl}.{found.ops[0]}",
        "op1": f"{nl}.{found.ops[1]}",
    }
    writer.lines.append(syntax.make_call(f"{nisa}.tensor_tensor_scan", words))
    if found.moved is None or found.moved != found.result:
        count = loop.count_text
        own = f"{steps}[:, {substitute_name('n - 1', 'n', count)} : {count}]"
        last = own if found.result is None else last_step_text(kernel, loop, found.result)
        left = state.text if found.moved is None else text_at(found.moved.text, loop, last=True)
        writer.lines.append(syntax.make_call(f"{nisa}.tensor_copy", {"dst": left, "src": last}))
    writer.steps = Row("row", steps)
    for goal, value in found.others:
        write = writer.write_into if goal.view.tensor.is_on_chip else writer.store
        write(value, writer.row_text(goal))
    return writer.lines
