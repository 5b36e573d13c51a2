"""Simplifies what the ranges of integers decide: conditions, masks, minima, quotients, sums.

A bound that always holds is dropped from `and`, from a mask and from a chain of comparisons, and so is one
that another implies; `or` loses what never holds. An `if` that is decided becomes its branch. `min` and `max`
lose the arguments that they never are. A quotient or a sum becomes a shorter expression of the same value.
Names of constants stay: `ROWS // TILE` says more than its value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst

from targets.nki.rewrites.arithmetic import SumTerms, build_sum, collect_terms, product_factors, simplify_sum
from targets.nki.rewrites.integer_ranges import IntegerRanges
from targets.nki.rewrites.syntax import code_of, splice_block

Condition = bool | cst.BaseExpression
"""A condition, or what it always is."""
TestedT = TypeVar("TestedT", cst.While, cst.Assert)

_ORDERINGS = ast.Lt | ast.LtE | ast.Gt | ast.GtE
_ATOMS = (cst.Name, cst.Integer, cst.Call, cst.Attribute, cst.Subscript)


def apply_ranges(module: cst.Module) -> cst.Module:
    """Return the module with what its ranges of integers decide."""
    return module.visit(_RangeSimplifier(IntegerRanges(ast.parse(module.code))))


class _RangeSimplifier(cst.CSTTransformer):
    def __init__(self, ranges: IntegerRanges) -> None:
        super().__init__()
        self._ranges = ranges
        self._conditions = _Conditions(ranges)
        self._apart: set[int] = set()
        """Expressions that need no brackets, by their identity."""
        self._elifs: set[int] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.Arg(value=value) | cst.Assign(value=value) | cst.Index(value=value):
                self._apart.add(id(value))
            case cst.Slice(lower=lower, upper=upper):
                self._apart |= {id(lower), id(upper)}
            case cst.If(orelse=cst.If() as other):
                self._elifs.add(id(other))
        return super().on_visit(node)

    # --- conditions ----------------------------------------------------------------------------------

    def leave_If(  # noqa: N802
        self, original_node: cst.If, updated_node: cst.If
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        found = self._conditions.simplify(updated_node.test)
        if not isinstance(found, bool):
            return updated_node.with_changes(test=found)
        other = updated_node.orelse
        block = updated_node.body if found else (other.body if isinstance(other, cst.Else) else None)
        if id(original_node) in self._elifs or isinstance(block, cst.SimpleStatementSuite):
            return updated_node
        if isinstance(block, cst.IndentedBlock):
            return splice_block(block, updated_node.leading_lines)
        if isinstance(other, cst.If):
            return other.with_changes(leading_lines=updated_node.leading_lines)
        return cst.RemoveFromParent()

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:  # noqa: N802
        found = self._conditions.simplify(updated_node.test)
        if not isinstance(found, bool):
            return updated_node.with_changes(test=found)
        return self._replace(original_node, updated_node, updated_node.body if found else updated_node.orelse)

    def leave_While(self, original_node: cst.While, updated_node: cst.While) -> cst.While:  # noqa: N802
        del original_node
        return self._with_shorter_test(updated_node)

    def leave_Assert(self, original_node: cst.Assert, updated_node: cst.Assert) -> cst.Assert:  # noqa: N802
        del original_node
        return self._with_shorter_test(updated_node)

    def _with_shorter_test(self, node: TestedT) -> TestedT:
        found = self._conditions.simplify(node.test)
        return node if isinstance(found, bool) else node.with_changes(test=found)

    def leave_Arg(  # noqa: N802
        self, original_node: cst.Arg, updated_node: cst.Arg
    ) -> cst.Arg | cst.RemovalSentinel:
        del original_node
        if updated_node.keyword is None or updated_node.keyword.value != "mask":
            return updated_node
        found = self._conditions.simplify(updated_node.value, in_mask=True)
        if found is True:
            return cst.RemoveFromParent()
        return updated_node if found is False else updated_node.with_changes(value=found)

    # --- integers ------------------------------------------------------------------------------------

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:  # noqa: N802
        if len(updated_node.args) < len(original_node.args):  # a mask is gone, maybe with the last comma
            updated_node = _with_arguments(updated_node, updated_node.args)
        read = _read(updated_node)
        if read is None or not self._ranges.is_extremum(read):
            return updated_node
        left = self._possible_arguments(updated_node)
        if len(left) == 1:
            return self._replace(original_node, updated_node, left[0].value)
        return updated_node if len(left) == len(updated_node.args) else _with_arguments(updated_node, left)

    def _possible_arguments(self, call: cst.Call) -> list[cst.Arg]:
        """The arguments of `min` or `max` without those that another makes needless; numbers go first."""
        sign = 1 if code_of(call.func) == "min" else -1
        left = [(arg, _parse(arg.value)) for arg in call.args]
        for one in sorted(left, key=lambda item: not isinstance(item[1], ast.Constant)):
            for other in left:
                gap = None if other is one else self._ranges.difference(other[1], one[1])
                if gap is not None and (gap.high <= 0 if sign > 0 else gap.low >= 0):
                    left.remove(one)
                    break
        return [arg for arg, _ in left]

    def leave_BinaryOperation(  # noqa: N802
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        read = _read(updated_node)
        match read:
            case ast.BinOp(left=whole, op=ast.FloorDiv() | ast.Mod() as op, right=part):
                found = self._divide(whole, part)
                made = None if found is None else build_sum(found[isinstance(op, ast.Mod)])
            case ast.BinOp(op=ast.Add() | ast.Sub()) if self._ranges.find(read) is not None:
                made = simplify_sum(read)
            case _:
                return updated_node
        return self._shorten(original_node, updated_node, made)

    def leave_UnaryOperation(  # noqa: N802
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        match read := _read(updated_node):
            case ast.UnaryOp(op=ast.USub(), operand=ast.BinOp(left=negative, op=ast.FloorDiv(), right=part)):
                if isinstance(negative, ast.UnaryOp) and isinstance(negative.op, ast.USub):
                    whole = negative.operand
                    made = ast.BinOp(whole, ast.FloorDiv(), part) if self._is_even(whole, part) else None
                    return self._shorten(original_node, updated_node, made)
            case ast.UnaryOp(op=ast.USub()) if self._ranges.find(read) is not None:
                return self._shorten(original_node, updated_node, simplify_sum(read))
        return updated_node

    def _is_even(self, whole: ast.expr, part: ast.expr) -> bool:
        """Whether a division leaves no remainder."""
        rest = self._ranges.find(ast.BinOp(whole, ast.Mod(), part))
        if rest is not None and rest.value == 0:
            return True
        found = self._divide(whole, part)
        return found is not None and not found[1]

    def _divide(self, whole: ast.expr, part: ast.expr) -> tuple[SumTerms, SumTerms] | None:
        """The quotient and the remainder, if each term of `whole` is in one of them."""
        by = self._ranges.find(part)
        number = None if by is None else by.value
        names = {node.id for node in ast.walk(whole) if isinstance(node, ast.Name)}
        ranges = [self._ranges.find(ast.Name(name)) for name in names]
        if number is None or number < 1 or self._ranges.find(whole) is None:
            return None
        if all(one is not None and one.value is not None for one in ranges):
            return None  # a constant: if it is of numbers alone, it is folded elsewhere
        quotient: SumTerms = {}
        rest: SumTerms = {}
        for key, (factor, term) in collect_terms(whole, expand=True).items():
            divided = _divide_term(factor, term, number, ast.unparse(part))
            if divided is None:
                rest[key] = factor, term
            else:
                quotient[key] = divided
        over = self._ranges.sum_range(rest)
        return (quotient, rest) if over is not None and over.low >= 0 and over.high < number else None

    def _shorten(
        self, original: cst.BaseExpression, node: cst.BaseExpression, made: ast.expr | None
    ) -> cst.BaseExpression:
        """What was made of an expression, if it is shorter."""
        if made is None or _count_nodes(made) >= _count_nodes(_parse(node)):
            return node
        return self._replace(original, node, cst.parse_expression(ast.unparse(made)))

    def _replace(
        self, original: cst.BaseExpression, whole: cst.BaseExpression, part: cst.BaseExpression
    ) -> cst.BaseExpression:
        """A part in the place of an expression, in brackets where it needs them."""
        if part.lpar or isinstance(part, _ATOMS) or (id(original) in self._apart and not whole.lpar):
            return part
        return part.with_changes(lpar=whole.lpar or [cst.LeftParen()], rpar=whole.rpar or [cst.RightParen()])


@dataclass(frozen=True)
class _Conditions:
    """Simplifies conditions, whose values count only as true or false."""

    ranges: IntegerRanges

    def simplify(self, node: cst.BaseExpression, *, in_mask: bool = False) -> Condition:
        """Return what a condition always is, or the condition without what says nothing."""
        read = _read(node)
        if read is None:
            return node
        match node:
            case cst.BooleanOperation(operator=operator):
                return self._join(node, neutral=isinstance(operator, cst.And), in_mask=in_mask)
            case cst.BinaryOperation(operator=cst.BitAnd()):
                parts = _split_joined(node, cst.BitAnd)
                is_logical = in_mask or all(isinstance(part, cst.Comparison) for part in parts)
                return self._join(node, neutral=True, in_mask=in_mask) if is_logical else node
            case cst.UnaryOperation(operator=cst.Not(), expression=inner):
                found = self.simplify(inner, in_mask=in_mask)
                return not found if isinstance(found, bool) else node.with_changes(expression=found)
            case cst.Comparison():
                return self._compare(node, read)
        found_range = self.ranges.find(read)
        if found_range is None or found_range.low <= 0 <= found_range.high:
            return False if found_range is not None and found_range.value == 0 else node
        return True

    def _join(
        self, node: cst.BooleanOperation | cst.BinaryOperation, *, neutral: bool, in_mask: bool
    ) -> Condition:
        """Simplify what `and` (neutral: True) or `or` joins."""
        before = _split_joined(node, type(node.operator))
        left: list[cst.BaseExpression] = []
        for part in before:
            found = self.simplify(part, in_mask=in_mask)
            if found is not neutral and isinstance(found, bool):
                return node if any(_has_calls(one) for one in left) else found
            if not isinstance(found, bool):
                left.append(found)
        left = self._without_implied(left, keeps_stronger=neutral)
        if not left:
            return neutral
        if [code_of(one) for one in left] == [code_of(one) for one in before]:
            return node
        joined = left[0]
        for part in left[1:]:
            joined = node.with_changes(left=joined, right=part, lpar=[], rpar=[])
        return joined if not node.lpar or joined.lpar else joined.with_changes(lpar=node.lpar, rpar=node.rpar)

    def _without_implied(
        self, parts: Iterable[cst.BaseExpression], *, keeps_stronger: bool
    ) -> list[cst.BaseExpression]:
        """The parts without those that say the same as another one, or less (`or`: more)."""
        kept: dict[object, tuple[int, cst.BaseExpression]] = {}
        for number, part in enumerate(parts):
            read = _parse(part)
            key, bound = self._bound(read) or (ast.unparse(read), 0)
            identity = (number, key) if _has_calls(part) else key
            known = kept.get(identity)
            if known is None or (bound > known[0] if keeps_stronger else bound < known[0]):
                kept[identity] = bound, part
        return [part for _, part in kept.values()]

    def _bound(self, read: ast.expr) -> tuple[object, int] | None:
        """An ordering of integers as `terms + bound <= 0`: its terms, and the bound."""
        match read:
            case ast.Compare(
                left=one, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() as op], comparators=[other]
            ):
                if isinstance(op, ast.Gt | ast.GtE):
                    one, other = other, one
                if self.ranges.difference(one, other) is None:
                    return None
                terms = collect_terms(ast.BinOp(one, ast.Sub(), other), expand=True)
                bound = terms.pop("1", (0, one))[0] + isinstance(op, ast.Lt | ast.Gt)
                return frozenset((key, factor) for key, (factor, _) in terms.items()), bound
        return None

    def _compare(self, node: cst.Comparison, read: ast.expr) -> Condition:
        """Decide a chain of comparisons, or drop those at its ends that always hold."""
        assert isinstance(read, ast.Compare)
        values = [read.left, *read.comparators]
        held = [
            self._holds(one, op, other) for one, op, other in zip(values, read.ops, values[1:], strict=False)
        ]
        if False in held:
            return node if _has_calls(node) else False
        first, last = 0, len(held)
        while first < last and held[first]:
            first += 1
        while first < last and held[last - 1]:
            last -= 1
        if first == last:
            return True
        left = node.left if first == 0 else node.comparisons[first - 1].comparator
        return node.with_changes(left=left, comparisons=node.comparisons[first:last])

    def _holds(self, one: ast.expr, op: ast.cmpop, other: ast.expr) -> bool | None:
        """What a comparison of integers always is; None if it may be either."""
        gap = self.ranges.difference(one, other)
        if gap is None:
            return None
        match op:
            case ast.Lt() | ast.GtE():
                decided = True if gap.high < 0 else (False if gap.low >= 0 else None)
            case ast.LtE() | ast.Gt():
                decided = True if gap.high <= 0 else (False if gap.low > 0 else None)
            case ast.Eq() | ast.NotEq():
                decided = True if gap.value == 0 else (None if gap.low <= 0 <= gap.high else False)
            case _:
                return None
        return (
            not decided if isinstance(op, ast.GtE | ast.Gt | ast.NotEq) and decided is not None else decided
        )


def _divide_term(factor: int, term: ast.expr, number: int, text: str) -> tuple[int, ast.expr] | None:
    """A term divided by a number, which is written as `text`; None if that leaves a remainder."""
    if factor % number == 0:
        return factor // number, term
    factors = product_factors(term)
    for at, one in enumerate(factors):
        if ast.unparse(one) == text:
            rest = [*factors[:at], *factors[at + 1 :]]
            made: ast.expr = rest[0] if rest else ast.Constant(1)
            for other in rest[1:]:
                made = ast.BinOp(made, ast.Mult(), other)
            return factor, made
    return None


def _split_joined(node: cst.BaseExpression, operator: type[cst.CSTNode]) -> list[cst.BaseExpression]:
    if isinstance(node, cst.BooleanOperation | cst.BinaryOperation) and isinstance(node.operator, operator):
        return [*_split_joined(node.left, operator), *_split_joined(node.right, operator)]
    return [node]


def _with_arguments(call: cst.Call, args: Iterable[cst.Arg]) -> cst.Call:
    kept = list(args)
    if kept:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return call.with_changes(args=kept)


def _has_calls(node: cst.BaseExpression) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(_parse(node)))


def _count_nodes(node: ast.expr) -> int:
    return sum(isinstance(part, ast.expr) for part in ast.walk(node))


def _read(node: cst.BaseExpression) -> ast.expr | None:
    """The expression's tree; None if it has a comment, which would be lost."""
    return None if "#" in code_of(node) else _parse(node)


def _parse(node: cst.BaseExpression) -> ast.expr:
    return ast.parse(f"({code_of(node)})", mode="eval").body
