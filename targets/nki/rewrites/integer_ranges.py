"""The integers that names and expressions of a kernel can be: ranges from its text alone.

A name has a range if the module binds it once: to a number, an expression of such names, a loop over a
`range`, a shape, or the indices of `arange` and `mgrid`. The range holds wherever the name can be read.
Sums are compared term by term, so `i * T + T - i * T` is `T` for any `i`. What has no range may be no
integer.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from targets.nki.rewrites.arithmetic import SumTerms, collect_terms

LOOPS = frozenset({"range", "affine_range", "sequential_range", "static_range"})
"""Functions whose loops count integers of Python."""


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """The integers from `low` to `high`, both included; either may be infinite."""

    low: float
    high: float

    @property
    def value(self) -> int | None:
        """The only integer of the range, if there is one."""
        return int(self.low) if self.low == self.high else None


COUNT = IntegerRange(0, inf)
"""The range of lengths and program numbers."""


class IntegerRanges:
    """The ranges of a module's expressions."""

    def __init__(self, module: ast.Module) -> None:
        counts = Counter(name for node in ast.walk(module) for name in _bound_by(node))
        self._builtins = frozenset({"min", "max", "len", "range"}) - counts.keys()
        self._sources = {
            name: source
            for name, source in _range_sources(module)
            if counts[name] == 1 and source is not None
        }
        self._known: dict[str, IntegerRange | None] = {}

    def find(self, node: ast.expr) -> IntegerRange | None:
        """Return the range of an expression; None if it may be no integer."""
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return IntegerRange(number, number)
            case ast.Name(id=name):
                return self._find_name(name)
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult()) | ast.UnaryOp(op=ast.USub()):
                return self._find_sum(node)
            case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod() as op, right=right):
                whole, part = self.find(left), self.find(right)
                if whole is None or part is None or part.low < 1:
                    return None
                return _divide(whole, part) if isinstance(op, ast.FloorDiv) else _take_remainder(whole, part)
            case ast.Subscript(value=ast.Attribute(attr="shape")):
                return COUNT
            case ast.Subscript(value=ast.Call() as call, slice=index) if _leaf(call.func) == "arange":
                return self.find(call) if _adds_dimensions(index) else None
            case ast.Call(func=func, args=args, keywords=[]):
                return self._find_call(func, args)
        return None

    def difference(self, one: ast.expr, other: ast.expr) -> IntegerRange | None:
        """Return the range of `one - other`; None unless both are integers."""
        return self._find_sum(ast.BinOp(one, ast.Sub(), other))

    def is_extremum(self, node: ast.expr) -> bool:
        """Whether an expression is a call of Python's own `min` or `max` of two or more values."""
        match node:
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, _, *_] as args, keywords=[]):
                return name in self._builtins and not any(isinstance(item, ast.Starred) for item in args)
        return False

    def sum_range(self, terms: SumTerms) -> IntegerRange | None:
        """Return the range of a sum of terms; None unless all are integers."""
        low: float = 0
        high: float = 0
        for factor, term in terms.values():
            found = self._find_term(term)
            if found is None:
                return None
            ends = sorted((factor * found.low, factor * found.high))
            low, high = low + ends[0], high + ends[1]
        return IntegerRange(low, high)

    def _find_sum(self, node: ast.expr) -> IntegerRange | None:
        # A term that falls out of the sum must be an integer too.
        if any(self.find(leaf) is None for leaf in _summands(node)):
            return None
        return self.sum_range(collect_terms(node, expand=True))

    def _find_term(self, term: ast.expr) -> IntegerRange | None:
        if not isinstance(term, ast.BinOp) or not isinstance(term.op, ast.Mult):
            return self.find(term)
        one, other = self._find_term(term.left), self._find_term(term.right)
        if one is None or other is None:
            return None
        ends = [_multiply(a, b) for a in (one.low, one.high) for b in (other.low, other.high)]
        return IntegerRange(min(ends), max(ends))

    def _find_name(self, name: str) -> IntegerRange | None:
        if name not in self._known:
            self._known[name] = None  # while it is looked for: a name that is bound to itself has no range
            source = self._sources.get(name)
            if isinstance(source, IntegerRange):
                self._known[name] = source
            elif isinstance(source, _Indices):
                self._known[name] = self._count(source.bounds)
            elif source is not None:
                self._known[name] = self.find(source)
        return self._known[name]

    def _find_call(self, func: ast.expr, args: list[ast.expr]) -> IntegerRange | None:
        leaf = _leaf(func)
        if isinstance(func, ast.Name) and func.id in {"min", "max", "len"} - self._builtins:
            return None
        if leaf in {"program_id", "num_programs", "len"} and len(args) == 1:
            return COUNT
        if leaf == "arange" and args:
            return self._count(args)
        if leaf in {"min", "max"} and isinstance(func, ast.Name) and len(args) > 1:
            found = [self.find(item) for item in args]
            known = [item for item in found if item is not None]
            if len(known) < len(found):
                return None
            choose = min if leaf == "min" else max
            return IntegerRange(choose(item.low for item in known), choose(item.high for item in known))
        return None

    def _count(self, args: list[ast.expr]) -> IntegerRange | None:
        """Return the integers of `range(*args)`, of which there may be none."""
        found = [self.find(item) for item in args]
        known = [item for item in found if item is not None]
        if len(known) < len(found) or not known or (len(known) > 2 and known[2].low < 1):
            return None
        first, last = (IntegerRange(0, 0), known[0]) if len(known) == 1 else known[:2]
        return IntegerRange(first.low, max(first.low, last.high - 1))


@dataclass(frozen=True, slots=True)
class _Indices:
    """What a name counts: the arguments of a `range`."""

    bounds: list[ast.expr]


_Source = ast.expr | _Indices | IntegerRange | None


def _range_sources(module: ast.Module) -> Iterator[tuple[str, _Source]]:
    """The names that a module binds in ways that have ranges, each with what its range comes from."""
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=func, args=args, keywords=[])):
                yield name, _Indices(args) if _leaf(func) in LOOPS else None
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                yield from zip(_names(targets), _unpack(value, len(targets)), strict=True)


def _unpack(value: ast.expr, count: int) -> list[_Source]:
    """What each of the names is, to which a value is unpacked."""
    match value:
        case ast.Attribute(attr="shape"):
            return [COUNT] * count
        case ast.Subscript(value=ast.Attribute(attr="mgrid"), slice=ast.Tuple(elts=parts)):
            return [_indices_of(part) for part in parts] if len(parts) == count else [None] * count
        case ast.Tuple(elts=parts) if len(parts) == count:
            return list(parts)
    return [None] * count


def _indices_of(part: ast.expr) -> _Indices | None:
    match part:
        case ast.Slice(lower=lower, upper=ast.expr() as upper, step=None):
            return _Indices([lower if lower is not None else ast.Constant(0), upper])
    return None


def _names(targets: list[ast.expr]) -> list[str]:
    return [item.id if isinstance(item, ast.Name) else "" for item in targets]


def _bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a node binds, once for each."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.AugAssign(target=ast.Name(id=name)):
            yield name  # a second time: what it was before counts too
        case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name):
            yield name
        case ast.MatchStar(name=str() as name) | ast.MatchMapping(rest=str() as name):
            yield name


def _summands(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            yield from _summands(left)
            yield from _summands(right)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            yield from _summands(inner)
        case _:
            yield node


def _adds_dimensions(index: ast.expr) -> bool:
    """Whether an index only adds dimensions, as in `[:, None]`."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    whole = (ast.unparse(item) in {":", "None", "..."} or _leaf(item) == "newaxis" for item in parts)
    return all(whole)


def _leaf(func: ast.expr) -> str:
    return ast.unparse(func).rpartition(".")[2]


def _multiply(one: float, other: float) -> float:
    return 0 if 0 in (one, other) else one * other


def _divide(whole: IntegerRange, part: IntegerRange) -> IntegerRange:
    ends = [_floor(a, b) for a in (whole.low, whole.high) for b in (part.low, part.high)]
    return IntegerRange(min(ends), max(ends))


def _floor(a: float, b: float) -> float:
    if a in (inf, -inf):
        return a
    return a // b if b != inf else (0 if a >= 0 else -1)


def _take_remainder(whole: IntegerRange, part: IntegerRange) -> IntegerRange:
    if whole.value is not None and part.value is not None:
        rest = whole.value % part.value
        return IntegerRange(rest, rest)
    if whole.low >= 0 and whole.high < part.low:
        return whole
    high = min(part.high - 1, whole.high) if whole.low >= 0 else part.high - 1
    return IntegerRange(0, high)
