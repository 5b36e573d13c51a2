"""Recurrences: what a loop over columns carries from step to step, however its instructions spell it.

A step's instructions compose to one expression for the new state. If it is linear in the old state, it is
`scale * state + shift`, wherever the state stands: `(h - x) * a + x` is `a * h + (x - a * x)`. A maximum or a
minimum of such an expression and something else is a recurrence too. Scale and shift may be expressions of
columns, which are then computed for all steps at once (`RowWriter`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substitute_names
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.elementwise import (
    COMMUTATIVE_OPERATORS,
    Apply,
    Expression,
    Leaf,
    element_expression,
)
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Statement, StatementKind
from targets.nki.rewrites.slices import (
    SourceWindow,
    base_name,
    find_walked_dimension,
    full_span,
    parse_windows,
    substitute_name,
    widen_window,
)
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, DimensionRange, TensorView

_BINARY_OPERATORS = frozenset({"add", "subtract", "multiply", "maximum", "minimum"})
_STEPS = "<steps>"
"""Stands for the source of the new state."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """In each iteration `state` becomes (`scale` op0 state) op1 `shift`.

    `result` is where all steps are kept, if they are. `others` are the columns that are made of each step,
    with their values, in which `steps` stands for the new state. `moved` is the new state if it is not where
    the old one is: in the next column, or in the next tile of a list.
    """

    state: Leaf
    scale: Expression
    shift: Expression
    ops: tuple[str, str]
    result: Leaf | None
    others: tuple[tuple[Leaf, Expression], ...]
    steps: Leaf
    moved: Leaf | None


def find_recurrence(kernel: Kernel, loop: Loop) -> Recurrence:
    """Return the recurrence that a loop over columns computes.

    Raises:
        RewriteRefused: it is not a recurrence that a scan can compute, or something else uses its steps.
    """
    if loop.step != 1:
        raise RewriteRefused(f"the loop over {loop.var} does not count by one")
    values, goals = _read_steps(kernel, loop)
    walking = [view for view in values if loop.id in view.loops]
    state, moves = _find_state(loop, values, walking)
    new = goals[_next_column(state.view, loop) if moves else state.view].view
    for view in values:
        if view != new and view not in walking:
            _check_local(kernel, loop, view)
    ops, scale, shift = _match_operators(values[new], state)
    steps = Leaf(state.view, _STEPS)
    kept = [
        view for view in walking if values[view] == values[new] and not view.picks and view.tensor.is_on_chip
    ]
    result = goals[new] if new in kept else goals[kept[0]] if kept else None
    others = tuple(
        (goals[view], _replace_part(values[view], values[new], steps))
        for view in walking
        if view not in {new, result.view if result is not None else None}
    )
    found = Recurrence(state, scale, shift, ops, result, others, steps, goals[new] if moves else None)
    _check_recurrence(loop, found)
    if new.picks:
        _check_list(kernel, loop, new)
    return found


def _check_list(kernel: Kernel, loop: Loop, new: TensorView) -> None:
    """Require that of a list of states only the last one is used after the loop."""
    tensor, index = new.tensor, new.picks[0]
    last = Affine(index.const + index.coefficient(loop.id) * (loop.trips - 1))
    inside = [item for item in kernel.users_of(tensor) if loop in item.path]
    later = [item for item in kernel.users_of(tensor) if item.order > inside[-1].order]
    picks = {access.view.picks for item in later for access in item.accesses if access.tensor.id == tensor.id}
    if len(tensor.copies) != 1 or index != Affine(last.const - loop.trips + 1, ((loop.id, 1),)):
        raise RewriteRefused(
            f"iterations over {loop.var} do not take one tile of {tensor.name} after the other"
        )
    if picks - {(last,)}:
        raise RewriteRefused(f"{tensor.name} has steps that are used after the loop over {loop.var}")


def _read_steps(kernel: Kernel, loop: Loop) -> tuple[dict[TensorView, Expression], dict[TensorView, Leaf]]:
    """What each written column holds after an iteration, in terms of what columns held before it."""
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
    return values, goals


def _read_step(
    kernel: Kernel, loop: Loop, item: Statement, *, values: Mapping[TensorView, Expression]
) -> tuple[Leaf, Expression]:
    """What an instruction writes, and its value in terms of the values before the iteration."""
    dst, value = item.find_access("dst"), _column_expression(item)
    if dst is None or value is None or item.guards or sum(access.writes for access in item.accesses) != 1:
        raise RewriteRefused(f"{item.op} is no step of a scan")
    for access in item.accesses:
        _check_access(kernel, loop, access)
    return Leaf(dst.view, item.texts["dst"]), _substitute_values(value, values)


def _column_expression(item: Statement) -> Expression | None:
    """The value of a column in a step; a column that a transfer moves stays what it is."""
    dst, src = item.find_access("dst"), item.find_access("src")
    if item.op != "dma_copy" or dst is None or src is None:
        return element_expression(item)
    plain = item.texts.keys() <= {"dst", "src"} and dst.view.shape == src.view.shape
    return Leaf(src.view, item.texts["src"]) if plain else None


def _check_access(kernel: Kernel, loop: Loop, access: Access) -> None:
    tensor = access.tensor
    if (
        tensor.dtype != "float32"
        or len(access.view.picks) != len(tensor.copies)
        or not access.view.plain
        or tensor.id in kernel.escaping_ids
    ):
        raise RewriteRefused(f"{tensor.name} is not plainly a tile of float32")
    mine = [other for item in loop.body if isinstance(item, Statement) for other in item.accesses]
    same = [other for other in mine if other.tensor.id == tensor.id]
    for written in same:
        places = {written.view, _column_before(written.view, loop)}
        if written.writes and any(other.view not in places for other in same if not other.writes):
            raise RewriteRefused(f"several columns of {tensor.name} are used in a step")
    if len({other.view for other in same if other.writes}) > 1:
        raise RewriteRefused(f"several columns of {tensor.name} are used in a step")


def _column_before(view: TensorView, loop: Loop) -> TensorView | None:
    """The column that a view takes one iteration earlier, along the last dimension."""
    return _moved_column(view, loop, -1)


def _next_column(view: TensorView, loop: Loop) -> TensorView:
    found = _moved_column(view, loop, 1)
    assert found is not None
    return found


def _moved_column(view: TensorView, loop: Loop, by: int) -> TensorView | None:
    if view.picks:
        moves = view.picks[0].coefficient(loop.id) == 1 and view.is_whole
        picks = (view.picks[0] + Affine(by), *view.picks[1:])
        return TensorView(view.tensor, picks, view.box, view.axes, view.plain, view.within) if moves else None
    last = view.box[-1]
    if last.start.coefficient(loop.id) != 1 or last.size != 1:
        return None
    box = (*view.box[:-1], DimensionRange(last.start + Affine(by), 1, last.step))
    return TensorView(view.tensor, view.picks, box, view.axes, view.plain, view.within)


def _find_state(
    loop: Loop, values: Mapping[TensorView, Expression], walking: Sequence[TensorView]
) -> tuple[Leaf, bool]:
    """What is carried from step to step, and whether each step writes the next column, or tile of a list."""
    leaves = {leaf.view: leaf for value in values.values() for leaf in _iterate_leaves(value)}
    carried = [view for view in values if view in leaves and view not in walking]
    before = [view for one in walking if (view := _column_before(one, loop)) in leaves]
    found = [*carried, *before]
    if len(found) != 1 or found[0] is None:
        raise RewriteRefused(
            f"the loop over {loop.var} carries {len(found)} columns from step to step, not one"
        )
    return leaves[found[0]], not carried


def _substitute_values(value: Expression, values: Mapping[TensorView, Expression]) -> Expression:
    if isinstance(value, Apply):
        return Apply(value.function, tuple(_substitute_values(item, values) for item in value.operands))
    return values.get(value.view, value) if isinstance(value, Leaf) else value


def _replace_part(value: Expression, part: Expression, by: Leaf) -> Expression:
    if value == part:
        return by
    if isinstance(value, Apply):
        return Apply(value.function, tuple(_replace_part(item, part, by) for item in value.operands))
    return value


def _iterate_leaves(value: Expression) -> Iterator[Leaf]:
    if isinstance(value, Apply):
        for item in value.operands:
            yield from _iterate_leaves(item)
    elif isinstance(value, Leaf):
        yield value


def _has_leaves(value: Expression) -> bool:
    return next(_iterate_leaves(value), None) is not None


def _check_local(kernel: Kernel, loop: Loop, view: TensorView) -> None:
    if any(loop not in item.path for item in kernel.users_of(view.tensor)):
        raise RewriteRefused(f"{view.tensor.name} is used outside the loop over {loop.var}, too")


# -- the form of the new state ---------------------------------------------------------------------


def _match_operators(value: Expression, state: Leaf) -> tuple[tuple[str, str], Expression, Expression]:
    """Return (op0, op1), the scale and the shift of the state."""
    linear = _as_linear(value, state.view)
    if linear is not None and linear[0] != 0.0:
        scale, shift = linear
        match shift:
            case Apply("subtract", (0.0, inner)):
                return ("multiply", "subtract"), scale, inner
        return ("multiply", "add"), scale, shift
    match value:
        case Apply(op1, (first, second)) if op1 in COMMUTATIVE_OPERATORS:
            inner, shift = (first, second) if _uses(first, state.view) else (second, first)
            found = None if _uses(shift, state.view) else _match_inner(inner, state)
            if found is not None:
                return (found[0], op1), found[1], shift
    raise RewriteRefused(f"{state.view.tensor.name} does not become (a op0 {state.view.tensor.name}) op1 b")


def _match_inner(inner: Expression, state: Leaf) -> tuple[str, Expression] | None:
    """The operator that takes the state, and its other operand."""
    match inner:
        case Leaf(view=state.view):
            return "multiply", 1.0
        case Apply(op0, (scale, Leaf(view=state.view))) | Apply(op0, (Leaf(view=state.view), scale)) if (
            op0 in COMMUTATIVE_OPERATORS and not _uses(scale, state.view)
        ):
            return op0, scale
    return None


def _uses(value: Expression, view: TensorView) -> bool:
    return any(leaf.view == view for leaf in _iterate_leaves(value))


def _as_linear(value: Expression, state: TensorView) -> tuple[Expression, Expression] | None:
    """The factor of the state and the rest of a value that is linear in it; None if it is not linear."""
    if not _uses(value, state):
        return 0.0, value
    match value:
        case Leaf():
            return 1.0, 0.0
        case Apply("copy", (inner,)):
            return _as_linear(inner, state)
        case Apply("add" | "subtract" as name, (first, second)):
            one, other = _as_linear(first, state), _as_linear(second, state)
            if one is None or other is None:
                return None
            return _combine(name, one[0], other[0]), _combine(name, one[1], other[1])
        case Apply("multiply", (first, second)):
            factor, inner = (second, first) if _uses(first, state) else (first, second)
            found = None if _uses(factor, state) else _as_linear(inner, state)
            if found is None:
                return None
            return _combine("multiply", found[0], factor), _combine("multiply", found[1], factor)
    return None


def _combine(name: str, first: Expression, second: Expression) -> Expression:
    """An operator's result, simplified where an operand is 0 or 1."""
    if isinstance(first, float) and isinstance(second, float):
        return {"add": first + second, "subtract": first - second, "multiply": first * second}[name]
    match name, first, second:
        case ("multiply", 0.0, _) | ("multiply", _, 0.0):
            return 0.0
        case ("add", 0.0, other) | ("multiply", 1.0, other):
            return other
        case ("add" | "subtract", other, 0.0) | ("multiply", other, 1.0):
            return other
        case ("add", Apply("subtract", (0.0, inner)), other) | (
            "add",
            other,
            Apply("subtract", (0.0, inner)),
        ):
            return _combine("subtract", other, inner)
        case ("add" | "subtract", one, Apply("multiply", (a, b))) if one in {a, b}:
            return Apply("multiply", (Apply(name, (1.0, b if one == a else a)), one))
        case ("multiply", Apply("subtract", (0.0, inner)), other):
            return Apply("subtract", (0.0, Apply("multiply", (inner, other))))
    return Apply(name, (first, second))


def _check_recurrence(loop: Loop, found: Recurrence) -> None:
    state = found.state.view
    if not state.tensor.is_on_chip:
        raise RewriteRefused(f"{state.tensor.name} is carried from step to step in HBM")
    if found.result is None and state.box[0].size != state.tensor.shape[0]:
        raise RewriteRefused(f"{state.tensor.name} is carried in some of its partitions only")
    if found.moved is None and loop.id in state.loops:
        raise RewriteRefused(f"{state.tensor.name} is not one column")
    written = {goal.view.tensor.id for goal, _ in found.others}
    if found.result is not None:
        written.add(found.result.view.tensor.id)
    for goal, value in found.others:
        for leaf in _iterate_leaves(value):
            if leaf != found.steps and (leaf.view == state or leaf.view.tensor.id in written):
                raise RewriteRefused(f"{goal.view.tensor.name} holds something else than the steps")
    leaves = [*_iterate_leaves(found.scale), *_iterate_leaves(found.shift)]
    leaves += [leaf for _, value in found.others for leaf in _iterate_leaves(value) if leaf != found.steps]
    goals = [goal for goal, _ in found.others] + ([found.result] if found.result is not None else [])
    for leaf in (*leaves, *goals):
        if loop.id in leaf.view.loops or leaf in goals:
            _check_row(leaf, loop)


def _check_row(leaf: Leaf, loop: Loop) -> None:
    view = leaf.view
    if find_walked_dimension(view, loop) != len(view.tensor.shape) - 1:
        raise RewriteRefused(
            f"iterations over {loop.var} do not take neighbouring columns of {view.tensor.name}"
        )


# -- rows of all steps -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """What an expression is for all steps: a number, a column that every step shares, or a row of columns."""

    kind: Literal["number", "column", "row"]
    text: str


@dataclass(eq=False)
class RowWriter:
    """Writes instructions that compute expressions of columns for all iterations of a loop at once.

    `steps` is the source of the row that stands for the recurrence's own steps.
    """

    kernel: Kernel
    loop: Loop
    partitions: str
    base: str
    lines: list[cst.BaseStatement] = field(default_factory=list)
    steps: Row | None = None
    _names: set[str] = field(default_factory=set)
    _loaded: dict[TensorView, Row] = field(default_factory=dict)

    def write_tile(self, value: Expression) -> str:
        """Write what computes an expression; return the source of a row with its values."""
        found = self._write(value, "")
        if found.kind == "row":
            return found.text
        goal = self.declare_row()
        filling = found.text if found.kind == "number" else "1.0"
        self._add_call("memset", {"dst": goal, "value": filling})
        if found.kind == "column":
            words = {"dst": goal, "data": goal, "op0": f"{self.kernel.nl}.multiply", "operand0": found.text}
            self._add_call("tensor_scalar", words)
        return goal

    def store(self, value: Expression, goal: str) -> None:
        """Write what computes an expression, and its transfer to a row in HBM."""
        self._add_call("dma_copy", {"dst": goal, "src": self.write_tile(value)})

    def write_into(self, value: Expression, goal: str) -> None:
        """Write what computes an expression into a row on chip."""
        found = self._write(value, goal)
        if found.text == goal:
            return
        if found.kind == "row":
            self._add_call("tensor_copy", {"dst": goal, "src": found.text})
        elif found.kind == "number":
            self._add_call("memset", {"dst": goal, "value": found.text})
        else:
            raise RewriteRefused(f"{goal} holds the same column in each step")

    def declare_row(self) -> str:
        """Declare a tile with a column for each step."""
        return self._declare(self.loop.count_text)

    def _declare(self, columns: str) -> str:
        name, count = self.base, 2
        while name in self.kernel.identifiers or name in self._names:
            name, count = f"{self.base}_{count}", count + 1
        self._names.add(name)
        nl = self.kernel.nl
        shape = f"({self.partitions}, {columns})"
        self.lines.append(
            syntax.parse_statement(f"{name} = {nl}.ndarray({shape}, dtype={nl}.float32, buffer={nl}.sbuf)")
        )
        return name

    def row_text(self, leaf: Leaf) -> str:
        """The source of the columns of all iterations."""
        base, parts = split_subscript(self.kernel, leaf)
        window = widen_window(leaf.view, len(parts) - 1, self.loop, parts[-1].lower, full_span(self.loop))
        return subscript_text(base, parts[:-1], window)

    def _add_call(self, name: str, words: Mapping[str, str]) -> None:
        self.lines.append(syntax.make_call(f"{self.kernel.nisa}.{name}", words))

    def _write(self, value: Expression, goal: str) -> Row:
        """Write an expression's instructions, the last of which writes `goal` if that is given."""
        match value:
            case float():
                return Row("number", repr(value))
            case Leaf():
                if self.steps is not None and value.text == _STEPS:
                    return self.steps
                return self._read(value)
            case Apply(name, (first, second)) if name in _BINARY_OPERATORS and _has_leaves(value):
                return self._write_binary(name, self._write(first, ""), self._write(second, ""), goal)
            case Apply(name, (inner,)):
                data = self._write(inner, "")
                if data.kind == "row":
                    made = goal or self.declare_row()
                    if name == "reciprocal":
                        self._add_call(name, {"dst": made, "data": data.text})
                    else:
                        words = {"dst": made, "op": f"{self.kernel.nl}.{name}", "data": data.text}
                        self._add_call("activation", words)
                    return Row("row", made)
        raise RewriteRefused("a step is computed in a way that has no counterpart for all steps at once")

    def _read(self, leaf: Leaf) -> Row:
        """A row or a column on chip, after its transfer if it is in HBM."""
        walks = self.loop.id in leaf.view.loops
        found = Row("row", self.row_text(leaf)) if walks else Row("column", leaf.text)
        if leaf.view.tensor.is_on_chip:
            return found
        if leaf.view not in self._loaded:
            made = self.declare_row() if walks else self._declare("1")
            self._add_call("dma_copy", {"dst": made, "src": found.text})
            self._loaded[leaf.view] = Row(found.kind, made)
        return self._loaded[leaf.view]

    def _write_binary(self, name: str, first: Row, second: Row, goal: str) -> Row:
        kinds = {first.kind, second.kind}
        kind: Literal["column", "row"] = "row" if "row" in kinds else "column"
        made = (goal or self.declare_row()) if kind == "row" else self._declare("1")
        op = f"{self.kernel.nl}.{name}"
        if len(kinds) == 1:
            self._add_call(
                "tensor_tensor", {"dst": made, "data1": first.text, "data2": second.text, "op": op}
            )
            return Row(kind, made)
        data, other = (first, second) if first.kind == kind else (second, first)
        words = {"dst": made, "data": data.text, "op0": op, "operand0": other.text}
        if data is second and name == "subtract":
            words["reverse0"] = "True"
        self._add_call("tensor_scalar", words)
        return Row(kind, made)


def row_partitions(kernel: Kernel, view: TensorView) -> str:
    """The source of the number of partitions of a column."""
    if view.box[0].size != view.tensor.shape[0]:
        return str(view.box[0].size)
    return shape_texts(kernel, kernel.declarations[view.tensor.id])[0]


def split_subscript(kernel: Kernel, leaf: Leaf) -> tuple[str, list[SourceWindow]]:
    """The tensor's name and the windows of a column's source."""
    return base_name(leaf.text), parse_windows(kernel, leaf.text, len(leaf.view.tensor.shape))


def subscript_text(base: str, front: Sequence[SourceWindow], columns: str) -> str:
    """The source of some columns."""
    words = [*(part.text for part in front), columns]
    return base if set(words) == {":"} else f"{base}[{', '.join(words)}]"


def last_step_text(kernel: Kernel, loop: Loop, result: Leaf) -> str:
    """The source of the last column that a loop writes."""
    base, parts = split_subscript(kernel, result)
    ends = (substitute_name(parts[-1].lower, loop.var, text) for text in (f"{loop.stop} - 1", loop.stop))
    return subscript_text(base, parts[:-1], " : ".join(ends))


def text_at(text: str, loop: Loop, *, last: bool = False) -> str:
    """The source of a column in a loop's first or last iteration."""
    place = f"{loop.stop} - 1" if last else loop.first
    return substitute_names(text, {loop.var: place})
