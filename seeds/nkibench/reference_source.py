"""Reads a reference file of NKIBench from its text: sizes, inputs, constants, and what kernels get."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seeds.errors import ExpressionError
from seeds.expressions import evaluate_expression
from seeds.nkibench.shape_functions import SymbolicArray, SymbolicNumber
from seeds.nkibench.shape_inference import UnsupportedSyntaxError, infer_returned_arrays, is_numpy
from seeds.spec import ITEMSIZE_BYTES

MAX_FORMULA_CHARS = 160

ScalarArgument = tuple[str, float]
"""Name and value of a number among the arguments."""


class _SourceFault(Exception):  # noqa: N818  what is wrong, said once for each place
    def __init__(self, node: ast.AST, text: str) -> None:
        super().__init__(f"line {getattr(node, 'lineno', 0)}: {text}")


@dataclass(frozen=True, slots=True)
class DrawnArgument:
    """An array among the arguments: the distribution it is drawn from, and the shape that kernels get."""

    name: str
    shape: tuple[str, ...]
    dtype: str
    distribution: str
    scale: float
    kernel_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReferenceSource:
    """What a reference file says; `formula` is the expression that `forward` returns."""

    dims: Mapping[str, int]
    arguments: Sequence[DrawnArgument | ScalarArgument]
    outputs: Sequence[SymbolicArray]
    formula: str
    used: frozenset[str] = field(default_factory=frozenset)
    """Sizes that `forward` uses by name."""

    @property
    def bound_sizes(self) -> dict[str, tuple[str, int]]:
        """For each size that is an axis of an input: the first such input and axis."""
        found: dict[str, tuple[str, int]] = {}
        for item in self.arguments:
            for axis, length in enumerate(item.shape if isinstance(item, DrawnArgument) else ()):
                if length in self.dims:
                    found.setdefault(length, (item.name if isinstance(item, DrawnArgument) else "", axis))
        return found

    @property
    def unbound_sizes(self) -> frozenset[str]:
        """Sizes that `forward` uses and that are no axis of an input."""
        return self.used - self.bound_sizes.keys()


def read_reference_source(data: bytes, values: Mapping[str, int]) -> tuple[ReferenceSource | None, list[str]]:
    """Return what the file says, or None, and the list of its faults.

    `values` are the sizes that the summary gives, empty if there is none.
    """
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return None, [f"not Python: {error}"]
    try:
        return _ReferenceReader(tree).read_source(values)
    except RecursionError:
        return None, ["nested too deeply"]


class _ReferenceReader:
    """Reads the file part by part; a fault in one part does not hide those in others."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._constants = dict(_named_constants(tree))
        used = _names_used(self._functions.get("get_inputs")) | _names_used(self._functions.get("forward"))
        self._dims = {
            name: value
            for name, value in self._constants.items()
            if name in used and type(value) is int and value > 0
        }
        self._faults: list[str] = []

    def read_source(self, values: Mapping[str, int]) -> tuple[ReferenceSource | None, list[str]]:
        for name, value in values.items():
            if self._constants.get(name) != value:
                text = f"the summary has {name} = {value!r}, the file {self._constants.get(name)!r}"
                self._faults.append(text)
        arguments = list(self._read_arguments())
        arguments = self._read_kernel_shapes(arguments)
        self._check_result_transform()
        outputs, formula, used = self._infer_outputs(arguments)
        if self._faults:
            return None, self._faults
        return ReferenceSource(self._dims, arguments, outputs, formula, used), []

    def _find_function(self, name: str) -> ast.FunctionDef | None:
        if name not in self._functions:
            self._faults.append(f"defines no function {name!r}")
        return self._functions.get(name)

    # -- get_inputs ---------------------------------------------------------------------------------

    def _read_arguments(self) -> Iterator[DrawnArgument | ScalarArgument]:
        """Yield what `get_inputs` returns, in order."""
        function = self._find_function("get_inputs")
        made: dict[str, ast.expr] = {}
        for node in function.body if function else []:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    made[name] = value
                case ast.Return(value=ast.List(elts=items) | ast.Tuple(elts=items)):
                    for item in items:
                        yield from self._read_argument(item, made)
                    return
                case ast.Expr(value=ast.Constant()):
                    pass
                case _:
                    self._note_fault(node, "only `name = ...` and a returned list are understood here")
        if function:
            self._note_fault(function, "get_inputs returns no list")

    def _read_argument(
        self, node: ast.expr, made: Mapping[str, ast.expr]
    ) -> Iterator[DrawnArgument | ScalarArgument]:
        if not isinstance(node, ast.Name) or node.id not in made:
            self._note_fault(node, f"get_inputs returns `{ast.unparse(node)}`, which it has not assigned")
            return
        value = made[node.id]
        try:
            number = _literal_number(value)
            yield (node.id, number) if number is not None else _parse_draw(node.id, value, self._dims)
        except _SourceFault as fault:
            self._faults.append(str(fault))

    def _note_fault(self, node: ast.AST, text: str) -> None:
        self._faults.append(str(_SourceFault(node, text)))

    # -- transform_to_nki_inputs, transform_nki_outputs -----------------------------------------------

    def _read_kernel_shapes(
        self, arguments: list[DrawnArgument | ScalarArgument]
    ) -> list[DrawnArgument | ScalarArgument]:
        """Return the arguments with the shapes that kernels get; the function may be missing."""
        function = self._functions.get("transform_to_nki_inputs")
        if function is None:
            return arguments
        taken = function.args.args[0].arg if function.args.args else ""
        items = list(_transformed_arguments(function.body, taken))
        if items == [taken]:
            return arguments
        if len(items) != len(arguments):
            self._note_fault(
                function, f"gives kernels {len(items)} arguments, get_inputs has {len(arguments)}"
            )
            return arguments
        found = []
        for number, (item, argument) in enumerate(zip(items, arguments, strict=True)):
            try:
                found.append(_parse_kernel_shape(item, argument, f"{taken}[{number}]"))
            except _SourceFault as fault:
                self._faults.append(str(fault))
        return found

    def _check_result_transform(self) -> None:
        """Check that results are only reshaped to the reference's shapes; nothing else is supported."""
        function = self._functions.get("transform_nki_outputs")
        allowed = {"isinstance", "hasattr", "zip", "tuple", "list", "reshape", "append"}
        for node in ast.walk(function) if function else ():
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
                if called not in allowed:
                    self._note_fault(node, f"`{ast.unparse(node):.80}`: of results only the shape is changed")

    # -- forward ----------------------------------------------------------------------------------------

    def _infer_outputs(
        self, arguments: Sequence[DrawnArgument | ScalarArgument]
    ) -> tuple[list[SymbolicArray], str, frozenset[str]]:
        function = self._find_function("forward")
        if function is None or self._faults:
            return [], "", frozenset()
        takes = len(function.args.args)
        if takes != len(arguments):
            self._note_fault(function, f"forward takes {takes} arguments, get_inputs has {len(arguments)}")
            return [], "", frozenset()
        given = [
            SymbolicArray(item.shape, item.dtype) if isinstance(item, DrawnArgument) else SymbolicNumber()
            for item in arguments
        ]
        try:
            found = infer_returned_arrays(function, given, [self._dims], self._constants)
        except UnsupportedSyntaxError as error:
            self._faults.append(str(error))
            return [], "", frozenset()
        return found, _format_formula(function), _names_used(function) & self._dims.keys()


def _named_constants(tree: ast.Module) -> Iterator[tuple[str, float]]:
    """Yield the numbers that the file names."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                number = _literal_number(value)
                if number is not None:
                    yield name, number


def _names_used(function: ast.FunctionDef | None) -> frozenset[str]:
    return (
        frozenset(node.id for node in ast.walk(function) if isinstance(node, ast.Name))
        if function
        else frozenset()
    )


def _literal_number(node: ast.expr) -> float | None:
    """Return a literal number such as 1e-5, or None."""
    try:
        found: Any = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, bool | int | float) else None


def _parse_draw(name: str, node: ast.expr, dims: Mapping[str, int]) -> DrawnArgument:
    """Parse `np.random.normal(loc=0, scale=s, size=shape).astype(np.t)`, or its absolute value."""
    dtype, distribution = "float64", "normal"
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        match node.func:
            case ast.Attribute(value=inner, attr="astype") if len(node.args) == 1:
                dtype, node = getattr(node.args[0], "attr", ast.unparse(node.args[0])), inner
            case ast.Attribute(value=owner, attr="abs") if is_numpy(owner) and len(node.args) == 1:
                distribution, node = "abs_normal", node.args[0]
            case _:
                break
    if dtype not in ITEMSIZE_BYTES:
        known = ", ".join(f"np.{item}" for item in ITEMSIZE_BYTES)
        raise _SourceFault(node, f"{name} is of type {dtype}; cast it to one of {known}")
    shape, scale = _parse_normal(node)
    for length in shape:
        try:
            evaluate_expression(length, dims)
        except ExpressionError as error:
            raise _SourceFault(node, f"the size of {name}: {error}") from error
    return DrawnArgument(name, shape, dtype, distribution, scale)


def _parse_normal(node: ast.expr) -> tuple[tuple[str, ...], float]:
    """Return shape and scale of a draw of normal numbers around zero."""
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith(
        ("np.random.", "numpy.random.")
    ):
        raise _SourceFault(node, f"`{ast.unparse(node):.80}`: only draws of np.random are understood")
    kind = ast.unparse(node.func).rpartition(".")[2]
    options = {item.arg: item.value for item in node.keywords}
    if kind == "randn" and not options:
        return tuple(ast.unparse(item) for item in node.args), 1.0
    names = {"normal": ("loc", "scale", "size"), "standard_normal": ("size",)}.get(kind)
    if names is None:
        raise _SourceFault(node, f"np.random.{kind}: only normal, standard_normal and randn are understood")
    options = {**dict(zip(names, node.args, strict=False)), **options}
    loc, scale = (
        _literal_number(options.pop(key, ast.Constant(default)))
        for key, default in (("loc", 0), ("scale", 1))
    )
    size = options.pop("size", None)
    if loc != 0 or not scale or size is None or options:
        raise _SourceFault(
            node, f"`{ast.unparse(node):.80}`: needs loc=0, a scale that is a number, and a size"
        )
    items = size.elts if isinstance(size, ast.Tuple | ast.List) else [size]
    return tuple(ast.unparse(item) for item in items), float(scale)


def _transformed_arguments(body: Sequence[ast.stmt], taken: str) -> Iterator[str | ast.expr]:
    """Yield the expressions that kernels get; only the parameter's name if it is passed on unchanged."""
    for node in body:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"), args=[item])):
                yield item
            case ast.Return(value=ast.List(elts=items) | ast.Tuple(elts=items)):
                yield from items
            case ast.Return(value=ast.Name(id=name)) if name == taken:
                yield taken


def _parse_kernel_shape(
    node: str | ast.expr, argument: DrawnArgument | ScalarArgument, itself: str
) -> DrawnArgument | ScalarArgument:
    """Parse `inputs[i]` or `np.reshape(inputs[i], shape)`."""
    assert isinstance(node, ast.expr)
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="reshape"), args=[inner, shape]) if is_numpy(
            owner
        ):
            if ast.unparse(inner) == itself and isinstance(argument, DrawnArgument):
                return replace(argument, kernel_shape=_literal_shape(shape))
        case _ if ast.unparse(node) == itself:
            return argument
    raise _SourceFault(
        node, f"`{ast.unparse(node):.80}`: only {itself}, or np.reshape of it, is understood here"
    )


def _literal_shape(node: ast.expr) -> tuple[int, ...]:
    try:
        found = ast.literal_eval(node)
    except ValueError:
        found = None
    shape = found if isinstance(found, tuple | list) else (found,)
    if not all(type(size) is int and size > 0 for size in shape):
        raise _SourceFault(node, f"`{ast.unparse(node):.80}`: a shape of integers from 1 is needed")
    return tuple(shape)


def _format_formula(function: ast.FunctionDef) -> str:
    """Return the returned expression as text."""
    texts = [ast.unparse(node.value) for node in function.body if isinstance(node, ast.Return) and node.value]
    return f"forward returns {texts[-1] if texts else '...'}"[:MAX_FORMULA_CHARS]
