"""Simplifies a kernel's text: loops of one iteration, constants, ranges, neighbouring slices, unused names.

These passes read syntax alone, so they work on kernels that nobody's rewrites made. They do not prove that
the kernel still computes the same: whoever applies them has the result predicted and judged.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import libcst as cst

from targets.nki.rewrites.arithmetic import are_equal_integers
from targets.nki.rewrites.integer_ranges import LOOPS
from targets.nki.rewrites.range_simplification import apply_ranges
from targets.nki.rewrites.slice_simplification import drop_whole_slices, merge_neighbours
from targets.nki.rewrites.source_layout import wrap_long_lines
from targets.nki.rewrites.source_tree import SourceError
from targets.nki.rewrites.syntax import bound_names, code_of, splice_block

ImportT = TypeVar("ImportT", cst.Import, cst.ImportFrom)

MOST_TURNS = 8
"""How often all passes are repeated, since one may make room for another."""

_PURE_CALLS = frozenset({"ndarray", "len", "min", "max", "int"})
"""Functions that leave nothing behind but their result."""


def simplify_source(source: str, names: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Return the source after the passes with these names, and the names of those that changed it.

    Raises:
        SourceError: the source does not parse.
    """
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise SourceError(f"the source does not parse: {error.message}") from error
    used: set[str] = set()
    for _ in range(MOST_TURNS):
        before = module
        for name, run in PASSES.items():
            changed = run(module) if name in names else module
            if not changed.deep_equals(module):
                used.add(name)
                module = changed
        if module is before:
            break
    code = module.code if used else source
    return wrap_long_lines(code, source), tuple(name for name in PASSES if name in used)


def measure_complexity(source: str) -> tuple[int, int]:
    """Return how many statements a source has, and how many nodes its syntax tree.

    Raises:
        SyntaxError: the source does not parse.
    """
    nodes = list(ast.walk(ast.parse(source)))
    return sum(isinstance(node, ast.stmt) for node in nodes), len(nodes)


# --- loops of one iteration --------------------------------------------------------------------------


class _UnitLoopRemover(cst.CSTTransformer):
    """Replaces a loop of one iteration by its body, with its only value for its variable."""

    def __init__(self, needed: Collection[str]) -> None:
        super().__init__()
        self._needed = needed
        """Names that are read where no loop binds them: maybe the last value of one that did."""
        self._around: list[str] = []
        """The variables of the loops around."""

    def visit_For(self, node: cst.For) -> None:  # noqa: N802
        self._around.append(code_of(node.target))

    def leave_For(  # noqa: N802
        self, original_node: cst.For, updated_node: cst.For
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        del original_node
        self._around.pop()
        target, body = updated_node.target, updated_node.body
        value = _only_value(updated_node.iter)
        if (
            value is None
            or not isinstance(target, cst.Name)
            or not isinstance(body, cst.IndentedBlock)
            or updated_node.orelse is not None
            or _find_nodes(body, cst.Break, cst.Continue)
            or target.value in self._needed
            or target.value in self._around
            or _names_bound_in(body) & {target.value, *_count_names(value)}
        ):
            return updated_node
        inner = body.visit(_NameReplacer(target.value, value))
        assert isinstance(inner, cst.IndentedBlock)
        return splice_block(inner, updated_node.leading_lines)


class _NameReplacer(cst.CSTTransformer):
    def __init__(self, name: str, value: cst.BaseExpression) -> None:
        super().__init__()
        self._name = name
        self._value = value

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:  # noqa: N802
        del original_node
        return self._value if updated_node.value == self._name else updated_node

    def leave_Attribute(  # noqa: N802
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:  # noqa: N802
        return updated_node.with_changes(keyword=original_node.keyword)


def _only_value(iterable: cst.BaseExpression) -> cst.BaseExpression | None:
    """The value over which a loop runs once; None if it may run more often, or never."""
    if not isinstance(iterable, cst.Call) or _called_name(iterable) not in LOOPS:
        return None
    bounds = [arg.value for arg in iterable.args]
    numbers = [number for one in bounds if (number := _integer_of(one)) is not None]
    if len(numbers) == len(bounds) and 0 not in numbers[2:]:
        found = range(*numbers)
        return _make_integer(found[0]) if len(found) == 1 else None
    match bounds:
        case [lower, upper] if are_equal_integers(code_of(upper), f"{code_of(lower)} + 1"):
            return lower if isinstance(lower, cst.Name) else _in_brackets(lower)
    return None


def _in_brackets(node: cst.BaseExpression) -> cst.BaseExpression:
    return node if node.lpar else node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _names_bound_in(node: cst.CSTNode) -> set[str]:
    """The names that a block binds: in assignments, loops and comprehensions, and by `:=`."""
    targets = [
        one.target
        for one in _find_nodes(
            node, cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For, cst.CompFor, cst.NamedExpr
        )
        if isinstance(
            one, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.For | cst.CompFor | cst.NamedExpr
        )
    ]
    return {name for target in targets for name in bound_names(target) if name is not None}


class _NeededNames(cst.CSTVisitor):
    """Names that are read outside the loops that bind them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._bound: Counter[str] = Counter()

    def visit_For(self, node: cst.For) -> bool:  # noqa: N802
        node.iter.visit(self)
        bound = Counter(name for name in bound_names(node.target) if name is not None)
        self._bound += bound
        node.body.visit(self)
        self._bound -= bound
        if node.orelse is not None:
            node.orelse.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        if not self._bound[node.value]:
            self.found.add(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:  # noqa: N802
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:  # noqa: N802
        node.value.visit(self)
        return False


def _remove_unit_loops(module: cst.Module) -> cst.Module:
    needed = _NeededNames()
    module.visit(needed)
    return module.visit(_UnitLoopRemover(needed.found))


# --- constants ---------------------------------------------------------------------------------------

_OPERATORS: dict[type[cst.BaseBinaryOp], Callable[[int, int], int]] = {
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
    cst.Multiply: operator.mul,
}
_NEUTRAL_RIGHT = {cst.Add: 0, cst.Subtract: 0, cst.Multiply: 1, cst.FloorDivide: 1}
_NEUTRAL_LEFT = {cst.Add: 0, cst.Multiply: 1}


class _ConstantFolder(cst.CSTTransformer):
    """Computes operations on integers that are written as numbers."""

    def leave_BinaryOperation(  # noqa: N802
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        del original_node
        left, right = _integer_of(updated_node.left), _integer_of(updated_node.right)
        kind = type(updated_node.operator)
        if left is not None and right is not None:
            value = _compute(kind, left, right)
            return updated_node if value is None else _in_its_place(_make_integer(value), updated_node)
        if right is not None and _NEUTRAL_RIGHT.get(kind) == right:
            return _in_its_place(updated_node.left, updated_node)
        if left is not None and _NEUTRAL_LEFT.get(kind) == left:
            return _in_its_place(updated_node.right, updated_node)
        if kind is cst.Multiply and 0 in (left, right):
            return cst.Integer("0")
        return updated_node if right is None else _fold_sum(updated_node, right)

    def leave_UnaryOperation(  # noqa: N802
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        del original_node
        inner = updated_node.expression
        value = _integer_of(updated_node)
        if value is None or (isinstance(inner, cst.Integer) and not inner.lpar):
            return updated_node
        return _in_its_place(_make_integer(value), updated_node)


def _compute(kind: type[cst.BaseBinaryOp], left: int, right: int) -> int | None:
    if kind in _OPERATORS:
        return _OPERATORS[kind](left, right)
    if kind is cst.FloorDivide and right:
        return left // right
    return left % right if kind is cst.Modulo and right else None


def _fold_sum(node: cst.BinaryOperation, right: int) -> cst.BaseExpression:
    """`x + 2 - 1` is `x + 1`."""
    inner = node.left
    if not isinstance(node.operator, cst.Add | cst.Subtract) or not isinstance(inner, cst.BinaryOperation):
        return node
    before = _integer_of(inner.right)
    if before is None or inner.lpar or not isinstance(inner.operator, cst.Add | cst.Subtract):
        return node
    total = before if isinstance(inner.operator, cst.Add) else -before
    total += right if isinstance(node.operator, cst.Add) else -right
    if total == 0:
        return _in_its_place(inner.left, node)
    sign = cst.Add() if total > 0 else cst.Subtract()
    return node.with_changes(left=inner.left, operator=sign, right=cst.Integer(str(abs(total))))


def _in_its_place(part: cst.BaseExpression, whole: cst.BaseExpression) -> cst.BaseExpression:
    """A part of an operation instead of it, in the brackets that the operation has."""
    if not whole.lpar or part.lpar or isinstance(part, cst.Name | cst.Integer):
        return part
    return part.with_changes(lpar=whole.lpar, rpar=whole.rpar)


def _make_integer(value: int) -> cst.BaseExpression:
    if value >= 0:
        return cst.Integer(str(value))
    return cst.UnaryOperation(cst.Minus(), cst.Integer(str(-value)))


def _integer_of(node: cst.BaseExpression) -> int | None:
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        value = _integer_of(node.expression)
        return None if value is None else -value
    return node.evaluated_value if isinstance(node, cst.Integer) else None


def _fold_constants(module: cst.Module) -> cst.Module:
    return module.visit(_ConstantFolder())


# --- unused names ------------------------------------------------------------------------------------


class _UnusedNameRemover(cst.CSTTransformer):
    """Removes assignments and imports of names that nothing reads, and the blocks that they leave empty."""

    def __init__(self, used: Collection[str]) -> None:
        super().__init__()
        self._used = used

    def leave_Assign(  # noqa: N802
        self, original_node: cst.Assign, updated_node: cst.Assign
    ) -> cst.Assign | cst.RemovalSentinel:
        del original_node
        bound = [name for item in updated_node.targets for name in bound_names(item.target)]
        dead = all(name is not None and name not in self._used for name in bound)
        return cst.RemoveFromParent() if dead and _is_pure(updated_node.value) else updated_node

    def leave_Import(  # noqa: N802
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> cst.Import | cst.RemovalSentinel:
        del original_node
        kept = [item for item in updated_node.names if self._is_used(item)]
        return cst.RemoveFromParent() if not kept else _with_names(updated_node, kept)

    def leave_ImportFrom(  # noqa: N802
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        module = code_of(updated_node.module)
        if isinstance(updated_node.names, cst.ImportStar) or module == "__future__":
            return updated_node
        del original_node
        kept = [item for item in updated_node.names if self._is_used(item)]
        return cst.RemoveFromParent() if not kept else _with_names(updated_node, kept)

    def leave_For(  # noqa: N802
        self, original_node: cst.For, updated_node: cst.For
    ) -> cst.For | cst.RemovalSentinel:
        del original_node
        return updated_node if updated_node.body.body else cst.RemoveFromParent()

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If | cst.RemovalSentinel:  # noqa: N802
        del original_node
        is_empty = not updated_node.body.body and updated_node.orelse is None
        return cst.RemoveFromParent() if is_empty else updated_node

    def _is_used(self, item: cst.ImportAlias) -> bool:
        if item.asname is not None:
            return code_of(item.asname.name) in self._used
        return code_of(item.name).partition(".")[0] in self._used


def _with_names(node: ImportT, kept: Sequence[cst.ImportAlias]) -> ImportT:
    if isinstance(node.names, cst.ImportStar) or len(kept) == len(node.names):
        return node
    last = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return node.with_changes(names=[*kept[:-1], last])


def _is_pure(value: cst.BaseExpression) -> bool:
    """Whether nothing is lost if an expression is not evaluated."""
    return all(_called_name(call) in _PURE_CALLS for call in _find_nodes(value, cst.Call))


def _remove_unused_names(module: cst.Module) -> cst.Module:
    nodes = list(ast.walk(ast.parse(module.code)))
    changed = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = {name.id for name in names if isinstance(name.ctx, ast.Load) or id(name) in changed}
    return module.visit(_UnusedNameRemover(used))


# --- shared ------------------------------------------------------------------------------------------


def _called_name(call: cst.CSTNode) -> str:
    """The last name of what is called: `ndarray` for `nl.ndarray(...)`."""
    assert isinstance(call, cst.Call)
    return code_of(call.func).rpartition(".")[2]


def _count_names(node: cst.CSTNode) -> Counter[str]:
    return Counter(name.value for name in _find_nodes(node, cst.Name) if isinstance(name, cst.Name))


def _find_nodes(node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> list[cst.CSTNode]:
    """All nodes of these kinds below a node, and itself. LibCST's matchers take 0.4 s of CPU to import."""
    found = [node] if isinstance(node, kinds) else []
    return [*found, *(one for child in node.children for one in _find_nodes(child, *kinds))]


PASSES: dict[str, Callable[[cst.Module], cst.Module]] = {
    "loops of one iteration removed": _remove_unit_loops,
    "constants folded": _fold_constants,
    "known ranges used": apply_ranges,
    "neighbouring slices merged": merge_neighbours,
    "whole slices dropped": drop_whole_slices,
    "unused names removed": _remove_unused_names,
}
"""The passes by what people are told of them, in the order in which they run."""
