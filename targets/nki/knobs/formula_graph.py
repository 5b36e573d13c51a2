"""Writes the graph of a reference's formula, where the operators of the knob surface can express it.

The formula is an `ArrayExpression`, as the judge follows a reference. Each result becomes a symbol of
`tracing.py` with the positions of its axes in the formula's array, counted from the end: rows lie on
(-2, -1), a column on (-2,), a row on (-1,). Views only move axes, and a transposition is written where an
operator needs it. Whatever does not fit is refused; knobs are then not searched for that problem. The judge
compares every kernel with the reference, so nothing here is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from remote.judge.identity.expression import (
    ArrayExpression,
    ExpressionNode,
    InvalidExpressionError,
    load_expression,
    strides_of,
)
from targets.nki.knobs import ops
from targets.nki.knobs.errors import WorkloadError
from targets.nki.knobs.functions import ACTIVATIONS, BINARY, REDUCTIONS
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.tracing import Specs, Symbol, build_graph, input_symbol, name_symbols
from targets.nki.translation.activations import ActivationFinder
from targets.nki.translation.known import KnownArrays

_ROWS, _COLUMN, _ROW = (-2, -1), (-2,), (-1,)
_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
_OTHER_NAMES = {"absolute": "abs", "fabs": "abs"}
_MOST_NODES = 512


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A symbol, and where each of its axes lies in the formula's array, counted from the end."""

    symbol: Symbol
    axes: tuple[int, ...]

    @property
    def core(self) -> tuple[int, ...]:
        """The positions of the axes that operators see."""
        return self.axes[self.symbol.lead :]

    def with_symbol(self, symbol: Symbol, core: tuple[int, ...]) -> _Tensor:
        """Another symbol in the same batch."""
        return _Tensor(symbol, (*self.axes[: self.symbol.lead], *core))


_Result = _Tensor | float


def graph_of_formula(formula: bytes, specs: Specs, *, name: str, target: str) -> Graph:
    """Return the graph that computes a formula of these inputs, in their order.

    Raises:
        WorkloadError: the operators cannot express it; the message names what they lack.
    """
    try:
        expression = load_expression(formula, [shape for shape, _ in specs.values()])
    except InvalidExpressionError as error:
        raise WorkloadError(str(error)) from error
    if len(expression.outputs) != 1:
        raise WorkloadError(f"there are {len(expression.outputs)} outputs; a graph has one")
    if len(expression.nodes) > _MOST_NODES:
        raise WorkloadError(f"the formula has {len(expression.nodes)} operations, too many for operators")
    inputs = {key: input_symbol(*spec) for key, spec in specs.items()}
    result = _GraphWriter(expression, [*inputs.values()]).write_output()
    return build_graph(name, target, inputs, result, name_symbols(inputs, result, {"out": result}))


class _GraphWriter:
    """Writes each operation of a formula once, from the output back to the inputs."""

    def __init__(self, expression: ArrayExpression, inputs: list[Symbol]) -> None:
        self._expression = expression
        self._inputs = inputs
        self._known = KnownArrays(expression)
        self._activations = ActivationFinder(expression, self._known)
        self._done: dict[int, _Result] = {}

    def write_output(self) -> Symbol:
        number = self._expression.outputs[0]
        found = self._tensor(number)
        shape = self._expression.nodes[number].shape
        turned = _as_rows(found) if len(found.core) == 2 else found
        if turned.symbol.shape != shape or turned.symbol.entry is None:
            raise WorkloadError(f"the result has the shape {shape}, which no operator gives")
        return turned.symbol

    def _result(self, number: int) -> _Result:
        if number not in self._done:
            self._done[number] = self._write(number, self._expression.nodes[number])
        return self._done[number]

    def _tensor(self, number: int) -> _Tensor:
        found = self._result(number)
        if isinstance(found, float):
            raise WorkloadError("a number stands where operators take a tensor")
        return found

    def _write(self, number: int, node: ExpressionNode) -> _Result:
        if self._known.is_known(number):
            return self._write_number(number)
        activation = self._activations.find(number)
        if activation is not None and activation.function in ACTIVATIONS:
            data = self._tensor(activation.source)
            made = _activate(activation.function, data, scale=activation.scale)
            return _with_number("multiply", made, activation.factor)
        if node.kind not in _WRITERS:
            raise WorkloadError(f"no operator computes {node.kind}")
        return _WRITERS[node.kind](self, node)

    def _write_number(self, number: int) -> float:
        array = self._known.array(number)
        first = float(array.reshape(-1)[0])
        if not bool((array == first).all()):
            raise WorkloadError(f"a constant of the shape {array.shape} is no number")
        return first

    def write_input(self, node: ExpressionNode) -> _Tensor:
        symbol = self._inputs[node.params[0]]
        if min(symbol.shape) == 1:
            raise WorkloadError(
                f"an input has the shape {symbol.shape}; operators take no axis of one element"
            )
        return _Tensor(symbol, tuple(range(-len(symbol.shape), 0)))

    def write_view(self, node: ExpressionNode) -> _Tensor:
        """Move axes; nothing is cut, merged or split."""
        source = self._tensor(node.args[0])
        shape, strides, offset = node.params
        before = strides_of(self._expression.nodes[node.args[0]].shape)
        axes = []
        for size, at in zip(source.symbol.shape, source.axes, strict=True):
            places = [
                place - len(shape)
                for place, (own, stride) in enumerate(zip(shape, strides, strict=True))
                if own == size and stride == before[at]
            ]
            if len(places) != 1:
                raise WorkloadError(f"no operator gives the part {shape} of an array")
            axes += places
        others = [at for at in range(-len(shape), 0) if at not in axes]
        if offset or any(shape[at] > 1 and strides[at] for at in others):
            raise WorkloadError(f"no operator gives the part {shape} of an array")
        return _Tensor(source.symbol, tuple(axes))

    def write_unary(self, node: ExpressionNode) -> _Tensor:
        name = _OTHER_NAMES.get(node.params[0], node.params[0])
        data = self._tensor(node.args[0])
        if name == "negative":
            return _with_number("multiply", data, -1.0)
        if name not in ACTIVATIONS:
            raise WorkloadError(f"no operator computes np.{node.params[0]}")
        return _activate(name, data)

    def write_binary(self, node: ExpressionNode) -> _Result:
        (name,) = node.params
        if name in {"divide", "true_divide"}:
            return _combine("multiply", self._result(node.args[0]), self._inverse(node.args[1]))
        left, right = (self._result(at) for at in node.args)
        if name == "power" and isinstance(right, float) and right in _POWERS and isinstance(left, _Tensor):
            return _activate(_POWERS[right], left)
        if name == "multiply" and left is right and isinstance(left, _Tensor):
            return _activate("square", left)
        if name not in BINARY:
            raise WorkloadError(f"no operator computes np.{name} of these operands")
        return _combine(name, left, right)

    def _inverse(self, number: int) -> _Result:
        """One over a result; the root's inverse is one operator."""
        node = self._expression.nodes[number]
        found = self._result(number)
        if isinstance(found, float):
            return 1.0 / found if found else float("inf")
        if node.kind == "unary" and node.params[0] == "sqrt":
            return _activate("rsqrt", self._tensor(node.args[0]))
        return found.with_symbol(ops.NKIReciprocal()(data=found.symbol), found.core)

    def write_reduce(self, node: ExpressionNode) -> _Tensor:
        name, *axes = node.params
        data = _as_rows(self._tensor(node.args[0]))
        if name not in REDUCTIONS or axes != [len(node.shape) - 1] or data.core != _ROWS:
            raise WorkloadError(f"no operator folds the axes {axes} of {len(node.shape)} by np.{name}")
        entry = data.symbol.entry
        squares = entry is not None and data.symbol.settings.get("op") == "square"
        if name == "add" and squares:  # one instruction squares and adds
            of = data.symbol.operands["data"]
            return data.with_symbol(ops.NKIActivationReduce(op="square", reduce_op="add")(data=of), _COLUMN)
        return data.with_symbol(ops.NKITensorReduce(op=name)(data=data.symbol), _COLUMN)

    def write_matmul(self, node: ExpressionNode) -> _Tensor:
        left, right = (self._tensor(at) for at in node.args)
        if len(left.core) != 2 or len(right.core) != 2:
            raise WorkloadError("no operator multiplies a matrix and a vector")
        moving = _as_rows(right)
        stationary = _turn(_as_rows(left)) if left.core == _ROWS else left
        made: Symbol = ops.NKIMatmul()(stationary=stationary.symbol, moving=moving.symbol)
        longer = max((left, right), key=lambda item: item.symbol.lead)
        return longer.with_symbol(made, _ROWS)


_WRITERS: Mapping[str, Callable[[_GraphWriter, ExpressionNode], _Result]] = {
    "input": _GraphWriter.write_input,
    "view": _GraphWriter.write_view,
    "unary": _GraphWriter.write_unary,
    "binary": _GraphWriter.write_binary,
    "reduce": _GraphWriter.write_reduce,
    "matmul": _GraphWriter.write_matmul,
}


def _turn(data: _Tensor) -> _Tensor:
    return data.with_symbol(ops.NKITranspose()(data=data.symbol), data.core[::-1])


def _as_rows(data: _Tensor) -> _Tensor:
    """The same numbers with rows on the partitions."""
    return _turn(data) if data.core == _ROWS[::-1] else data


def _activate(name: str, data: _Tensor, *, scale: float = 1.0) -> _Tensor:
    settings: dict[str, Any] = {"op": name} | ({"scale": scale} if scale != 1.0 else {})
    return data.with_symbol(ops.NKIActivation(**settings)(data=data.symbol), data.core)


def _with_number(name: str, data: _Tensor, number: float, *, reverse: bool = False) -> _Tensor:
    if (name, number) in {("multiply", 1.0), ("add", 0.0)}:
        return data
    scalar = ops.NKITensorScalar(op0=name, reverse0=reverse)
    return data.with_symbol(scalar(data=data.symbol, operand0=number), data.core)


def _combine(name: str, left: _Result, right: _Result) -> _Result:
    """A function of two results; the smaller one is a number, a column or a row."""
    if isinstance(left, float) and isinstance(right, float):
        return float(BINARY[name](left, right))
    if isinstance(right, float) and isinstance(left, _Tensor):
        return _with_number(name, left, right)
    if isinstance(left, float) and isinstance(right, _Tensor):
        return _with_number(name, right, left, reverse=name == "subtract")
    assert isinstance(left, _Tensor)
    assert isinstance(right, _Tensor)
    one, other = (_as_rows(item) if left.core != right.core else item for item in (left, right))
    if one.core == other.core:
        found = ops.NKITensorTensor(op=name)(data1=one.symbol, data2=other.symbol)
        return one.with_symbol(found, one.core)
    if other.core == _ROWS:
        return _beside_rows(name, other, one, reverse=name == "subtract")
    return _beside_rows(name, one, other, reverse=False)


def _beside_rows(name: str, rows: _Tensor, small: _Tensor, *, reverse: bool) -> _Tensor:
    if rows.core == _ROWS and small.core == _COLUMN:
        scalar = ops.NKITensorScalar(op0=name, reverse0=reverse)
        return rows.with_symbol(scalar(data=rows.symbol, operand0=small.symbol), _ROWS)
    if rows.core == _ROWS and small.core == _ROW:
        if reverse:
            name, rows = "add", _with_number("multiply", rows, -1.0)
        return rows.with_symbol(ops.NKITensorRow(op=name)(data=rows.symbol, row=small.symbol), _ROWS)
    raise WorkloadError(f"no operator computes np.{name} of these shapes")
