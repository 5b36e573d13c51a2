"""Mutants of the product: where a small fault may be seeded, of which kinds, and which of them are drawn.

A site is a piece of source text with what takes its place. What is no site, by rule:

- docstrings, annotations, `TYPE_CHECKING` blocks, bodies of protocols and overloads: nothing runs them;
- `assert` statements: they state what never fails;
- calls of a logger, and texts: nobody is held to their words;
- the arguments of `field`, `Field`, `dataclass` and `TypeVar`: most say nothing but how a class is shown;
- numbers that are bound to a name in capitals, and numbers above 64: tuning values, of which one more is no
  fault.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import house

MAX_NUMBER = 64
LOGGERS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
DECLARATIONS = frozenset({"field", "Field", "dataclass", "TypeVar", "ConfigDict", "NewType"})

COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
OPERATIONS: Mapping[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault: `before`, which begins at a line and column (in bytes) of a file, becomes `after`."""

    path: str
    line: int
    column: int
    kind: str
    before: str
    after: str
    function: str
    """The innermost function or class around it; empty at the top of a module."""

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.column}:{self.kind}"

    def apply(self, source: bytes) -> bytes:
        """The source of the file with this fault in it.

        Raises:
            ValueError: the file does not hold `before` at that place.
        """
        lines = source.splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        old = self.before.encode()
        if source[start : start + len(old)] != old:
            raise ValueError(f"{self.path}:{self.line} has changed since the mutants were drawn")
        return source[:start] + self.after.encode() + source[start + len(old) :]


class _Sites(ast.NodeVisitor):
    """Collects the mutants of one module."""

    def __init__(self, path: str, source: str) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source.encode()
        lengths = map(len, self._source.splitlines(keepends=True))
        self._starts = [0, *itertools.accumulate(lengths)]
        self._around: list[str] = []

    # -- what is left out

    def visit_If(self, node: ast.If) -> None:
        if house.is_type_checking(node.test):
            self._visit_all(node.orelse)
        else:
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not _is_tuning(node.target, node.value):
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not _is_tuning(node.targets[0], node.value):
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            return
        self._around.append(node.name)
        self._visit_all(node.body)
        self._around.pop()

    def visit_FunctionDef(self, node: house.Function) -> None:
        if any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
            return
        self._around.append(node.name)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if isinstance(default, ast.Constant):
                self._add_default(default)
        self._visit_all(node.body)
        self._around.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that `ast` looks for

    def _visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    # -- kinds of faults

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = self._text(node.left), self._text(node.comparators[0])
            self._add(node, "comparison", f"{left} {COMPARISONS[type(node.ops[0])]} {right}")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " or " if isinstance(node.op, ast.And) else " and "
        self._add(node, "and_or", f"({word.join(self._group(value) for value in node.values)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, "dropped_not", f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        operator = OPERATIONS.get(type(node.op))
        texts = any(isinstance(one, ast.JoinedStr | ast.List | ast.Tuple) for one in (node.left, node.right))
        if operator is not None and not texts and not any(map(_is_text, (node.left, node.right))):
            self._add(node, "arithmetic", f"({self._group(node.left)} {operator} {self._group(node.right)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, "flipped_flag", str(not node.value))
        elif isinstance(node.value, int) and abs(node.value) <= MAX_NUMBER:
            self._add(node, "off_by_one", str(node.value + 1))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._add(node, "returned_none", "return None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._add(node, "removed_raise", "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _is_log_call(node.value):
            return
        kind = "removed_await" if isinstance(node.value, ast.Await) else "removed_statement"
        if isinstance(node.value, ast.Call | ast.Await):
            self._add(node, kind, "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _called_name(node) in DECLARATIONS or _is_log_call(node):
            return
        plain = not any(isinstance(one, ast.Starred) for one in node.args)
        if len(node.args) >= 2 and plain and _called_name(node) not in {"isinstance", "issubclass"}:
            self._add_swapped(node)
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "break_continue", "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "break_continue", "break")

    def _add_default(self, default: ast.Constant) -> None:
        if isinstance(default.value, bool):
            self._add(default, "changed_default", str(not default.value))
        elif isinstance(default.value, int) and abs(default.value) <= MAX_NUMBER:
            self._add(default, "changed_default", str(default.value + 1))

    def _add_swapped(self, node: ast.Call) -> None:
        first, second = node.args[:2]
        one, other = self._text(first), self._text(second)
        between = self._source[self._span(first)[1] : self._span(second)[0]].decode()
        if one == other or between.strip() != "," or "\n" in one + other:
            return
        self._insert(first, "swapped_arguments", f"{one}{between}{other}", f"{other}{between}{one}")

    # -- texts

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node begins and ends in the source, in bytes."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end_column

    def _text(self, node: ast.expr | ast.stmt) -> str:
        begin, end = self._span(node)
        return self._source[begin:end].decode()

    def _group(self, node: ast.expr) -> str:
        return (
            self._text(node)
            if isinstance(node, ast.Name | ast.Call | ast.Constant)
            else f"({self._text(node)})"
        )

    def _add(self, node: ast.expr | ast.stmt, kind: str, after: str) -> None:
        self._insert(node, kind, self._text(node), after)

    def _insert(self, node: ast.expr | ast.stmt, kind: str, before: str, after: str) -> None:
        around = self._around[-1] if self._around else ""
        self.found.append(Mutant(self._path, node.lineno, node.col_offset, kind, before, after, around))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _is_tuning(target: ast.expr, value: ast.expr) -> bool:
    named = isinstance(target, ast.Name) and target.id.isupper()
    return named and all(
        isinstance(node, ast.Constant | ast.BinOp | ast.operator) for node in ast.walk(value)
    )


def _called_name(node: ast.expr) -> str:
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_log_call(node: ast.expr) -> bool:
    call = node.value if isinstance(node, ast.Await) else node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in LOGGERS and "log" in ast.unparse(call.func.value).lower()


def list_mutants(path: str, source: str) -> list[Mutant]:
    """All faults that may be seeded into a file; see `changes_program` for those that come to nothing."""
    sites = _Sites(path, source)
    sites.visit(ast.parse(source))
    return sites.found


def changes_program(mutant: Mutant, source: bytes) -> bool:
    """Whether the file with the fault still parses, and not to what it was."""
    try:
        changed = ast.parse(mutant.apply(source))
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


def draw_mutants(
    modules: Sequence[house.Module], sources: Mapping[str, str], count: int, seed: int
) -> list[Mutant]:
    """`count` mutants, of rooms in proportion to their lines, of modules too, of kinds with equal chance.

    The first n of a longer draw are not those of a shorter one: the share of each room depends on the count.
    """
    rng = random.Random(seed)
    rooms: defaultdict[str, list[house.Module]] = defaultdict(list)
    for module in modules:
        rooms[module.path.parts[0]].append(module)
    drawn: list[Mutant] = []
    for room, share in sorted(
        share_out({room: sum(one.lines for one in own) for room, own in rooms.items()}, count).items()
    ):
        drawn += _draw_of_room(rooms[room], sources, share, rng)
    rng.shuffle(drawn)
    return drawn


def share_out(lines: Mapping[str, int], count: int) -> dict[str, int]:
    """How many of `count` each room gets, by largest remainder."""
    total = sum(lines.values())
    exact = {room: count * own / total for room, own in lines.items()}
    shares = {room: int(value) for room, value in exact.items()}
    by_remainder = sorted(exact, key=lambda room: (shares[room] - exact[room], room))
    for room in by_remainder[: count - sum(shares.values())]:
        shares[room] += 1
    return shares


def _draw_of_room(
    modules: Sequence[house.Module], sources: Mapping[str, str], count: int, rng: random.Random
) -> Iterator[Mutant]:
    taken: set[str] = set()
    listed: dict[str, list[Mutant]] = {}
    weights = [module.lines for module in modules]
    for _ in range(1000 * count):
        if len(taken) == count:
            return
        (module,) = rng.choices(modules, weights)
        path = str(module.path)
        if path not in listed:
            listed[path] = list_mutants(path, sources[path])
        mutants = listed[path]
        if not mutants:
            continue
        kind = rng.choice(sorted({mutant.kind for mutant in mutants}))
        mutant = rng.choice([mutant for mutant in mutants if mutant.kind == kind])
        if mutant.name not in taken and changes_program(mutant, sources[path].encode()):
            taken.add(mutant.name)
            yield mutant
