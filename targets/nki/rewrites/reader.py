"""Reads a kernel's source into a `Kernel`: which loops run, what every statement reads and writes.

Reading never executes the kernel. A construct it cannot express makes one opaque statement (with the
reason), which rewrites treat as a wall; only source that has no kernel at all is an error.
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
from targets.nki.rewrites.calls import called
from targets.nki.rewrites.evaluate import Evaluator, shape_of
from targets.nki.rewrites.model import (
    Argument,
    ArrayArgument,
    Constant,
    Guard,
    Kernel,
    Kind,
    Loop,
    Node,
    Statement,
)
from targets.nki.rewrites.tree import COMPOUND, KEPT, Place, SourceError, Tree, lines_of
from targets.nki.rewrites.values import Affine, Symbol, Tensor, Undecided, Unreadable, Value

LIBRARIES = {"nki": "nki", "nki.isa": "nisa", "nki.language": "nl"}

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_HOLDERS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read(source: str, arguments: Sequence[Argument], target: Target) -> Kernel:
    """Read the kernel of a module for given argument shapes.

    Raises:
        SourceError: the source does not parse, or has no single kernel with these arguments.
    """
    return _Reader(Tree(source), target).kernel(arguments)


class _Reader:
    def __init__(self, tree: Tree, target: Target) -> None:
        self._tree = tree
        shadowed = frozenset[str]().union(*map(tree.bindings, tree.body))
        self._evaluator = Evaluator(target, shadowed)
        self._constants: dict[str, Constant] = {}
        self._order = 0
        self._in_kernel = False
        self._tensors = 0
        self._path: list[Loop] = []
        self._guards: list[Guard] = []
        self._bound: dict[str, int] = {}

    def kernel(self, arguments: Sequence[Argument]) -> Kernel:
        lines = list(lines_of(self._tree.body))
        for number, line in enumerate(lines):
            self._module_level(line, (number,))
        function = self._find()
        place = (lines.index([function]),)
        self._in_kernel = True
        self._bind_arguments(function, arguments)
        if not self._tree.indented(function.body):
            raise SourceError("the kernel's body is a single line")
        early = function.body[:-1] if isinstance(function.body[-1], ast.Return) else function.body
        if any(_is_left(line, ast.Return) for line in early):
            raise SourceError("the kernel returns before its end")
        nodes = self._block(function.body, place)
        aliases = {value.path: name for name, value in self._symbols().items()}
        if not {"nisa", "nl"} <= aliases.keys():
            raise SourceError(_foreign(self._tree.text))
        return Kernel(
            tree=self._tree,
            place=place,
            body=nodes,
            arguments=tuple(arguments),
            constants={name: item for name, item in self._constants.items() if self._bound[name] == 1},
            nisa=aliases["nisa"],
            nl=aliases["nl"],
        )

    def _symbols(self) -> dict[str, Symbol]:
        return {name: item for name, item in self._evaluator.names.items() if isinstance(item, Symbol)}

    # -- module and signature --------------------------------------------------------------------

    def _module_level(self, line: Sequence[ast.stmt], place: Place) -> None:
        for item in line:
            if isinstance(item, ast.Assign):
                self._assign(item, place)
                continue
            bound = {item.name} if isinstance(item, ast.FunctionDef) else self._tree.bindings(item)
            self._rebound(bound)
            self._forget(bound)
            if isinstance(item, ast.Import | ast.ImportFrom):
                self._import(item)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            library = LIBRARIES.get(prefix + alias.name)
            if library is not None and (prefix or alias.asname or "." not in alias.name):
                self._evaluator.names[alias.asname or alias.name] = Symbol(library)

    def _find(self) -> ast.FunctionDef:
        functions = [item for item in self._tree.body if isinstance(item, ast.FunctionDef)]
        jitted = [item for item in functions if any("jit" in ast.unparse(d) for d in item.decorator_list)]
        named = [item for item in jitted if item.name == "kernel"]
        if len(named or jitted) != 1:
            raise SourceError(f"expected one @nki.jit kernel, found {len(jitted)}")
        return (named or jitted)[0]

    def _bind_arguments(self, function: ast.FunctionDef, arguments: Sequence[Argument]) -> None:
        names = [item.arg for item in function.args.args]
        if len(names) < len(arguments):
            raise SourceError(f"{function.name} takes {len(names)} arguments, {len(arguments)} given")
        for name, item in zip(names, arguments, strict=False):
            if isinstance(item, ArrayArgument):
                self._set(name, Tensor(self._next_tensor(), name, item.shape, item.dtype, "hbm"))
            else:
                self._set(name, item if isinstance(item, bool | float) else Affine(item))

    # -- blocks ----------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], place: Place) -> list[Node]:
        return [self._node(line, (*place, number)) for number, line in enumerate(lines_of(body))]

    def _node(self, line: list[ast.stmt], place: Place) -> Node:
        self._evaluator.decided.clear()
        item = line[0]
        try:
            if isinstance(item, ast.For):
                if any(_is_left(one, ast.Break, ast.Continue) for one in item.body):
                    return self._opaque(line, place, "a loop whose iterations may end early")
                loop = self._loop(item, place)
                return loop or self._opaque(line, place, "a loop whose trip count is not known")
            if isinstance(item, ast.If):
                guard = self._guard(item, place)
                return guard or self._opaque(line, place, "a condition that is not on one loop index")
            if isinstance(item, COMPOUND):
                return self._opaque(line, place, f"a {type(item).__name__.lower()} statement")
            return self._simple(line, place)
        except Undecided as error:
            return replace(self._opaque(line, place, str(error)), undecided=error.difference)
        except Unreadable as error:
            return self._opaque(line, place, str(error))

    def _loop(self, item: ast.For, place: Place) -> Loop | None:
        if not isinstance(item.target, ast.Name) or item.orelse or not self._tree.indented(item.body):
            return None
        try:
            found = self._evaluator.range_of(item.iter)
        except Undecided:
            raise
        except Unreadable:
            return None
        if found is None:
            return None
        start, step, trips = found
        first, stop = _range_texts(item.iter)
        name = item.target.id
        identity = f"{name}@{len(self._evaluator.trips)}"
        loop = Loop(identity, name, start, step, trips, first, stop, self._tree, place, tuple(self._path))
        self._evaluator.trips[loop.id] = trips
        # Until the body binds them, its names hold what the iteration before left; after it, the last one.
        bound = self._tree.bindings(item)
        self._forget(bound)
        self._set(name, start + Affine(0, ((loop.id, step),)))
        self._path.append(loop)
        loop.body.extend(self._block(item.body, place))
        self._path.pop()
        self._forget(bound)
        return loop

    def _guard(self, item: ast.If, place: Place) -> Guard | None:
        """`if index == value:`, true in exactly one iteration of the loops that make up the index."""
        test = item.test
        if item.orelse or not self._tree.indented(item.body):
            return None
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq) or len(test.ops) != 1:
            return None
        try:
            left, right = self._evaluator.value(test.left), self._evaluator.value(test.comparators[0])
        except Undecided:
            raise
        except Unreadable:
            return None
        if not isinstance(left, Affine) or not isinstance(right, Affine):
            return None
        loops = self._only_iteration(left - right)
        if not loops:
            return None
        guard = Guard(loops, left - right, self._tree, place, tuple(self._path))
        self._guards.append(guard)
        guard.body.extend(self._block(item.body, place))
        self._guards.pop()
        # What its body binds means that in one iteration, and something else in the others.
        self._forget(self._tree.bindings(item))
        return guard

    def _only_iteration(self, difference: Affine) -> tuple[Loop, ...]:
        """The loops of which one iteration makes an affine form zero; none if more may, or none does."""
        around = {item.id: item for item in self._path}
        if not difference.loops or not difference.loops <= around.keys():
            return ()
        loops = tuple(around[name] for name, _ in difference.terms)
        if len(loops) == 1:
            number, rest = divmod(-difference.const, difference.terms[0][1])
            return loops if rest == 0 and 0 <= number < loops[0].trips else ()
        low, high = difference.span(self._evaluator.trips)
        at_an_end = len({factor > 0 for _, factor in difference.terms}) == 1 and 0 in {low, high}
        return loops if at_an_end else ()

    def _opaque(self, line: Sequence[ast.stmt], place: Place, reason: str) -> Statement:
        names = frozenset[str]().union(*map(self._tree.names, line))
        self._rebound(names)
        self._forget({name for one in line for name in self._tree.bindings(one)})
        return self._statement(place, Kind.OPAQUE, names, binds=names, reason=reason)

    def _rebound(self, names: AbstractSet[str]) -> None:
        for name in names:
            self._bound[name] = self._bound.get(name, 0) + 1

    def _forget(self, names: AbstractSet[str]) -> None:
        """From here on these names mean something that is not known."""
        for name in names:
            self._evaluator.names.pop(name, None)

    def _statement(self, place: Place, kind: Kind, uses: frozenset[str], **said: Any) -> Statement:
        self._order += 1
        path, guards = tuple(self._path), tuple(self._guards)
        return Statement(self._order, kind, self._tree, place, path, guards, uses, **said)

    # -- simple statements -----------------------------------------------------------------------

    def _simple(self, line: Sequence[ast.stmt], place: Place) -> Statement:
        if len(line) != 1:
            raise Unreadable("several statements on one line")
        match line[0]:
            case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Pass() | ast.Return():
                return self._statement(place, Kind.INERT, self._tree.names(line[0]))
            case ast.Expr(value=ast.Call() as call):
                uses = self._tree.names(line[0])
                found = called(call, uses, self._path, self._tree, self._evaluator)
                return self._statement(
                    place,
                    Kind.OPERATE,
                    uses,
                    form=found.form,
                    arguments=found.arguments,
                    texts=found.texts,
                    accesses=found.accesses,
                )
            case ast.Assign() as assign:
                return self._assign(assign, place)
        raise Unreadable(f"the statement `{ast.unparse(line[0]).splitlines()[0]}`")

    def _assign(self, node: ast.Assign, place: Place) -> Statement:
        names = _targets(node)
        tensor = self._declaration(node.value, names)
        value = tensor if tensor is not None else self._quiet(node.value)
        uses, binds = self._tree.names(node), frozenset(names)
        self._bind(node.targets[0], value)
        if isinstance(value, Affine) and value.is_const and isinstance(node.value, ast.Constant):
            self._constants[names[0]] = Constant(names[0], value.const, place)
        if tensor is None:
            decided, arguments = dict(self._evaluator.decided), dict.fromkeys(names, value)
            return self._statement(place, Kind.BIND, uses, binds=binds, arguments=arguments, texts=decided)
        texts = _array_texts(self._tree.text_of(node))
        return self._statement(place, Kind.DECLARE, uses, binds=binds, tensor=tensor, texts=texts)

    def _quiet(self, node: ast.expr) -> Value:
        """The value; at module level a name that cannot be read is simply not known."""
        try:
            return self._evaluator.value(node)
        except Unreadable:
            if self._in_kernel:
                raise
            return None

    def _bind(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._set(target.id, value)
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
            for part, inner in zip(target.elts, value, strict=True):
                self._bind(part, inner)
        else:
            raise Unreadable("an assignment that does not bind names")

    def _set(self, name: str, value: Value) -> None:
        self._bound[name] = self._bound.get(name, 0) + 1
        if value is None:
            self._evaluator.names.pop(name, None)
        else:
            self._evaluator.names[name] = value

    def _declaration(self, node: ast.expr, names: Sequence[str]) -> Tensor | None:
        copies, call = self._copies(node)
        if not isinstance(call, ast.Call) or len(names) != 1 or not _is_array(self._quiet_symbol(call.func)):
            return None
        if len(call.args) != 1 or any(word.arg not in {"dtype", "buffer", "name"} for word in call.keywords):
            raise Unreadable(f"the declaration `{ast.unparse(call)}`")
        words = {word.arg: self._evaluator.value(word.value) for word in call.keywords}
        dtype, buffer = words.get("dtype"), words.get("buffer", Symbol("nl.sbuf"))
        if not isinstance(dtype, Symbol) or not isinstance(buffer, Symbol):
            raise Unreadable(f"the declaration `{ast.unparse(call)}`")
        shape = shape_of(self._evaluator.value(call.args[0]))
        home = tuple(loop.id for loop in self._path)
        return Tensor(self._next_tensor(), names[0], shape, dtype.leaf, buffer.leaf, home, copies)

    def _copies(self, node: ast.expr) -> tuple[tuple[int, ...], ast.expr]:
        """Sizes of the list comprehensions around a declaration, outermost first, and the declaration."""
        sizes: list[int] = []
        while isinstance(node, ast.ListComp) and len(node.generators) == 1:
            found = self._evaluator.range_of(node.generators[0].iter)
            if found is None or node.generators[0].ifs:
                raise Unreadable("a list comprehension over something else than a range")
            sizes.append(found[2])
            node = node.elt
        return tuple(sizes), node

    def _quiet_symbol(self, node: ast.expr) -> Value:
        try:
            return self._evaluator.value(node)
        except Unreadable:
            return None

    def _next_tensor(self) -> int:
        self._tensors += 1
        return self._tensors


def _is_left(item: ast.stmt | ast.ExceptHandler | ast.match_case, *ways: type[ast.stmt]) -> bool:
    """Whether a statement ends what is around it in one of some ways; what ends a loop in it ends no more."""
    if isinstance(item, ways):
        return True
    if isinstance(item, _FUNCTIONS):
        return False
    inner: Iterable[ast.AST] = ast.iter_child_nodes(item)
    if isinstance(item, _LOOPS) and ast.Return not in ways:
        inner = item.orelse
    return any(isinstance(one, _HOLDERS) and _is_left(one, *ways) for one in inner)


def _range_texts(iterable: ast.expr) -> tuple[str, str]:
    assert isinstance(iterable, ast.Call)
    texts = [ast.unparse(item) for item in iterable.args]
    return (texts[0], texts[1]) if len(texts) > 1 else ("0", texts[0])


def _targets(node: ast.Assign) -> list[str]:
    if len(node.targets) != 1:
        raise Unreadable("a chained assignment")
    return [item.id for item in ast.walk(node.targets[0]) if isinstance(item, ast.Name)]


def _is_array(value: Value) -> bool:
    return isinstance(value, Symbol) and value.path == "nl.ndarray"


@lru_cache(maxsize=KEPT)
def _array_texts(declaration: str) -> Mapping[str, str]:
    """Sources of the arguments of a declaration."""
    (node,) = ast.parse(declaration).body
    assert isinstance(node, ast.Assign)
    call = node.value
    while isinstance(call, ast.ListComp):
        call = call.elt
    assert isinstance(call, ast.Call)
    words = {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}
    return words | {"shape": ast.unparse(call.args[0])}


def _foreign(text: str) -> str:
    """Why a module's instructions are not known."""
    if re.search(r"^\s*(from|import)\s+neuronxcc\b", text, re.MULTILINE):
        return (
            "kernels of the legacy namespace neuronxcc.nki are judged but not rewritten: their instructions "
            "return tiles and take masks, which has no counterpart; port the kernel to nki first"
        )
    return "the module does not import nki.isa and nki.language under a name"
