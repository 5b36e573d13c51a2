"""The source of windows into tensors: where one begins, and the window of several iterations of a loop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Loop
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, Tensor, TensorView


class IterationSpan(NamedTuple):
    """Consecutive iterations of a loop: sources of the first index and of the end, and their number."""

    first: str
    stop: str
    trips: int


class SourceWindow(NamedTuple):
    """One dimension of a subscript: its source, the source of where it begins, whether it keeps the axis."""

    text: str
    lower: str
    kept: bool


def full_span(loop: Loop) -> IterationSpan:
    """Every iteration of a loop."""
    return IterationSpan(loop.first, loop.stop, loop.trips)


def find_walked_dimension(view: TensorView, loop: Loop) -> int | None:
    """The dimension along which consecutive iterations of a loop touch consecutive boxes."""
    walked = [i for i, item in enumerate(view.box) if item.start.coefficient(loop.id)]
    if len(walked) != 1 or loop.step != 1:
        return None
    item = view.box[walked[0]]
    close = item.step == 1 and item.start.coefficient(loop.id) == item.size
    return walked[0] if close else None


def covering_loops(view: TensorView, loops: Sequence[Loop]) -> frozenset[str] | None:
    """The loops of a nest, by id, over whose iterations a window covers all of a tensor exactly once.

    Along every dimension the loops that walk it count like the digits of a number, and their windows touch.
    None if they leave something out or visit something twice.
    """
    trips = {loop.id: loop.trips for loop in loops}
    for window, count in zip(view.box, view.tensor.shape, strict=True):
        reach = window.size
        for name, step in sorted(window.start.terms, key=lambda term: term[1]):
            if name not in trips or step != reach:
                return None
            reach *= trips.pop(name)
        if window.step != 1 or window.start.const or reach != count:
            return None
    return frozenset(loop.id for loop in loops) - trips.keys()


def parse_windows(kernel: Kernel, text: str, rank: int) -> list[SourceWindow]:
    """The windows of a subscripted tensor, dimension by dimension.

    Raises:
        RewriteRefused: the source does not index every dimension of a name.
    """
    node = syntax.parse_expression(text)
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Name) or len(node.slice) != rank:
        raise RewriteRefused(f"{text} is not indexed in every dimension")
    return [_parse_window(kernel, part.slice) for part in node.slice]


def split_windows(kernel: Kernel, text: str, tensor: Tensor) -> tuple[str, list[SourceWindow]]:
    """The source of a tensor, or of a tile of a list, and its windows, dimension by dimension.

    Raises:
        RewriteRefused: the source does not index every dimension of it.
    """
    node = syntax.parse_expression(text)
    base = node.value if isinstance(node, cst.Subscript) and len(node.slice) == len(tensor.shape) else None
    name = base
    for _ in tensor.copies:
        name = name.value if isinstance(name, cst.Subscript) else None
    if base is None or not isinstance(node, cst.Subscript) or not isinstance(name, cst.Name):
        raise RewriteRefused(f"{text} is not indexed in every dimension")
    return kernel.module.code_for_node(base), [_parse_window(kernel, part.slice) for part in node.slice]


def base_name(text: str) -> str:
    """The name of the tensor of a window.

    Raises:
        RewriteRefused: the source does not index a name.
    """
    node = syntax.parse_expression(text)
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Name):
        raise RewriteRefused(f"{text} does not index a tensor by its name")
    return node.value.value


def _parse_window(kernel: Kernel, part: cst.BaseSlice) -> SourceWindow:
    code = kernel.module.code_for_node
    if isinstance(part, cst.Slice):
        return SourceWindow(code(part), code(part.lower) if part.lower else "0", kept=True)
    assert isinstance(part, cst.Index)
    value = part.value
    if isinstance(value, cst.Call) and value.args:
        return SourceWindow(code(value), code(value.args[0].value), kept=True)
    return SourceWindow(code(value), code(value), kept=False)


def widen_window(view: TensorView, dim: int, loop: Loop, lower: str, span: IterationSpan) -> str:
    """The window over a span of iterations: from the lower bound of the first to that of the end."""
    item = view.box[dim]
    first = item.start - Affine(0, ((loop.id, item.size),))
    if first == Affine(0) and item.size * span.trips == view.tensor.shape[dim]:
        return ":"
    start = (
        "0"
        if first == Affine(0) and span.first == loop.first
        else substitute_name(lower, loop.var, span.first)
    )
    return f"{start} : {substitute_name(lower, loop.var, span.stop)}"


def substitute_name(text: str, name: str, value: str) -> str:
    """An expression with a value in place of a name, in parentheses if needed."""
    inner = syntax.parse_expression(value)
    product = isinstance(inner, cst.BinaryOperation) and isinstance(inner.operator, cst.Multiply)
    if product and re.fullmatch(rf"{name}( \* \w+)?", text):
        return re.sub(rf"^{name}\b", value, text)
    simple = isinstance(inner, cst.Name | cst.Integer)
    new = inner if simple else inner.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    wrapped = syntax.reindex_tensor(syntax.parse_statement(text), name, lambda _: new)
    code = cst.Module([wrapped]).code.strip()  # type: ignore[list-item]
    return code[1:-1] if not simple and text == name else code
