"""Index arithmetic as text: replaces names by their values, and simplifies sums.

Sums are simplified over arbitrary terms: `start + size - start` is `size`, even if `start` is a product.
Everything here is about integers, as indices and sizes are.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

SumTerms = dict[str, tuple[int, ast.expr]]
"""By the source of a term: its coefficient and its syntax."""


def substitute_names(code: str, meanings: Mapping[str, str]) -> str:
    """An expression with names and whole subexpressions replaced, then simplified; `meanings` are sources."""
    tree = ast.parse(code.strip(), mode="eval").body
    before = ast.unparse(tree)
    tree = _NameSubstitution(meanings).visit(tree)
    if ast.unparse(tree) == before:
        return code.strip()
    return ast.unparse(_simplify_sums(tree) if _is_integral(tree) else tree)


def are_equal_integers(one: str, other: str) -> bool:
    """Whether two expressions of integers have the same value, as far as sums show it."""
    return one == other or substitute_names(f"({one}) - ({other}) + _zero", {"_zero": "0"}) == "0"


def _is_integral(node: ast.expr) -> bool:
    """Whether the expression has no floats, whose sums must keep their order."""
    parts = list(ast.walk(node))
    floats = any(isinstance(item, ast.Constant) and isinstance(item.value, float) for item in parts)
    return not floats and not any(isinstance(item, ast.Div) for item in parts)


def names_in(code: str) -> frozenset[str]:
    """The names that an expression reads."""
    return frozenset(node.id for node in ast.walk(ast.parse(code.strip())) if isinstance(node, ast.Name))


class _NameSubstitution(ast.NodeTransformer):
    def __init__(self, meanings: Mapping[str, str]) -> None:
        self._meanings = meanings

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._parse_replacement(node.id) or node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        found = self._parse_replacement(ast.unparse(node))
        if found is not None:
            return found
        self.generic_visit(node)
        return node

    def _parse_replacement(self, code: str) -> ast.expr | None:
        text = self._meanings.get(code)
        return None if text is None else ast.parse(text, mode="eval").body


def _simplify_sums(node: ast.expr) -> ast.expr:
    """The expression with its sums simplified, innermost first."""
    for name, child in ast.iter_fields(node):
        if isinstance(child, ast.expr):
            setattr(node, name, _simplify_sums(child))
        elif isinstance(child, list):
            setattr(
                node, name, [_simplify_sums(item) if isinstance(item, ast.expr) else item for item in child]
            )
    return simplify_sum(node) if _is_sum(node) else node


def _is_sum(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


def simplify_sum(node: ast.expr) -> ast.expr:
    """Return a sum of integers with equal terms taken together."""
    plain = collect_terms(node, expand=False)
    expanded = collect_terms(node, expand=True)
    return build_sum(_fold_remainders(expanded if len(expanded) < len(plain) else plain))


def collect_terms(node: ast.expr, *, expand: bool) -> SumTerms:
    """Return an expression as a sum; `expand` multiplies products of sums out."""
    found: SumTerms = {}
    for factor, term in _split_terms(node, expand=expand):
        text = _term_key(term)
        found[text] = (found.get(text, (0, term))[0] + factor, found.get(text, (0, term))[1])
    return {text: item for text, item in found.items() if item[0]}


def _term_key(term: ast.expr) -> str:
    """The same text for the factors of a product in any order."""
    return " * ".join(sorted(ast.unparse(item) for item in product_factors(term)))


def product_factors(term: ast.expr) -> list[ast.expr]:
    """Return the factors of a product, in their order."""
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        return [*product_factors(term.left), *product_factors(term.right)]
    return [term]


def _split_terms(node: ast.expr, *, expand: bool) -> list[tuple[int, ast.expr]]:
    """An expression as a sum of (integer, term); `expand` multiplies products of sums out."""
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return [(number, ast.Constant(1))]
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            sign = 1 if isinstance(op, ast.Add) else -1
            rest = [(sign * factor, term) for factor, term in _split_terms(right, expand=expand)]
            return [*_split_terms(left, expand=expand), *rest]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return [(-factor, term) for factor, term in _split_terms(inner, expand=expand)]
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if expand:
            return [
                (a * b, _multiply_terms(first, second))
                for a, first in _split_terms(left, expand=True)
                for b, second in _split_terms(right, expand=True)
            ]
    return [(1, node)]


def _multiply_terms(first: ast.expr, second: ast.expr) -> ast.expr:
    for one, other in ((first, second), (second, first)):
        if isinstance(one, ast.Constant) and one.value == 1:
            return other
    return ast.BinOp(first, ast.Mult(), second)


def _fold_remainders(terms: SumTerms) -> SumTerms:
    """x - x // t * t is x % t."""
    for text, (factor, term) in terms.items():
        for other, (count, product) in terms.items():
            if factor != 1 or count != -1 or not isinstance(product, ast.BinOp):
                continue
            match product_factors(product):
                case [ast.BinOp(left=whole, op=ast.FloorDiv(), right=part), by] if ast.unparse(
                    whole
                ) == text and ast.unparse(part) == ast.unparse(by):
                    rest = ast.BinOp(term, ast.Mod(), by)
                    left = {key: item for key, item in terms.items() if key not in {text, other}}
                    return {ast.unparse(rest): (1, rest), **left}
    return terms


def build_sum(terms: SumTerms) -> ast.expr:
    """Return the terms as a sum, positive ones first."""
    ordered = sorted(terms.values(), key=lambda item: item[0] < 0)
    sum_: ast.expr | None = None
    for factor, term in ordered:
        size = _scale_term(abs(factor), term)
        if sum_ is None:
            sum_ = size if factor > 0 else ast.UnaryOp(ast.USub(), size)
        else:
            sum_ = ast.BinOp(sum_, ast.Add() if factor > 0 else ast.Sub(), size)
    return sum_ if sum_ is not None else ast.Constant(0)


def _scale_term(factor: int, term: ast.expr) -> ast.expr:
    if isinstance(term, ast.Constant) and term.value == 1:
        return ast.Constant(factor)
    return term if factor == 1 else ast.BinOp(ast.Constant(factor), ast.Mult(), term)
