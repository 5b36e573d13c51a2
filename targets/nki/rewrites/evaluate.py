"""Evaluates the expressions of a kernel abstractly: integers as affine forms, tensors as views.

Each kind of syntax has a handler, a method of its name; anything without one raises `UnreadableSyntax`.
Nothing of the kernel runs.
"""

from __future__ import annotations

import ast
from collections.abc import Set as AbstractSet
from math import prod

from nki_sim.targets import Target
from targets.nki.rewrites.values import (
    Affine,
    LibrarySymbol,
    Slice,
    Tensor,
    TensorView,
    UndecidedMinMax,
    UnreadableSyntax,
    Value,
    broadcast_view,
    index_view,
    make_affine,
    permute_view,
    pick_view,
    reshape_view,
    split_axis,
    whole_view,
)

RANGE_FUNCTIONS = frozenset({"range", "nl.affine_range", "nl.sequential_range", "nl.static_range"})
KNOWN_BUILTINS = frozenset({"range", "min", "max", "len", "int", "slice"})


class ExpressionEvaluator:
    """Evaluates in an environment of names; `trips` has the number of iterations of every loop met.

    Built-in functions in `shadowed`, which the source redefines somewhere, are unknown everywhere.
    """

    def __init__(self, target: Target, shadowed: AbstractSet[str] = frozenset()) -> None:
        self.names: dict[str, Value] = {}
        self._builtins = KNOWN_BUILTINS - shadowed
        self.trips: dict[str, int] = {}
        self.decided: dict[str, str] = {}
        """By the source of a min or max call: the source of the argument that it always returns."""
        self._tile_size = {
            "pmax": target.partitions,
            "gemm_stationary_fmax": target.matmul_stationary_max,
            "gemm_moving_fmax": target.matmul_moving_max,
            "psum_fmax": target.psum_bank_bytes // 4,
            "psum_bank_fmax": target.psum_bank_bytes // 4,
            "psum_num_banks": target.psum_banks,
        }
        self.setting = (self._builtins, tuple(self._tile_size.values()))
        """What the meaning of expressions depends on besides names."""

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression.

        Raises:
            UnreadableSyntax: the expression uses something the reader does not know.
        """
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            raise UnreadableSyntax(f"the expression `{ast.unparse(node)}`")
        found: Value = handler(node)
        return found

    def evaluate_integer(self, node: ast.expr) -> int:
        """A value that must be a known integer."""
        found = self.evaluate(node)
        if not isinstance(found, Affine) or not found.is_const:
            raise UnreadableSyntax(f"`{ast.unparse(node)}` is not a known integer")
        return found.const

    def evaluate_view(self, node: ast.expr) -> TensorView | None:
        """The tensor view that an operand denotes; None for a number or a symbol."""
        found = self.evaluate(node)
        if isinstance(found, Tensor):
            if found.copies:
                raise UnreadableSyntax(f"`{ast.unparse(node)}` is a list of tensors")
            return whole_view(found)
        return found if isinstance(found, TensorView) else None

    def evaluate_range(self, node: ast.expr) -> tuple[Affine, int, int] | None:
        """(start, step, trips) of a loop's iterable; None if it is no range of a known length."""
        if not isinstance(node, ast.Call) or node.keywords or not 1 <= len(node.args) <= 3:
            return None
        called = self.evaluate(node.func)
        if not isinstance(called, LibrarySymbol) or called.path not in RANGE_FUNCTIONS:
            return None
        values = [self.evaluate(item) for item in node.args]
        start = values[0] if len(values) > 1 else Affine(0)
        stop = values[1] if len(values) > 1 else values[0]
        step = values[2] if len(values) > 2 else Affine(1)
        if not (isinstance(start, Affine) and isinstance(stop, Affine) and isinstance(step, Affine)):
            return None
        length = stop - start
        if not (length.is_const and step.is_const and step.const > 0 and length.const > 0):
            return None
        return start, step.const, -(-length.const // step.const)

    # -- handlers --------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, bool | float | str) or node.value is None:
            return node.value
        if isinstance(node.value, int):
            return Affine(node.value)
        raise UnreadableSyntax(f"the constant {node.value!r}")

    def _name(self, node: ast.Name) -> Value:
        if node.id not in self.names:
            if node.id in self._builtins:
                return LibrarySymbol(node.id)
            raise UnreadableSyntax(f"the name `{node.id}`")
        return self.names[node.id]

    def _attribute(self, node: ast.Attribute) -> Value:
        base = self.evaluate(node.value)
        if isinstance(base, LibrarySymbol):
            return self._resolve_symbol(LibrarySymbol(f"{base.path}.{node.attr}"))
        if isinstance(base, Tensor) and not base.copies:
            base = whole_view(base)
        if isinstance(base, TensorView) and node.attr == "shape":
            return tuple(Affine(size) for size in base.shape)
        if isinstance(base, TensorView) and node.attr == "dtype":
            return LibrarySymbol(f"nl.{base.tensor.dtype}")
        raise UnreadableSyntax(f"the attribute `{ast.unparse(node)}`")

    def _resolve_symbol(self, symbol: LibrarySymbol) -> Value:
        if symbol.path.startswith("nl.tile_size.") and symbol.leaf in self._tile_size:
            return Affine(self._tile_size[symbol.leaf])
        return symbol

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        return tuple(self.evaluate(item) for item in node.elts)

    _list = _tuple

    def _slice(self, node: ast.Slice) -> Value:
        start = self.evaluate(node.lower) if node.lower else None
        stop = self.evaluate(node.upper) if node.upper else None
        step = self.evaluate_integer(node.step) if node.step else 1
        if not isinstance(start, Affine | None) or not isinstance(stop, Affine | None):
            raise UnreadableSyntax(f"the slice `{ast.unparse(node)}`")
        if stop is None:
            return Slice(start, None, step)
        length = stop - (start or Affine(0))
        if not length.is_const or length.const <= 0 or step <= 0:
            raise UnreadableSyntax(f"the slice `{ast.unparse(node)}` has no known length")
        return Slice(start, -(-length.const // step), step)

    def _subscript(self, node: ast.Subscript) -> Value:
        base, key = self.evaluate(node.value), self.evaluate(node.slice)
        if isinstance(base, tuple):
            return _tuple_item(base, key)
        if isinstance(base, Tensor):
            base = TensorView(base, (), (), ()) if base.copies else whole_view(base)
        if not isinstance(base, TensorView):
            raise UnreadableSyntax(f"the subscript `{ast.unparse(node)}`")
        if len(base.picks) < len(base.tensor.copies):
            return pick_view(base, key, self.trips)
        return index_view(base, key if isinstance(key, tuple) else (key,), self.trips)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        found = self.evaluate(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(found, Affine):
            return found.scale_by(-1)
        if isinstance(node.op, ast.USub) and isinstance(found, float):
            return -found
        raise UnreadableSyntax(f"`{ast.unparse(node)}`")

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if isinstance(left, Affine) and isinstance(right, Affine):
            found = self._affine_binary(node.op, left, right)
        else:
            found = _float_binary(node.op, left, right)
        if found is None:
            raise UnreadableSyntax(f"`{ast.unparse(node)}`")
        return found

    def _affine_binary(self, op: ast.operator, left: Affine, right: Affine) -> Value:
        match op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult() if left.is_const or right.is_const:
                return right.scale_by(left.const) if left.is_const else left.scale_by(right.const)
            case ast.FloorDiv() if right.is_const and right.const > 0:
                return self._divide(left, right.const)[0]
            case ast.Mod() if right.is_const and right.const > 0:
                return self._divide(left, right.const)[1]
            case ast.Div() if left.is_const and right.is_const and right.const:
                return left.const / right.const
        return None

    def _divide(self, value: Affine, by: int) -> tuple[Affine | None, Affine | None]:
        """Quotient and remainder, if the part that `by` does not divide stays within 0 ... by - 1."""
        rest = make_affine(value.const % by, {name: c for name, c in value.terms if c % by})
        low, high = rest.value_range(self.trips)
        if low < 0 or high >= by:
            return None, None
        whole = value - rest
        return make_affine(whole.const // by, {name: c // by for name, c in whole.terms}), rest

    def _call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute):
            base = self.evaluate(node.func.value)
            if isinstance(base, Tensor) and not base.copies:
                base = whole_view(base)
            if isinstance(base, TensorView):
                return self._apply_view_method(base, node)
        called = self.evaluate(node.func)
        match called:
            case LibrarySymbol("nl.ds"):
                return self._evaluate_window(node)
            case LibrarySymbol("min" | "max"):
                return self._evaluate_min_max(node)
            case LibrarySymbol("slice") if len(node.args) == 2 and not node.keywords:
                return self._slice(ast.Slice(*node.args))
        raise UnreadableSyntax(f"the call `{ast.unparse(node.func)}`")

    def _apply_view_method(self, view: TensorView, node: ast.Call) -> Value:
        assert isinstance(node.func, ast.Attribute)
        arguments = [self.evaluate(item) for item in node.args]
        match node.func.attr, arguments:
            case "permute", [tuple() as order]:
                return permute_view(view, _as_integers(order))
            case "broadcast", [Affine() as dim, Affine() as size] if dim.is_const and size.is_const:
                return broadcast_view(view, dim.const, size.const)
            case "reshape_dim", [Affine() as dim, tuple() as shape] if dim.is_const:
                return split_axis(view, dim.const, _as_integers(shape))
            case "reshape", [tuple() as shape]:
                return reshape_view(view, _as_integers(shape))
        raise UnreadableSyntax(f"the view `{ast.unparse(node)}`")

    def _evaluate_window(self, node: ast.Call) -> Value:
        arguments = [*node.args, *(item.value for item in node.keywords)]
        # The start comes first because edits of the source expect it there.
        in_order = [item.arg for item in node.keywords] == ["start", "size"][len(node.args) :]
        if len(arguments) != 2 or not in_order:
            raise UnreadableSyntax(f"`{ast.unparse(node)}`")
        start = self.evaluate(arguments[0])
        if not isinstance(start, Affine):
            raise UnreadableSyntax(f"`{ast.unparse(node)}`")
        return Slice(start, self.evaluate_integer(arguments[1]))

    def _evaluate_min_max(self, node: ast.Call) -> Value:
        """The argument that is smallest (largest) in every iteration."""
        assert isinstance(node.func, ast.Name)
        best: Affine | None = None
        for item in node.args:
            value = self.evaluate(item)
            if not isinstance(value, Affine) or node.keywords:
                raise UnreadableSyntax(f"`{ast.unparse(node)}`")
            if best is None or self._is_better(node, value, best):
                best, self.decided[ast.unparse(node)] = value, ast.unparse(item)
        if best is None:
            raise UnreadableSyntax(f"`{ast.unparse(node)}`")
        return best

    def _is_better(self, node: ast.Call, value: Affine, best: Affine) -> bool:
        """Whether `min` (or `max`) takes `value` rather than `best`.

        Raises:
            UndecidedMinMax: the answer differs between iterations.
        """
        assert isinstance(node.func, ast.Name)
        difference = value - best if node.func.id == "min" else best - value
        low, high = difference.value_range(self.trips)
        if low < 0 < high:
            raise UndecidedMinMax(
                f"`{ast.unparse(node)}`, which differs from iteration to iteration", difference
            )
        return high <= 0


def _tuple_item(values: tuple[Value, ...], key: Value) -> Value:
    if not isinstance(key, Affine) or not key.is_const or not -len(values) <= key.const < len(values):
        raise UnreadableSyntax("an index into a tuple that is not known")
    return values[key.const]


def _float_binary(op: ast.operator, left: Value, right: Value) -> float | None:
    first, second = _as_float(left), _as_float(right)
    if first is None or second is None:
        return None
    match op:
        case ast.Add():
            return first + second
        case ast.Sub():
            return first - second
        case ast.Mult():
            return first * second
        case ast.Div() if second:
            return first / second
        case ast.Pow() if first > 0 and abs(second) <= 1:
            return float(first**second)
    return None


def _as_float(value: Value) -> float | None:
    if isinstance(value, Affine):
        return float(value.const) if value.is_const else None
    return value if isinstance(value, float) else None


def _as_integers(values: tuple[Value, ...]) -> tuple[int, ...]:
    found = tuple(item.const for item in values if isinstance(item, Affine) and item.is_const)
    if len(found) != len(values):
        raise UnreadableSyntax("a shape or order that is not known")
    return found


def evaluate_shape(value: Value) -> tuple[int, ...]:
    """A tuple value as a shape.

    Raises:
        UnreadableSyntax: it is not a tuple of known positive integers.
    """
    if not isinstance(value, tuple):
        raise UnreadableSyntax("a shape that is not a tuple")
    shape = _as_integers(value)
    if not shape or prod(shape) <= 0:
        raise UnreadableSyntax(f"the shape {shape}")
    return shape
