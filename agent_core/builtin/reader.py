"""Reads a kernel's source into a `Kernel`: which loops run, what every statement reads and writes.

Reading never executes the kernel. A construct it cannot express makes one opaque statement (with the
reason), which rewrites treat as a wall; only source that has no kernel at all is an error.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from agent_core.builtin.evaluate import Evaluator, shape_of
from agent_core.builtin.instructions import accesses_of, form_of, operator_of
from agent_core.builtin.model import (
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
from agent_core.builtin.values import Affine, Symbol, Tensor, Unreadable, Value
from nki_sim.targets import Target

LIBRARIES = {"nki": "nki", "nki.isa": "nisa", "nki.language": "nl"}


class SourceError(Exception):
    """The source holds no kernel that can be read; the message says why."""


def read(source: str, arguments: Sequence[Argument], target: Target) -> Kernel:
    """Read the kernel of a module for given argument shapes.

    Raises:
        SourceError: the source does not parse, or has no single kernel with these arguments.
    """
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise SourceError(f"the source does not parse: {error.message}") from error
    return _Reader(module, target).kernel(arguments)


class _Reader:
    def __init__(self, module: cst.Module, target: Target) -> None:
        self._module = module
        self._evaluator = Evaluator(target)
        self._constants: dict[str, Constant] = {}
        self._order = 0
        self._in_kernel = False
        self._tensors = 0
        self._path: list[Loop] = []
        self._guards: list[Guard] = []
        self._bound: dict[str, int] = {}

    def kernel(self, arguments: Sequence[Argument]) -> Kernel:
        for item in self._module.body:
            self._module_level(item)
        function = self._find()
        self._in_kernel = True
        self._bind_arguments(function, arguments)
        if not isinstance(function.body, cst.IndentedBlock):
            raise SourceError("the kernel's body is a single line")
        nodes = self._block(function.body.body)
        aliases = {value.path: name for name, value in self._symbols().items()}
        if not {"nisa", "nl"} <= aliases.keys():
            raise SourceError("the module does not import nki.isa and nki.language under a name")
        return Kernel(
            module=self._module,
            function=function,
            body=nodes,
            arguments=tuple(arguments),
            constants={name: item for name, item in self._constants.items() if self._bound[name] == 1},
            names=frozenset(re.findall(r"[A-Za-z_]\w*", self._module.code)),
            nisa=aliases["nisa"],
            nl=aliases["nl"],
        )

    def _symbols(self) -> dict[str, Symbol]:
        return {name: item for name, item in self._evaluator.names.items() if isinstance(item, Symbol)}

    # -- module and signature --------------------------------------------------------------------

    def _module_level(self, item: cst.BaseStatement | cst.BaseCompoundStatement) -> None:
        if not isinstance(item, cst.SimpleStatementLine):
            return
        for parsed in self._parse(item):
            if isinstance(parsed, ast.Import | ast.ImportFrom):
                self._import(parsed)
            elif isinstance(parsed, ast.Assign):
                self._assign(parsed, item)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            library = LIBRARIES.get(prefix + alias.name)
            if library is not None and (prefix or alias.asname or "." not in alias.name):
                self._evaluator.names[alias.asname or alias.name] = Symbol(library)

    def _find(self) -> cst.FunctionDef:
        functions = [item for item in self._module.body if isinstance(item, cst.FunctionDef)]
        jitted = [item for item in functions if any("jit" in self._code(d) for d in item.decorators)]
        named = [item for item in jitted if item.name.value == "kernel"]
        if len(named or jitted) != 1:
            raise SourceError(f"expected one @nki.jit kernel, found {len(jitted)}")
        return (named or jitted)[0]

    def _bind_arguments(self, function: cst.FunctionDef, arguments: Sequence[Argument]) -> None:
        names = [item.name.value for item in function.params.params]
        if len(names) < len(arguments):
            raise SourceError(f"{function.name.value} takes {len(names)} arguments, {len(arguments)} given")
        for name, item in zip(names, arguments, strict=False):
            if isinstance(item, ArrayArgument):
                self._set(name, Tensor(self._next_tensor(), name, item.shape, item.dtype, "hbm"))
            else:
                self._set(name, item if isinstance(item, bool | float) else Affine(item))

    # -- blocks ----------------------------------------------------------------------------------

    def _block(self, items: Sequence[cst.BaseStatement]) -> list[Node]:
        return [self._node(item) for item in items]

    def _node(self, item: cst.BaseStatement) -> Node:
        if isinstance(item, cst.For):
            return self._loop(item) or self._opaque(item, "a loop whose trip count is not known")
        if isinstance(item, cst.If):
            return self._guard(item) or self._opaque(item, "a condition that is not on one loop index")
        if not isinstance(item, cst.SimpleStatementLine):
            return self._opaque(item, f"a {type(item).__name__.lower()} statement")
        try:
            return self._simple(item)
        except Unreadable as error:
            return self._opaque(item, str(error))

    def _loop(self, item: cst.For) -> Loop | None:
        if (
            not isinstance(item.target, cst.Name)
            or item.orelse
            or not isinstance(item.body, cst.IndentedBlock)
        ):
            return None
        iterable = _expression(self._code(item.iter))
        try:
            found = self._evaluator.range_of(iterable)
        except Unreadable:
            return None
        if found is None:
            return None
        start, step, trips = found
        first, stop = _range_texts(iterable)
        name = item.target.value
        identity = f"{name}@{len(self._evaluator.trips)}"
        loop = Loop(identity, name, start, step, trips, first, stop, item, tuple(self._path))
        self._evaluator.trips[loop.id] = trips
        # Until the body binds them, its names hold what the iteration before left; after it, the last one.
        bound = _bindings(self._parse(item))
        self._forget(bound)
        self._set(name, start + Affine(0, ((loop.id, step),)))
        self._path.append(loop)
        loop.body.extend(self._block(item.body.body))
        self._path.pop()
        self._forget(bound)
        return loop

    def _guard(self, item: cst.If) -> Guard | None:
        """`if index == value:`, true in exactly one iteration of one loop around it."""
        test = _expression(self._code(item.test))
        if item.orelse or not isinstance(item.body, cst.IndentedBlock):
            return None
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq) or len(test.ops) != 1:
            return None
        try:
            left, right = self._evaluator.value(test.left), self._evaluator.value(test.comparators[0])
        except Unreadable:
            return None
        if not isinstance(left, Affine) or not isinstance(right, Affine):
            return None
        loop = self._only_iteration(left - right)
        if loop is None:
            return None
        guard = Guard(loop, item, tuple(self._path))
        self._guards.append(guard)
        guard.body.extend(self._block(item.body.body))
        self._guards.pop()
        return guard

    def _only_iteration(self, difference: Affine) -> Loop | None:
        """The loop of which one iteration makes an affine form zero; None if it depends on others too."""
        if len(difference.terms) != 1:
            return None
        ((name, factor),) = difference.terms
        number, rest = divmod(-difference.const, factor)
        loop = next((item for item in self._path if item.id == name), None)
        return loop if loop is not None and rest == 0 and 0 <= number < loop.trips else None

    def _opaque(self, item: cst.BaseStatement, reason: str) -> Statement:
        parsed = self._parse(item)
        names = _names(parsed)
        for name in names:
            self._bound[name] = self._bound.get(name, 0) + 1
        self._forget(_bindings(parsed))
        return replace(self._statement(item, Kind.OPAQUE, names), binds=names, reason=reason)

    def _forget(self, names: set[str]) -> None:
        """From here on these names mean something that is not known."""
        for name in names:
            self._evaluator.names.pop(name, None)

    def _statement(self, item: cst.BaseStatement, kind: Kind, uses: frozenset[str]) -> Statement:
        self._order += 1
        return Statement(self._order, kind, item, tuple(self._path), tuple(self._guards), uses)

    # -- simple statements -----------------------------------------------------------------------

    def _simple(self, item: cst.SimpleStatementLine) -> Statement:
        parsed = self._parse(item)
        if len(parsed) != 1:
            raise Unreadable("several statements on one line")
        match parsed[0]:
            case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Pass() | ast.Return():
                return self._statement(item, Kind.INERT, _names(parsed))
            case ast.Expr(value=ast.Call() as call):
                return self._instruction(item, call)
            case ast.Assign() as assign:
                return self._assign(assign, item)
        raise Unreadable(f"the statement `{ast.unparse(parsed[0]).splitlines()[0]}`")

    def _assign(self, node: ast.Assign, item: cst.SimpleStatementLine) -> Statement:
        names = _targets(node)
        tensor = self._declaration(node.value, names)
        value = tensor if tensor is not None else self._quiet(node.value)
        statement = self._statement(item, Kind.DECLARE if tensor else Kind.BIND, _names([node]))
        self._bind(node.targets[0], value)
        if isinstance(value, Affine) and value.is_const and isinstance(node.value, ast.Constant):
            self._constants[names[0]] = Constant(names[0], value.const, item)
        if tensor is None:
            return replace(statement, binds=frozenset(names), arguments=dict.fromkeys(names, value))
        texts = {word.arg: ast.unparse(word.value) for word in _array_call(node.value).keywords if word.arg}
        texts["shape"] = ast.unparse(_array_call(node.value).args[0])
        return replace(statement, binds=frozenset(names), tensor=tensor, texts=texts)

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

    # -- instructions ----------------------------------------------------------------------------

    def _instruction(self, item: cst.SimpleStatementLine, call: ast.Call) -> Statement:
        operator = operator_of(self._evaluator.value(call.func))
        if operator is None:
            raise Unreadable(f"the call `{ast.unparse(call.func)}`")
        words = self._words(call, [argument.name for argument in operator.signature])
        seen = {name: self._evaluator.view(node) for name, node in words.items()}
        views = {name: view for name, view in seen.items() if view is not None}
        arguments = {name: self._evaluator.value(words[name]) for name in words if name not in views}
        form = form_of(operator, views, arguments)
        arguments.pop("engine", None)
        return replace(
            self._statement(item, Kind.OPERATE, _names([ast.Expr(call)])),
            form=form,
            arguments=arguments,
            texts=dict(zip(words, self._argument_codes(item), strict=True)),
            accesses=tuple(accesses_of(operator, form, views, arguments)),
        )

    def _argument_codes(self, item: cst.SimpleStatementLine) -> list[str]:
        """The arguments of a call statement as they are written."""
        line = item.body[0]
        assert isinstance(line, cst.Expr)
        assert isinstance(line.value, cst.Call)
        return [self._code(arg.value) for arg in line.value.args]

    def _words(self, call: ast.Call, names: Sequence[str]) -> dict[str, ast.expr]:
        """Arguments by name, in the order written."""
        if len(call.args) > len(names) or any(word.arg is None for word in call.keywords):
            raise Unreadable(f"the arguments of `{ast.unparse(call.func)}`")
        words = dict(zip(names, call.args, strict=False))
        return words | {word.arg: word.value for word in call.keywords if word.arg}

    def _parse(self, item: cst.BaseStatement) -> list[ast.stmt]:
        return ast.parse(textwrap.dedent(self._code(item)).strip()).body

    def _code(self, node: cst.CSTNode) -> str:
        return self._module.code_for_node(node)


def _expression(code: str) -> ast.expr:
    return ast.parse(code.strip(), mode="eval").body


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


def _array_call(node: ast.expr) -> ast.Call:
    while isinstance(node, ast.ListComp):
        node = node.elt
    assert isinstance(node, ast.Call)
    return node


def _names(parsed: Sequence[ast.stmt]) -> frozenset[str]:
    return frozenset(node.id for item in parsed for node in ast.walk(item) if isinstance(node, ast.Name))


def _bindings(parsed: Sequence[ast.stmt]) -> set[str]:
    """Every name that statements bind, in whatever way."""
    nodes = [node for item in parsed for node in ast.walk(item)]
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    caught = [
        node.name for node in nodes if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar)
    ]
    return names | {name for name in caught if name}
