"""The arrays that a NumPy function returns, by their shapes, read off its text: nothing of it runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from seeds.nkibench.shapes import (
    ONE,
    TYPES,
    Array,
    DType,
    Number,
    ShapeError,
    Shapes,
    Sizes,
    Value,
    array,
    text,
)

_SIGNS: dict[type[ast.AST], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}


class UnfollowedError(Exception):
    """What the text does that is not followed here, with its line."""

    def __init__(self, node: ast.AST, reason: str = "") -> None:
        said = f": {reason}" if reason else ""
        super().__init__(f"line {getattr(node, 'lineno', 0)}: cannot follow `{ast.unparse(node):.80}`{said}")


def returned(
    function: ast.FunctionDef,
    arguments: Sequence[Value],
    sizes: Sizes,
    constants: Mapping[str, float] = MappingProxyType({}),
) -> list[Array]:
    """Return the arrays that `function` returns when called with `arguments`.

    Dimensions and other constants are global names.

    Raises:
        UnfollowedError: it does something that is not followed here.
    """
    names: dict[str, Value] = {
        name: Number(f"{value}" if type(value) is int else None) for name, value in constants.items()
    }
    names.update((name, Number(name)) for name in sizes[0])
    names.update(zip([item.arg for item in function.args.args], arguments, strict=False))
    found = _Follower(names, Shapes(sizes)).block(function.body)
    arrays = found if isinstance(found, tuple) else (found,)
    if found is None or not all(isinstance(item, Array) for item in arrays):
        raise UnfollowedError(function, "it returns something that is no array")
    return [array(item) for item in arrays if item is not None]


def is_numpy(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"np", "numpy"}


class _Follower:
    """Walks statements with what their names stand for."""

    def __init__(self, names: dict[str, Value], shapes: Shapes) -> None:
        self._names = names
        self._shapes = shapes

    def block(self, body: Sequence[ast.stmt]) -> Value | None:
        """Follow statements; what is returned, if something is."""
        for node in body:
            match node:
                case ast.Return(value=ast.expr() as value):
                    return self.value(value)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._bind(target, self.value(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._bind(target, self.value(value))
                case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                    read = ast.copy_location(ast.Name(name, ast.Load()), target)
                    self._bind(target, self.value(ast.copy_location(ast.BinOp(read, op, value), node)))
                case ast.For(target=ast.Name(id=name), body=inside, orelse=[]):
                    self._names[name] = Number()
                    if self.block(inside) is not None:
                        raise UnfollowedError(node, "it returns from a loop")
                case ast.AugAssign(target=ast.Subscript()) | ast.Expr(value=ast.Constant()) | ast.Pass():
                    pass
                case _:
                    raise UnfollowedError(node)
        return None

    def _bind(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
            for part, item in zip(target.elts, value, strict=True):
                self._bind(part, item)
        elif not isinstance(target, ast.Subscript):  # there elements change, the shape stays
            raise UnfollowedError(target)

    def value(self, node: ast.expr) -> Value:
        try:
            return self._value(node)
        except ShapeError as error:
            raise UnfollowedError(node, str(error)) from error

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=value):
                return Number(str(int(value)) if isinstance(value, bool | int) else None)
            case ast.Name(id=name) if name in self._names:
                return self._names[name]
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return tuple(self.value(item) for item in items)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(self.value(left), op, self.value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return self._binary(Number("0"), op, self.value(operand))
            case ast.Compare(left=left, comparators=others):
                return self._shapes.broadcast([self.value(item) for item in (left, *others)])
            case ast.IfExp(body=body, orelse=other):
                return self._shapes.broadcast([self.value(body), self.value(other)])
            case ast.Attribute(value=owner, attr=name):
                if is_numpy(owner):
                    return DType(name) if name in TYPES else Number()
                return self._attribute(self.value(owner), name)
            case ast.Subscript(value=inner, slice=index):
                return self._indexed(self.value(inner), index)
            case ast.Call():
                return self._call(node)
        raise UnfollowedError(node)

    def _binary(self, left: Value, op: ast.AST, right: Value) -> Value:
        """Arithmetic; the sign of a number is what it is to zero."""
        if isinstance(op, ast.MatMult):
            return self._shapes.matmul(left, right)
        sign = "-" if isinstance(op, ast.USub) else _SIGNS.get(type(op))
        if isinstance(left, Number) and isinstance(right, Number) and sign and left.text and right.text:
            return Number(f"({left.text} {sign} {right.text})")
        return self._shapes.broadcast([left, right])

    def _attribute(self, value: Value, name: str) -> Value:
        found = array(value)
        match name:
            case "T":
                return Array(found.axes[::-1], found.dtype)
            case "shape":
                return tuple(Number(axis) for axis in found.axes)
            case "dtype":
                return DType(found.dtype)
        raise ShapeError("an unknown attribute")

    def _call(self, node: ast.Call) -> Value:
        options = {item.arg: self.value(item.value) for item in node.keywords if item.arg}
        given = [self.value(item) for item in node.args]
        match node.func:
            case ast.Attribute(value=owner, attr=name) if is_numpy(owner):
                return self._shapes.call(name, given, options)
            case ast.Attribute(value=owner, attr="transpose" | "reshape" as name) if len(given) > 1:
                return self._shapes.call(name, [self.value(owner), tuple(given)], options)
            case ast.Attribute(value=owner, attr=name):
                return self._shapes.call(name, [self.value(owner), *given], options)
            case ast.Name(id="float"):
                return Number()
            case ast.Name(id="int") if len(given) == 1:
                return given[0]
            case ast.Name(id="len") if len(given) == 1:
                return Number(array(given[0]).axes[0])
        raise ShapeError("an unknown function")

    # -- indices -----------------------------------------------------------------------------------

    def _indexed(self, value: Value, index: ast.expr) -> Value:
        keys = list(index.elts) if isinstance(index, ast.Tuple) else [index]
        if isinstance(value, tuple):
            items = dict(zip([str(at) for at in range(len(value))], value, strict=True))
            items.update({f"(0 - {len(value) - at})": item for at, item in enumerate(value)})
            place = text(self.value(keys[0]))
            if place not in items:
                raise ShapeError("not one of its entries")
            found: Value = items[place]
            return found
        axes = list(array(value).axes)
        new = [_is_new(key) for key in keys]
        rest = next((at for at, key in enumerate(keys) if _is_rest(key)), len(keys))
        used = len(keys) - sum(new) - (rest < len(keys))
        if used > len(axes):
            raise ShapeError(f"{used} indices of {len(axes)} axes")
        keys[rest : rest + 1] = [ast.Slice()] * (len(axes) - used)
        return Array(tuple(part for key in keys for part in self._picked(key, axes)), array(value).dtype)

    def _picked(self, key: ast.expr, axes: list[str]) -> list[str]:
        """The axes that one index leaves of the next one that is still to come."""
        if _is_new(key):
            return [ONE]
        axis = axes.pop(0)
        if not isinstance(key, ast.Slice):
            if isinstance(self.value(key), Number):
                return []
            raise ShapeError("an index that is no number")
        if key.step is not None:
            raise ShapeError("a step")
        low = "0" if key.lower is None else self._bound(key.lower, axis)
        high = axis if key.upper is None else self._bound(key.upper, axis)
        return [high if low == "0" else f"({high} - {low})"]

    def _bound(self, node: ast.expr, axis: str) -> str:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return f"({axis} - {text(self.value(node.operand))})"
        return text(self.value(node))


def _is_new(key: ast.expr) -> bool:
    none = isinstance(key, ast.Constant) and key.value is None
    return none or (isinstance(key, ast.Attribute) and key.attr == "newaxis")


def _is_rest(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and key.value is ...
