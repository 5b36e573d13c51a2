"""Infers the shapes of the arrays that a NumPy function returns, from its text; nothing runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from seeds.nkibench.shape_functions import (
    DTYPE_NAMES,
    UNIT_LENGTH,
    ShapeError,
    ShapeFunctions,
    Sizes,
    SymbolicArray,
    SymbolicDType,
    SymbolicNumber,
    SymbolicValue,
    require_array,
    require_integer_text,
)

_SIGNS: dict[type[ast.AST], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}


class UnsupportedSyntaxError(Exception):
    """The text does something that is not supported here; the message gives the line."""

    def __init__(self, node: ast.AST, reason: str = "") -> None:
        said = f": {reason}" if reason else ""
        super().__init__(f"line {getattr(node, 'lineno', 0)}: cannot follow `{ast.unparse(node):.80}`{said}")


def infer_returned_arrays(
    function: ast.FunctionDef,
    arguments: Sequence[SymbolicValue],
    sizes: Sizes,
    constants: Mapping[str, float] = MappingProxyType({}),
) -> list[SymbolicArray]:
    """Return the arrays that `function` returns when called with `arguments`.

    Dimensions and other constants are global names.

    Raises:
        UnsupportedSyntaxError: it does something that is not supported here.
    """
    names: dict[str, SymbolicValue] = {
        name: SymbolicNumber(f"{value}" if type(value) is int else None) for name, value in constants.items()
    }
    names.update((name, SymbolicNumber(name)) for name in sizes[0])
    names.update(zip([item.arg for item in function.args.args], arguments, strict=False))
    found = _ShapeInterpreter(names, ShapeFunctions(sizes)).follow_block(function.body)
    arrays = found if isinstance(found, tuple) else (found,)
    if found is None or not all(isinstance(item, SymbolicArray) for item in arrays):
        raise UnsupportedSyntaxError(function, "it returns something that is no array")
    return [require_array(item) for item in arrays if item is not None]


def is_numpy(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"np", "numpy"}


class _ShapeInterpreter:
    """Walks statements and keeps the values of names."""

    def __init__(self, names: dict[str, SymbolicValue], shapes: ShapeFunctions) -> None:
        self._names = names
        self._shapes = shapes

    def follow_block(self, body: Sequence[ast.stmt]) -> SymbolicValue | None:
        """Follow the statements; return the returned value, if any."""
        for node in body:
            match node:
                case ast.Return(value=ast.expr() as value):
                    return self.infer_value(value)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._bind_target(target, self.infer_value(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._bind_target(target, self.infer_value(value))
                case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                    read = ast.copy_location(ast.Name(name, ast.Load()), target)
                    self._bind_target(
                        target, self.infer_value(ast.copy_location(ast.BinOp(read, op, value), node))
                    )
                case ast.For(target=ast.Name(id=name), body=inside, orelse=[]):
                    self._names[name] = SymbolicNumber()
                    if self.follow_block(inside) is not None:
                        raise UnsupportedSyntaxError(node, "it returns from a loop")
                case ast.AugAssign(target=ast.Subscript()) | ast.Expr(value=ast.Constant()) | ast.Pass():
                    pass
                case _:
                    raise UnsupportedSyntaxError(node)
        return None

    def _bind_target(self, target: ast.expr, value: SymbolicValue) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
            for part, item in zip(target.elts, value, strict=True):
                self._bind_target(part, item)
        elif not isinstance(target, ast.Subscript):  # assigning elements does not change the shape
            raise UnsupportedSyntaxError(target)

    def infer_value(self, node: ast.expr) -> SymbolicValue:
        try:
            return self._infer_expression(node)
        except ShapeError as error:
            raise UnsupportedSyntaxError(node, str(error)) from error

    def _infer_expression(self, node: ast.expr) -> SymbolicValue:
        match node:
            case ast.Constant(value=value):
                return SymbolicNumber(str(int(value)) if isinstance(value, bool | int) else None)
            case ast.Name(id=name) if name in self._names:
                return self._names[name]
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return tuple(self.infer_value(item) for item in items)
            case ast.BinOp(left=left, op=op, right=right):
                return self._infer_binary(self.infer_value(left), op, self.infer_value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return self._infer_binary(SymbolicNumber("0"), op, self.infer_value(operand))
            case ast.Compare(left=left, comparators=others):
                return self._shapes.broadcast([self.infer_value(item) for item in (left, *others)])
            case ast.IfExp(body=body, orelse=other):
                return self._shapes.broadcast([self.infer_value(body), self.infer_value(other)])
            case ast.Attribute(value=owner, attr=name):
                if is_numpy(owner):
                    return SymbolicDType(name) if name in DTYPE_NAMES else SymbolicNumber()
                return self._infer_attribute(self.infer_value(owner), name)
            case ast.Subscript(value=inner, slice=index):
                return self._infer_subscript(self.infer_value(inner), index)
            case ast.Call():
                return self._infer_call(node)
        raise UnsupportedSyntaxError(node)

    def _infer_binary(self, left: SymbolicValue, op: ast.AST, right: SymbolicValue) -> SymbolicValue:
        """Return the result of arithmetic; a number's sign counts as an operation on zero."""
        if isinstance(op, ast.MatMult):
            return self._shapes.matmul(left, right)
        sign = "-" if isinstance(op, ast.USub) else _SIGNS.get(type(op))
        if (
            isinstance(left, SymbolicNumber)
            and isinstance(right, SymbolicNumber)
            and sign
            and left.text
            and right.text
        ):
            return SymbolicNumber(f"({left.text} {sign} {right.text})")
        return self._shapes.broadcast([left, right])

    def _infer_attribute(self, value: SymbolicValue, name: str) -> SymbolicValue:
        found = require_array(value)
        match name:
            case "T":
                return SymbolicArray(found.axes[::-1], found.dtype)
            case "shape":
                return tuple(SymbolicNumber(axis) for axis in found.axes)
            case "dtype":
                return SymbolicDType(found.dtype)
        raise ShapeError("an unknown attribute")

    def _infer_call(self, node: ast.Call) -> SymbolicValue:
        options = {item.arg: self.infer_value(item.value) for item in node.keywords if item.arg}
        given = [self.infer_value(item) for item in node.args]
        match node.func:
            case ast.Attribute(value=owner, attr=name) if is_numpy(owner):
                return self._shapes.call_function(name, given, options)
            case ast.Attribute(value=owner, attr="transpose" | "reshape" as name) if len(given) > 1:
                return self._shapes.call_function(name, [self.infer_value(owner), tuple(given)], options)
            case ast.Attribute(value=owner, attr=name):
                return self._shapes.call_function(name, [self.infer_value(owner), *given], options)
            case ast.Name(id="float"):
                return SymbolicNumber()
            case ast.Name(id="int") if len(given) == 1:
                return given[0]
            case ast.Name(id="len") if len(given) == 1:
                return SymbolicNumber(require_array(given[0]).axes[0])
        raise ShapeError("an unknown function")

    # -- indices -----------------------------------------------------------------------------------

    def _infer_subscript(self, value: SymbolicValue, index: ast.expr) -> SymbolicValue:
        keys = list(index.elts) if isinstance(index, ast.Tuple) else [index]
        if isinstance(value, tuple):
            items = dict(zip([str(at) for at in range(len(value))], value, strict=True))
            items.update({f"(0 - {len(value) - at})": item for at, item in enumerate(value)})
            place = require_integer_text(self.infer_value(keys[0]))
            if place not in items:
                raise ShapeError("not one of its entries")
            found: SymbolicValue = items[place]
            return found
        axes = list(require_array(value).axes)
        new = [_is_new_axis(key) for key in keys]
        rest = next((at for at, key in enumerate(keys) if _is_ellipsis(key)), len(keys))
        used = len(keys) - sum(new) - (rest < len(keys))
        if used > len(axes):
            raise ShapeError(f"{used} indices of {len(axes)} axes")
        keys[rest : rest + 1] = [ast.Slice()] * (len(axes) - used)
        return SymbolicArray(
            tuple(part for key in keys for part in self._indexed_axes(key, axes)), require_array(value).dtype
        )

    def _indexed_axes(self, key: ast.expr, axes: list[str]) -> list[str]:
        """Return the axes that one index leaves of the next remaining axis."""
        if _is_new_axis(key):
            return [UNIT_LENGTH]
        axis = axes.pop(0)
        if not isinstance(key, ast.Slice):
            if isinstance(self.infer_value(key), SymbolicNumber):
                return []
            raise ShapeError("an index that is no number")
        if key.step is not None:
            raise ShapeError("a step")
        low = "0" if key.lower is None else self._slice_bound(key.lower, axis)
        high = axis if key.upper is None else self._slice_bound(key.upper, axis)
        return [high if low == "0" else f"({high} - {low})"]

    def _slice_bound(self, node: ast.expr, axis: str) -> str:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return f"({axis} - {require_integer_text(self.infer_value(node.operand))})"
        return require_integer_text(self.infer_value(node))


def _is_new_axis(key: ast.expr) -> bool:
    none = isinstance(key, ast.Constant) and key.value is None
    return none or (isinstance(key, ast.Attribute) and key.attr == "newaxis")


def _is_ellipsis(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and key.value is ...
