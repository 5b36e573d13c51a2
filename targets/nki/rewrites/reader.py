"""Reads a kernel's source into a `Kernel`: which loops run, what every statement reads and writes.

Reading never executes the kernel. A construct that it cannot express becomes one opaque statement (with the
reason), which rewrites do not move across. Only source without a kernel is an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache
from typing import Any

from nki_sim.targets import Target
from targets.nki.rewrites.constant_arrays import read_array_layout
from targets.nki.rewrites.evaluate import ExpressionEvaluator, evaluate_shape
from targets.nki.rewrites.instruction_calls import resolve_call
from targets.nki.rewrites.kernel_ir import (
    ArrayArgument,
    Guard,
    IntegerConstant,
    Kernel,
    KernelArgument,
    Loop,
    Node,
    Statement,
    StatementKind,
)
from targets.nki.rewrites.source_tree import (
    COMPOUND_SYNTAX,
    MAX_CACHED_STATEMENTS,
    SourceError,
    SourceTree,
    StatementPath,
    group_by_line,
)
from targets.nki.rewrites.values import (
    Affine,
    LibrarySymbol,
    Tensor,
    UndecidedMinMax,
    UnreadableSyntax,
    Value,
)

KNOWN_LIBRARIES = {"nki": "nki", "nki.isa": "nisa", "nki.language": "nl"}

_LOOP_SYNTAX = (ast.For, ast.AsyncFor, ast.While)
_BLOCK_SYNTAX = (ast.stmt, ast.ExceptHandler, ast.match_case)
_SCOPE_SYNTAX = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read_kernel(source: str, arguments: Sequence[KernelArgument], target: Target) -> Kernel:
    """Read the kernel of a module for given argument shapes.

    Raises:
        SourceError: the source does not parse, or has no single kernel with these arguments.
    """
    return _KernelReader(SourceTree(source), target).read_module(arguments)


class _KernelReader:
    def __init__(self, tree: SourceTree, target: Target) -> None:
        self._tree = tree
        shadowed = frozenset[str]().union(*map(tree.bound_names, tree.body))
        self._evaluator = ExpressionEvaluator(target, shadowed)
        self._constants: dict[str, IntegerConstant] = {}
        self._order = 0
        self._in_kernel = False
        self._tensors = 0
        self._path: list[Loop] = []
        self._guards: list[Guard] = []
        self._bound: dict[str, int] = {}

    def read_module(self, arguments: Sequence[KernelArgument]) -> Kernel:
        lines = list(group_by_line(self._tree.body))
        for number, line in enumerate(lines):
            self._read_module_line(line, (number,))
        function = self._find_kernel_function()
        place = (lines.index([function]),)
        self._in_kernel = True
        self._bind_arguments(function, arguments)
        if not self._tree.is_indented(function.body):
            raise SourceError("the kernel's body is a single line")
        early = function.body[:-1] if isinstance(function.body[-1], ast.Return) else function.body
        if any(_exits_early(line, ast.Return) for line in early):
            raise SourceError("the kernel returns before its end")
        nodes = self._read_block(function.body, place)
        aliases = {value.path: name for name, value in self._library_symbols().items()}
        if not {"nisa", "nl"} <= aliases.keys():
            raise SourceError(_explain_missing_imports(self._tree.text))
        return Kernel(
            tree=self._tree,
            place=place,
            body=nodes,
            arguments=tuple(arguments),
            constants={name: item for name, item in self._constants.items() if self._bound[name] == 1},
            nisa=aliases["nisa"],
            nl=aliases["nl"],
        )

    def _library_symbols(self) -> dict[str, LibrarySymbol]:
        return {name: item for name, item in self._evaluator.names.items() if isinstance(item, LibrarySymbol)}

    # -- module and signature --------------------------------------------------------------------

    def _read_module_line(self, line: Sequence[ast.stmt], place: StatementPath) -> None:
        for item in line:
            if isinstance(item, ast.Assign):
                self._read_assignment(item, place)
                continue
            bound = {item.name} if isinstance(item, ast.FunctionDef) else self._tree.bound_names(item)
            self._count_bindings(bound)
            self._forget_names(bound)
            if isinstance(item, ast.Import | ast.ImportFrom):
                self._read_import(item)

    def _read_import(self, node: ast.Import | ast.ImportFrom) -> None:
        prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            library = KNOWN_LIBRARIES.get(prefix + alias.name)
            if library is not None and (prefix or alias.asname or "." not in alias.name):
                self._evaluator.names[alias.asname or alias.name] = LibrarySymbol(library)

    def _find_kernel_function(self) -> ast.FunctionDef:
        functions = [item for item in self._tree.body if isinstance(item, ast.FunctionDef)]
        jitted = [item for item in functions if any("jit" in ast.unparse(d) for d in item.decorator_list)]
        named = [item for item in jitted if item.name == "kernel"]
        if len(named or jitted) != 1:
            raise SourceError(f"expected one @nki.jit kernel, found {len(jitted)}")
        return (named or jitted)[0]

    def _bind_arguments(self, function: ast.FunctionDef, arguments: Sequence[KernelArgument]) -> None:
        names = [item.arg for item in function.args.args]
        if len(names) < len(arguments):
            raise SourceError(f"{function.name} takes {len(names)} arguments, {len(arguments)} given")
        for name, item in zip(names, arguments, strict=False):
            if isinstance(item, ArrayArgument):
                self._bind_name(name, Tensor(self._next_tensor_id(), name, item.shape, item.dtype, "hbm"))
            else:
                self._bind_name(name, item if isinstance(item, bool | float) else Affine(item))

    # -- blocks ----------------------------------------------------------------------------------

    def _read_block(self, body: Sequence[ast.stmt], place: StatementPath) -> list[Node]:
        return [self._read_node(line, (*place, number)) for number, line in enumerate(group_by_line(body))]

    def _read_node(self, line: list[ast.stmt], place: StatementPath) -> Node:
        self._evaluator.decided.clear()
        item = line[0]
        try:
            if isinstance(item, ast.For):
                if any(_exits_early(one, ast.Break, ast.Continue) for one in item.body):
                    return self._make_opaque(line, place, "a loop whose iterations may end early")
                loop = self._read_loop(item, place)
                return loop or self._make_opaque(line, place, "a loop whose trip count is not known")
            if isinstance(item, ast.If):
                guard = self._read_guard(item, place)
                return guard or self._make_opaque(line, place, "a condition that is not on one loop index")
            if isinstance(item, COMPOUND_SYNTAX):
                return self._make_opaque(line, place, f"a {type(item).__name__.lower()} statement")
            return self._read_simple_statement(line, place)
        except UndecidedMinMax as error:
            return replace(self._make_opaque(line, place, str(error)), undecided=error.difference)
        except UnreadableSyntax as error:
            return self._make_opaque(line, place, str(error))

    def _read_loop(self, item: ast.For, place: StatementPath) -> Loop | None:
        if not isinstance(item.target, ast.Name) or item.orelse or not self._tree.is_indented(item.body):
            return None
        try:
            found = self._evaluator.evaluate_range(item.iter)
        except UndecidedMinMax:
            raise
        except UnreadableSyntax:
            return None
        if found is None:
            return None
        start, step, trips = found
        first, stop = _range_texts(item.iter)
        name = item.target.id
        identity = f"{name}@{len(self._evaluator.trips)}"
        loop = Loop(identity, name, start, step, trips, first, stop, self._tree, place, tuple(self._path))
        self._evaluator.trips[loop.id] = trips
        # Until the body binds them, its names hold the values of the iteration before; after it, of the last
        # one.
        bound = self._tree.bound_names(item)
        self._forget_names(bound)
        self._bind_name(name, start + Affine(0, ((loop.id, step),)))
        self._path.append(loop)
        loop.body.extend(self._read_block(item.body, place))
        self._path.pop()
        self._forget_names(bound)
        return loop

    def _read_guard(self, item: ast.If, place: StatementPath) -> Guard | None:
        """`if index == value:`, true in exactly one iteration of the loops that make up the index."""
        test = item.test
        if item.orelse or not self._tree.is_indented(item.body):
            return None
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq) or len(test.ops) != 1:
            return None
        try:
            left, right = self._evaluator.evaluate(test.left), self._evaluator.evaluate(test.comparators[0])
        except UndecidedMinMax:
            raise
        except UnreadableSyntax:
            return None
        if not isinstance(left, Affine) or not isinstance(right, Affine):
            return None
        loops = self._single_iteration_loops(left - right)
        if not loops:
            return None
        guard = Guard(loops, left - right, self._tree, place, tuple(self._path))
        self._guards.append(guard)
        guard.body.extend(self._read_block(item.body, place))
        self._guards.pop()
        # Names bound in its body have that meaning in one iteration, and another in the others.
        self._forget_names(self._tree.bound_names(item))
        return guard

    def _single_iteration_loops(self, difference: Affine) -> tuple[Loop, ...]:
        """The loops of which exactly one iteration makes an affine form zero; else empty."""
        around = {item.id: item for item in self._path}
        if not difference.loops or not difference.loops <= around.keys():
            return ()
        loops = tuple(around[name] for name, _ in difference.terms)
        if len(loops) == 1:
            number, rest = divmod(-difference.const, difference.terms[0][1])
            return loops if rest == 0 and 0 <= number < loops[0].trips else ()
        low, high = difference.value_range(self._evaluator.trips)
        at_an_end = len({factor > 0 for _, factor in difference.terms}) == 1 and 0 in {low, high}
        return loops if at_an_end else ()

    def _make_opaque(self, line: Sequence[ast.stmt], place: StatementPath, reason: str) -> Statement:
        names = frozenset[str]().union(*map(self._tree.names_in_statement, line))
        self._count_bindings(names)
        self._forget_names({name for one in line for name in self._tree.bound_names(one)})
        return self._make_statement(place, StatementKind.OPAQUE, names, binds=names, reason=reason)

    def _count_bindings(self, names: AbstractSet[str]) -> None:
        for name in names:
            self._bound[name] = self._bound.get(name, 0) + 1

    def _forget_names(self, names: AbstractSet[str]) -> None:
        """Mark these names as unknown from here on."""
        for name in names:
            self._evaluator.names.pop(name, None)

    def _make_statement(
        self, place: StatementPath, kind: StatementKind, uses: frozenset[str], **said: Any
    ) -> Statement:
        self._order += 1
        path, guards = tuple(self._path), tuple(self._guards)
        return Statement(self._order, kind, self._tree, place, path, guards, uses, **said)

    # -- simple statements -----------------------------------------------------------------------

    def _read_simple_statement(self, line: Sequence[ast.stmt], place: StatementPath) -> Statement:
        if len(line) != 1:
            raise UnreadableSyntax("several statements on one line")
        match line[0]:
            case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Pass() | ast.Return():
                return self._make_statement(
                    place, StatementKind.INERT, self._tree.names_in_statement(line[0])
                )
            case ast.Expr(value=ast.Call() as call):
                uses = self._tree.names_in_statement(line[0])
                found = resolve_call(call, uses, self._path, self._tree, self._evaluator)
                return self._make_statement(
                    place,
                    StatementKind.OPERATE,
                    uses,
                    form=found.form,
                    arguments=found.arguments,
                    texts=found.texts,
                    accesses=found.accesses,
                )
            case ast.Assign() as assign:
                return self._read_assignment(assign, place)
        raise UnreadableSyntax(f"the statement `{ast.unparse(line[0]).splitlines()[0]}`")

    def _read_assignment(self, node: ast.Assign, place: StatementPath) -> Statement:
        names = _target_names(node)
        # Rewrites move loads of it to other places, none of which lies before the first loop.
        first = self._in_kernel and not self._evaluator.trips and not self._guards
        if first and self._bind_constant(node.value, names):
            uses = self._tree.names_in_statement(node)
            return self._make_statement(place, StatementKind.INERT, uses, binds=frozenset(names))
        tensor = self._read_declaration(node.value, names)
        value = tensor if tensor is not None else self._evaluate_or_none(node.value)
        uses, binds = self._tree.names_in_statement(node), frozenset(names)
        self._bind_target(node.targets[0], value)
        if isinstance(value, Affine) and value.is_const and isinstance(node.value, ast.Constant):
            self._constants[names[0]] = IntegerConstant(names[0], value.const, place)
        if tensor is None:
            decided, arguments = dict(self._evaluator.decided), dict.fromkeys(names, value)
            return self._make_statement(
                place, StatementKind.BIND, uses, binds=binds, arguments=arguments, texts=decided
            )
        texts = _array_texts(self._tree.text_of(node))
        return self._make_statement(
            place, StatementKind.DECLARE, uses, binds=binds, tensor=tensor, texts=texts
        )

    def _bind_constant(self, node: ast.expr, names: Sequence[str]) -> bool:
        """Bind a name to data in HBM that nothing writes; False if the expression makes no such data."""
        if (
            not isinstance(node, ast.Call)
            or len(names) != 1
            or self._evaluate_quietly(node.func) != LibrarySymbol("nl.shared_constant")
        ):
            return False
        if len(node.args) != 1 or node.keywords:
            raise UnreadableSyntax(f"the constant `{ast.unparse(node)}`")
        shape, dtype = read_array_layout(node.args[0], self._evaluator)
        self._bind_name(names[0], Tensor(self._next_tensor_id(), names[0], shape, dtype, "hbm"))
        return True

    def _evaluate_or_none(self, node: ast.expr) -> Value:
        """The value; at module level a name that cannot be read is simply unknown."""
        try:
            return self._evaluator.evaluate(node)
        except UnreadableSyntax:
            if self._in_kernel:
                raise
            return None

    def _bind_target(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._bind_name(target.id, value)
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
            for part, inner in zip(target.elts, value, strict=True):
                self._bind_target(part, inner)
        else:
            raise UnreadableSyntax("an assignment that does not bind names")

    def _bind_name(self, name: str, value: Value) -> None:
        self._bound[name] = self._bound.get(name, 0) + 1
        if value is None:
            self._evaluator.names.pop(name, None)
        else:
            self._evaluator.names[name] = value

    def _read_declaration(self, node: ast.expr, names: Sequence[str]) -> Tensor | None:
        copies, call = self._read_list_sizes(node)
        if (
            not isinstance(call, ast.Call)
            or len(names) != 1
            or not _is_ndarray(self._evaluate_quietly(call.func))
        ):
            return None
        if len(call.args) != 1 or any(word.arg not in {"dtype", "buffer", "name"} for word in call.keywords):
            raise UnreadableSyntax(f"the declaration `{ast.unparse(call)}`")
        words = {word.arg: self._evaluator.evaluate(word.value) for word in call.keywords}
        dtype, buffer = words.get("dtype"), words.get("buffer", LibrarySymbol("nl.sbuf"))
        if not isinstance(dtype, LibrarySymbol) or not isinstance(buffer, LibrarySymbol):
            raise UnreadableSyntax(f"the declaration `{ast.unparse(call)}`")
        shape = evaluate_shape(self._evaluator.evaluate(call.args[0]))
        home = tuple(loop.id for loop in self._path)
        return Tensor(self._next_tensor_id(), names[0], shape, dtype.leaf, buffer.leaf, home, copies)

    def _read_list_sizes(self, node: ast.expr) -> tuple[tuple[int, ...], ast.expr]:
        """Sizes of the list comprehensions around a declaration, outermost first, and the declaration."""
        sizes: list[int] = []
        while isinstance(node, ast.ListComp) and len(node.generators) == 1:
            found = self._evaluator.evaluate_range(node.generators[0].iter)
            if found is None or node.generators[0].ifs:
                raise UnreadableSyntax("a list comprehension over something else than a range")
            sizes.append(found[2])
            node = node.elt
        return tuple(sizes), node

    def _evaluate_quietly(self, node: ast.expr) -> Value:
        try:
            return self._evaluator.evaluate(node)
        except UnreadableSyntax:
            return None

    def _next_tensor_id(self) -> int:
        self._tensors += 1
        return self._tensors


def _exits_early(item: ast.stmt | ast.ExceptHandler | ast.match_case, *ways: type[ast.stmt]) -> bool:
    """Whether a statement leaves its surroundings in one of these ways; a nested loop's `break` does not."""
    if isinstance(item, ways):
        return True
    if isinstance(item, _SCOPE_SYNTAX):
        return False
    inner: Iterable[ast.AST] = ast.iter_child_nodes(item)
    if isinstance(item, _LOOP_SYNTAX) and ast.Return not in ways:
        inner = item.orelse
    return any(isinstance(one, _BLOCK_SYNTAX) and _exits_early(one, *ways) for one in inner)


def _range_texts(iterable: ast.expr) -> tuple[str, str]:
    assert isinstance(iterable, ast.Call)
    texts = [ast.unparse(item) for item in iterable.args]
    return (texts[0], texts[1]) if len(texts) > 1 else ("0", texts[0])


def _target_names(node: ast.Assign) -> list[str]:
    if len(node.targets) != 1:
        raise UnreadableSyntax("a chained assignment")
    return [item.id for item in ast.walk(node.targets[0]) if isinstance(item, ast.Name)]


def _is_ndarray(value: Value) -> bool:
    return isinstance(value, LibrarySymbol) and value.path == "nl.ndarray"


@lru_cache(maxsize=MAX_CACHED_STATEMENTS)
def _array_texts(declaration: str) -> Mapping[str, str]:
    """Sources of a declaration's arguments."""
    (node,) = ast.parse(declaration).body
    assert isinstance(node, ast.Assign)
    call = node.value
    while isinstance(call, ast.ListComp):
        call = call.elt
    assert isinstance(call, ast.Call)
    words = {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}
    return words | {"shape": ast.unparse(call.args[0])}


def _explain_missing_imports(text: str) -> str:
    """Explain why a module's instructions are unknown."""
    if re.search(r"^\s*(from|import)\s+neuronxcc\b", text, re.MULTILINE):
        return (
            "kernels of the legacy namespace neuronxcc.nki are rewritten only after they were ported to nki: "
            "their instructions return tiles and take masks, which has no counterpart"
        )
    return "the module does not import nki.isa and nki.language under a name"
