"""Scans: replaces a loop that computes a recurrence step by step by one instruction for all steps.

`tensor_tensor_scan` computes h = (a[t] op0 h) op1 b[t] along a row. Written as a loop over columns this takes
several instructions per step, each on one element per partition and each waiting for the previous one.
A running sum or maximum, in which a column takes in the one before it, is such a recurrence with a[t] = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import (
    COMMUTATIVE_OPERATORS,
    Apply,
    Expression,
    Leaf,
    element_expression,
)
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.slices import (
    SourceWindow,
    base_name,
    find_walked_dimension,
    full_span,
    parse_windows,
    substitute_name,
    widen_window,
)
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Affine, TensorView

MIN_STEPS = 4
"""Number of steps from which a scan is worthwhile."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """In each iteration `state` becomes (`scale` op0 state) op1 `shift` and goes to `result`, if there is
    one.
    """

    state: Leaf
    scale: Leaf
    shift: Leaf
    ops: tuple[str, str]
    result: Leaf | None


class Scan(Transform[Loop]):
    """Computes all steps of a recurrence by one scan."""

    id: ClassVar[str] = "scan"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "a scan takes the same steps in the same order, in float32"

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
        running = find_running_columns(kernel, place)
        if running is not None:
            made = list(_write_running_scan(kernel, place, running))
        else:
            made = list(_write_scan(kernel, place, find_recurrence(kernel, place)))
        made[0] = syntax.with_leading_lines(made[0], syntax.leading_lines(place.node))

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return made if node is place else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


@dataclass(frozen=True, slots=True)
class RunningColumns:
    """In each iteration a column of `goal` becomes the column before it, `op`, a column of `source`.

    The numbers are the first columns of both.
    """

    goal: Access
    source: Access
    op: str
    first: int
    source_first: int


def find_running_columns(kernel: Kernel, loop: Loop) -> RunningColumns | None:
    """Return what a loop accumulates from column to column; None if it does something else."""
    item, *rest = loop.body
    if rest or not isinstance(item, Statement) or item.op != "tensor_tensor" or loop.index_text != loop.var:
        return None
    value, goal = element_expression(item), item.find_access("dst")
    if goal is None or not isinstance(value, Apply) or value.function not in _RUNNING_OPERATORS:
        return None
    first = _column_place(goal, loop)
    for before, added in (("data1", "data2"), ("data2", "data1")):
        last, source = item.find_access(before), item.find_access(added)
        if last is None or source is None or first is None or last.tensor.id != goal.tensor.id:
            continue
        start = _column_place(source, loop)
        # A column of the goal itself must not be one that an earlier step has written.
        apart = source.tensor.id != goal.tensor.id or start == first
        if _column_place(last, loop) == first - 1 and start is not None and apart:
            return RunningColumns(goal, source, value.function, first, start)
    return None


def _column_place(access: Access, loop: Loop) -> int | None:
    """The first column of an access that takes one column of all rows, the next one in each iteration."""
    view, tensor = access.view, access.tensor
    if len(tensor.shape) != len("pf") or not view.plain or tensor.dtype != "float32" or view.picks:
        return None
    rows, column = view.box
    whole = rows.start == Affine(0) and rows.size == tensor.shape[0] and tensor.is_on_chip
    moves = column.start.terms == ((loop.id, 1),) and column.size == 1
    return column.start.const if whole and moves else None


def _write_running_scan(kernel: Kernel, loop: Loop, found: RunningColumns) -> Iterator[cst.BaseStatement]:
    nl, goal, source = kernel.nl, found.goal.tensor.name, found.source.tensor.name
    ones, steps = kernel.fresh_name("ones"), loop.trips
    shape = f"({found.goal.tensor.shape[0]}, {steps})"
    yield syntax.parse_statement(f"{ones} = {nl}.ndarray({shape}, dtype={nl}.float32, buffer={nl}.sbuf)")
    yield syntax.make_call(f"{kernel.nisa}.memset", {"dst": ones, "value": "1.0"})
    words = {
        "dst": f"{goal}[:, {found.first}:{found.first + steps}]",
        "data0": ones,
        "data1": f"{source}[:, {found.source_first}:{found.source_first + steps}]",
        "initial": f"{goal}[:, {found.first - 1}:{found.first}]",
        "op0": f"{nl}.multiply",
        "op1": f"{nl}.{found.op}",
    }
    yield syntax.make_call(f"{kernel.nisa}.tensor_tensor_scan", words)


_RUNNING_OPERATORS = frozenset({"add", "maximum", "minimum"})


def _works_on_columns(loop: Loop) -> bool:
    """Whether a loop works only on single columns, on chip."""
    if not all(isinstance(item, Statement) for item in loop.body):
        return False
    items = [item for item in loop.body if isinstance(item, Statement) and item.kind is StatementKind.OPERATE]
    views = [access.view for item in items for access in item.accesses]
    return bool(items) and all(view.tensor.is_on_chip and view.shape[1:] in {(), (1,)} for view in views)


def find_recurrence(kernel: Kernel, loop: Loop) -> Recurrence:
    """Return the recurrence that a loop over columns computes.

    Raises:
        RewriteRefused: it is not a recurrence that a scan can compute, or something else uses its steps.
    """
    if loop.step != 1:
        raise RewriteRefused(f"the loop over {loop.var} does not count by one")
    values: dict[TensorView, Expression] = {}
    goals: dict[TensorView, Leaf] = {}
    for item in loop.body:
        assert isinstance(item, Statement)
        if item.kind in {StatementKind.OPAQUE, StatementKind.BIND}:
            raise RewriteRefused(
                f"the loop over {loop.var} holds more than instructions: {item.reason or 'a name'}"
            )
        if item.kind is StatementKind.OPERATE:
            goal, value = _read_step(kernel, loop, item, values=values)
            values[goal.view], goals[goal.view] = value, goal
    walking = [view for view in values if loop.id in view.loops]
    carried = {
        leaf.view for value in values.values() for leaf in _iterate_leaves(value) if leaf.view in values
    }
    carried -= set(walking)  # each step reads its own input, not the result of the step before
    if len(carried) != 1 or len(walking) > 1:
        raise RewriteRefused(
            f"the loop over {loop.var} carries {len(carried)} columns from step to step, not one"
        )
    (state,) = carried
    for view in values:
        if view != state and view not in walking:
            _check_local(kernel, loop, view)
    ops, scale, shift = _match_operators(values[state], state)
    if any(values[view] != values[state] for view in walking):
        raise RewriteRefused(f"{walking[0].tensor.name} holds something else than the steps")
    found = Recurrence(goals[state], scale, shift, ops, goals[walking[0]] if walking else None)
    if not walking and state.box[0].size != state.tensor.shape[0]:
        raise RewriteRefused(f"{state.tensor.name} is carried in some of its partitions only")
    for leaf in (scale, shift, *([found.result] if found.result else [])):
        _check_row(leaf, loop)
    return found


def _read_step(
    kernel: Kernel, loop: Loop, item: Statement, *, values: Mapping[TensorView, Expression]
) -> tuple[Leaf, Expression]:
    """What an instruction writes, and its value in terms of the values before the iteration."""
    dst, value = item.find_access("dst"), element_expression(item)
    if dst is None or value is None or item.guards or sum(access.writes for access in item.accesses) != 1:
        raise RewriteRefused(f"{item.op} is no step of a scan")
    for access in item.accesses:
        _check_access(kernel, loop, access)
    return Leaf(dst.view, item.texts["dst"]), _substitute_values(value, values)


def _check_access(kernel: Kernel, loop: Loop, access: Access) -> None:
    tensor = access.tensor
    if (
        tensor.dtype != "float32"
        or tensor.copies
        or not access.view.plain
        or tensor.id in kernel.escaping_ids
    ):
        raise RewriteRefused(f"{tensor.name} is not plainly a tile of float32")
    mine = [other for item in loop.body if isinstance(item, Statement) for other in item.accesses]
    same = [other for other in mine if other.tensor.id == tensor.id]
    if any(other.writes for other in same) and any(other.view != access.view for other in same):
        raise RewriteRefused(f"several columns of {tensor.name} are used in a step")


def _substitute_values(value: Expression, values: Mapping[TensorView, Expression]) -> Expression:
    if isinstance(value, Apply):
        return Apply(value.function, tuple(_substitute_values(item, values) for item in value.operands))
    return values.get(value.view, value) if isinstance(value, Leaf) else value


def _iterate_leaves(value: Expression) -> Iterator[Leaf]:
    if isinstance(value, Apply):
        for item in value.operands:
            yield from _iterate_leaves(item)
    elif isinstance(value, Leaf):
        yield value


def _check_local(kernel: Kernel, loop: Loop, view: TensorView) -> None:
    if any(loop not in item.path for item in kernel.users_of(view.tensor)):
        raise RewriteRefused(f"{view.tensor.name} is used outside the loop over {loop.var}, too")


def _match_operators(value: Expression, state: TensorView) -> tuple[tuple[str, str], Leaf, Leaf]:
    """Return (op0, op1), the scale and the shift of the state."""
    match value:
        case Apply(op1, (Apply(op0, inner), Leaf() as shift)) | Apply(
            op1, (Leaf() as shift, Apply(op0, inner))
        ):
            scales = [item for item in inner if isinstance(item, Leaf) and item.view != state]
            steps = [item for item in inner if isinstance(item, Leaf) and item.view == state]
            if (
                (len(scales), len(steps)) == (1, 1)
                and {op0, op1} <= COMMUTATIVE_OPERATORS
                and shift.view != state
            ):
                return (op0, op1), scales[0], shift
    raise RewriteRefused(f"{state.tensor.name} does not become (a op0 {state.tensor.name}) op1 b")


def _check_row(leaf: Leaf, loop: Loop) -> None:
    view = leaf.view
    if find_walked_dimension(view, loop) != len(view.tensor.shape) - 1:
        raise RewriteRefused(
            f"iterations over {loop.var} do not take neighbouring columns of {view.tensor.name}"
        )


def _write_scan(kernel: Kernel, loop: Loop, plan: Recurrence) -> Iterator[cst.BaseStatement]:
    nl, nisa = kernel.nl, kernel.nisa
    result, last = _result_texts(kernel, loop, plan)
    if plan.result is None:
        rows = shape_texts(kernel, kernel.declarations[plan.state.view.tensor.id])[0]
        shape = f"({rows}, {loop.count_text})"
        yield syntax.parse_statement(
            f"{result} = {nl}.ndarray({shape}, dtype={nl}.float32, buffer={nl}.sbuf)"
        )
    words = {
        "dst": result,
        "data0": _row_text(kernel, loop, plan.scale),
        "data1": _row_text(kernel, loop, plan.shift),
        "initial": plan.state.text,
        "op0": f"{nl}.{plan.ops[0]}",
        "op1": f"{nl}.{plan.ops[1]}",
    }
    yield syntax.make_call(f"{nisa}.tensor_tensor_scan", words)
    yield syntax.make_call(f"{nisa}.tensor_copy", {"dst": plan.state.text, "src": last})


def _result_texts(kernel: Kernel, loop: Loop, plan: Recurrence) -> tuple[str, str]:
    """Sources of the view for all steps, and of the last step in it."""
    if plan.result is None:
        name = kernel.fresh_name(f"{plan.state.view.tensor.name}_steps")
        count = loop.count_text
        return name, f"{name}[:, {substitute_name('n - 1', 'n', count)} : {count}]"
    base, parts = _split_subscript(kernel, plan.result)
    ends = (substitute_name(parts[-1].lower, loop.var, text) for text in (f"{loop.stop} - 1", loop.stop))
    return _row_text(kernel, loop, plan.result), _subscript_text(base, [*parts[:-1]], " : ".join(ends))


def _row_text(kernel: Kernel, loop: Loop, leaf: Leaf) -> str:
    """The source of the columns of all iterations."""
    base, parts = _split_subscript(kernel, leaf)
    return _subscript_text(
        base, parts[:-1], widen_window(leaf.view, len(parts) - 1, loop, parts[-1].lower, full_span(loop))
    )


def _split_subscript(kernel: Kernel, leaf: Leaf) -> tuple[str, list[SourceWindow]]:
    return base_name(leaf.text), parse_windows(kernel, leaf.text, len(leaf.view.tensor.shape))


def _subscript_text(base: str, front: Sequence[SourceWindow], columns: str) -> str:
    words = [*(part.text for part in front), columns]
    return base if set(words) == {":"} else f"{base}[{', '.join(words)}]"
