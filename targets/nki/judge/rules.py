"""Static rules: what a kernel's text may contain, checked on its syntax tree before anything runs.

This is an allow-list: a few modules, of some only some names; of the built-in functions those that compute.
No private or dunder names, no frames, no raw memory, no assignment to a module, no code at import time beyond
definitions and constants. The jail provides the security; these rules report early and clearly, with a line,
what a kernel has no use for.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

from state.model import ErrorInfo
from targets.nki.judge.allowed_names import BUILTINS, MODULES, SPECIAL_METHODS, UNSAFE
from targets.nki.judge.normalise import parse_source

_ALL_BUILTINS = frozenset(dir(builtins))

_TOP_LEVEL = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
_NOT_CONSTANT = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
Nodes = Sequence[ast.AST]
"""All nodes of a syntax tree: a large one is walked once."""

_ASYNC = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
_BUILTIN_CALLS_AT_TOP = frozenset(
    {"abs", "bool", "dict", "float", "frozenset", "int", "len", "list", "max", "min", "pow", "range", "round"}
    | {"set", "slice", "str", "sum", "tuple"}
)
_CONSTANT_MODULES = frozenset(MODULES) - {name for name in MODULES if "nki" in name}
"""Modules whose functions only make values: calling them while a kernel is imported is ordinary Python."""

_CHANGING_DECORATORS = {"dataclass": "dataclasses", "total_ordering": "functools", "wraps": "functools"}
"""Decorators that change what they get, which could be the language's own, with their modules."""


@dataclass(frozen=True, slots=True)
class RuleOffence:
    """A broken rule: its stable code, where, and what to do instead."""

    code: str
    message: str
    line: int
    hint: str


def find_first_offence(source: bytes) -> ErrorInfo | None:
    """Return the first offence in a kernel's text; None if it may run."""
    try:
        found = check_source(parse_source(source), source.decode())
    except SyntaxError as error:
        return ErrorInfo(code="syntax_error", message=str(error.msg), line=error.lineno)
    if not found:
        return None
    first = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return ErrorInfo(code=first.code, message=first.message + more, line=first.line, hint=first.hint)


def check_source(tree: ast.Module, source: str) -> list[RuleOffence]:
    """Return every offence in a kernel's source, by line.

    Raises:
        SyntaxError: it parses, but Python would not compile it.
    """
    nodes = tuple(ast.walk(tree))
    found = [
        *_import_offences(nodes),
        *_namespace_offences(tree),
        *_name_offences(nodes, source),
        *_attribute_offences(nodes),
        *_definition_offences(nodes),
        *_module_value_offences(nodes),
        *_decorator_offences(nodes),
        *_import_time_offences(tree),
        *_async_offences(nodes),
    ]
    return sorted(set(found), key=lambda offence: (offence.line, offence.code, offence.message))


def _import_offences(nodes: Nodes) -> Iterator[RuleOffence]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_offences(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from _module_offences(module, node.lineno)
            for alias in node.names:
                yield from _member_offences(module, alias.name, node.lineno)


def _namespace_offences(tree: ast.Module) -> Iterator[RuleOffence]:
    """Imports of `neuronxcc.nki` beside those of `nki`: two packages, whose tensors do not go together."""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    found: dict[str, ast.stmt] = {}
    for node in imports:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for root in {name.partition(".")[0] for name in names} & {"nki", "neuronxcc"}:
            found.setdefault(root, node)
    if len(found) == 2:
        last = max(found.values(), key=lambda node: node.lineno)
        text = "imports of `nki` and of `neuronxcc.nki`, which are different packages, in one kernel"
        hint = "import all of it from `nki`; `agentctl migrate KERNEL` writes a `neuronxcc` kernel anew"
        yield RuleOffence("mixed_namespaces", text, last.lineno, hint)


def _module_offences(name: str, line: int) -> Iterator[RuleOffence]:
    if name not in MODULES:
        allowed = ", ".join(name for name in MODULES if name != "__future__")
        yield RuleOffence("forbidden_import", f"import of {name}", line, f"a kernel may import {allowed}")


def _member_offences(module: str, name: str, line: int) -> Iterator[RuleOffence]:
    allowed = MODULES.get(module, frozenset())
    if module not in MODULES or f"{module}.{name}" in MODULES:
        return
    if name == "*" or name.startswith("_") or (allowed is not None and name not in allowed):
        hint = f"of {module} a kernel may use {', '.join(sorted(allowed or {'its public names'}))}"
        yield RuleOffence("forbidden_import", f"{name} from {module}", line, hint)


def _name_offences(nodes: Nodes, source: str) -> Iterator[RuleOffence]:
    """Built-ins that are not allowed, wherever Python would look one up, and dunder names anywhere."""
    lines: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name):
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    scopes = _symbol_table(source)
    readable = frozenset() if _binds_name("__name__", scopes) else frozenset({"__name__"})
    forbidden = _builtin_lookups(scopes) & (_ALL_BUILTINS - BUILTINS - readable)
    dunder = {name for name in lines if name.startswith("__") and name not in readable}
    for name in forbidden | dunder:
        hint = "a kernel computes with shapes and nki calls; use another name if it is your own"
        yield RuleOffence("forbidden_name", f"use of {name}", lines.get(name, 1), hint)


def _symbol_table(source: str) -> symtable.SymbolTable:
    try:
        return symtable.symtable(source, "kernel.py", "exec")
    except RecursionError as error:
        raise SyntaxError("the source is nested too deeply") from error


def _binds_name(name: str, table: symtable.SymbolTable) -> bool:
    """Whether a scope rebinds the name, or deletes it."""
    own = False
    if name in table.get_identifiers():
        symbol = table.lookup(name)
        own = symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter()
    return own or any(_binds_name(name, child) for child in table.get_children())


def _builtin_lookups(table: symtable.SymbolTable) -> set[str]:
    """Names that may reach the built-ins at run time.

    In functions those are the globals. Names bound at module or class level count as well: before they are
    bound there, and after a `del`, they mean the built-in.
    """
    # Not `get_symbols`: it takes time for each pair of a name and a function.
    found = set(table.get_globals() if isinstance(table, symtable.Function) else table.get_identifiers())
    return found.union(*(_builtin_lookups(child) for child in table.get_children()))


def _decorator_offences(nodes: Nodes) -> Iterator[RuleOffence]:
    """Decorators that change what they decorate, anywhere but on a definition of the kernel's own."""
    names = {
        alias.asname or alias.name: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if _CHANGING_DECORATORS.get(alias.name) == node.module
    }
    fine = {id(part) for node in nodes for part in _own_decorators(node, names)}
    for node in nodes:
        found = _decorator_name(node, names)
        if found and id(node) not in fine:
            hint = f"write @{found} right above a class"
            if found == "wraps":
                hint = "write @wraps(function) right above a def"
            text = f"another use of {_CHANGING_DECORATORS[found]}.{found}"
            yield RuleOffence("forbidden_name", text, getattr(node, "lineno", 0), hint)


def _decorator_name(node: ast.AST, names: Mapping[str, str]) -> str:
    """Return which of the decorators that change something a node names, or nothing."""
    match node:
        case ast.Name(id=name):
            return names.get(name, "")
        case ast.Attribute(attr=name) if name in _CHANGING_DECORATORS:
            return name
    return ""


def _own_decorators(node: ast.AST, names: Mapping[str, str]) -> Iterator[ast.expr]:
    """The names of decorators that get the definition itself: none below them returns something else."""
    match node:
        case ast.FunctionDef(decorator_list=[*_, ast.Call(func=called, args=[ast.Name()], keywords=[])]):
            if _decorator_name(called, names) == "wraps":
                yield called
        case ast.ClassDef(keywords=[], decorator_list=decorators):  # a metaclass returns what it likes
            for decorator in reversed(decorators):
                name = decorator
                if isinstance(decorator, ast.Call) and not decorator.args:
                    name = decorator.func
                if _decorator_name(name, names) not in {"dataclass", "total_ordering"}:
                    return
                yield name


def _attribute_offences(nodes: Nodes) -> Iterator[RuleOffence]:
    restricted = dict(_restricted_aliases(nodes))
    arrays = {id(part) for node in nodes for part in _annotated_arrays(node)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in arrays:
            yield from _check_attribute(node, restricted)
        elif isinstance(node, ast.MatchClass):
            yield from (
                _make_attribute_offence(name, node.lineno) for name in node.kwd_attrs if _is_unsafe(name)
            )


def _annotated_arrays(node: ast.AST) -> Iterator[ast.expr]:
    """`np.ndarray` as an annotation, or one side of `|` in it, where nothing can call it."""
    notes = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    while notes:
        match notes.pop():
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                notes += [left, right]
            case ast.Attribute(value=ast.Name(), attr="ndarray") as note:
                yield note


def _check_attribute(node: ast.Attribute, restricted: Mapping[str, str]) -> Iterator[RuleOffence]:
    if node.attr.startswith("_") and not _is_own_attribute(node):
        yield _make_attribute_offence(node.attr, node.lineno)
    elif isinstance(node.value, ast.Name) and node.value.id in restricted:
        yield from _member_offences(restricted[node.value.id], node.attr, node.lineno)
    elif node.attr in UNSAFE or _formats_attributes(node):
        yield _make_attribute_offence(node.attr, node.lineno)


def _is_own_attribute(node: ast.Attribute) -> bool:
    """Whether an underscored attribute belongs to its class, or is an inherited special method."""
    match node.value:
        case ast.Name(id="self"):
            return not node.attr.startswith("__")
        case ast.Call(func=ast.Name(id="super"), args=[]):
            return node.attr in SPECIAL_METHODS
    return False


def _formats_attributes(node: ast.Attribute) -> bool:
    """Whether a format call looks up attributes, or might: only a literal format string can be checked."""
    if node.attr not in {"format", "format_map"}:
        return False
    match node.value:
        case ast.Constant(value=str() as text):
            return any(_is_unsafe(name) for name in _format_lookups(text))
    return True


def _format_lookups(text: str) -> Iterator[str]:
    """The attributes that the fields of a format string, and those in their specifications, look up."""
    try:
        fields = list(Formatter().parse(text))
    except ValueError:  # not a format string; using it as one raises
        return
    for _, field, spec, _ in fields:
        yield from (field or "").split(".")[1:]
        yield from _format_lookups(spec or "")


def _is_unsafe(name: str) -> bool:
    return name.startswith("_") or name in UNSAFE


def _make_attribute_offence(name: str, line: int) -> RuleOffence:
    return RuleOffence(
        "forbidden_attribute", f"use of attribute {name}", line, "a kernel uses public names only"
    )


def _definition_offences(nodes: Nodes) -> Iterator[RuleOffence]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("__"):
            if node.name not in SPECIAL_METHODS:
                hint = "give it a name of your own"
                yield RuleOffence("forbidden_name", f"a method {node.name}", node.lineno, hint)
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.Import | ast.ImportFrom):
                    hint = "import at the top of the file"
                    yield RuleOffence("forbidden_import", "an import in a class", part.lineno, hint)


def _module_value_offences(nodes: Nodes) -> Iterator[RuleOffence]:
    """Modules passed on under names that the rules do not follow, and assignments to modules."""
    restricted = dict(_restricted_aliases(nodes))
    imported = set(_imported_names(nodes))
    looked_into = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in restricted and id(node) not in looked_into:
            hint = f"name what is needed of it: {node.id}.name"
            yield RuleOffence("forbidden_name", f"use of the module {node.id} as a value", node.lineno, hint)
        elif (
            isinstance(node, ast.Attribute)
            and not isinstance(node.ctx, ast.Load)
            and _root_name(node) in imported
        ):
            text = f"assignment to {ast.unparse(node)}"
            hint = "what is imported stays as it is; use a name of your own"
            yield RuleOffence("forbidden_statement", text, node.lineno, hint)


def _root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported_names(nodes: Nodes) -> Iterator[str]:
    for node in nodes:
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else []:
            yield alias.asname or alias.name.partition(".")[0]


def _restricted_aliases(nodes: Nodes) -> Iterator[tuple[str, str]]:
    """Variable and module, for imported modules of which only some names may be used."""
    for node in nodes:
        for alias in node.names if isinstance(node, ast.Import) else []:
            if MODULES.get(alias.name) is not None:
                yield alias.asname or alias.name, alias.name


def _import_time_offences(tree: ast.Module) -> Iterator[RuleOffence]:
    hint = "a kernel file holds imports, constants and functions"
    makers = set(_constant_makers(tree))
    for node in tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not isinstance(node, _TOP_LEVEL) and not docstring and not _is_main_guard(node):
            text = f"{type(node).__name__} at import time"
            yield RuleOffence("import_side_effect", text, node.lineno, hint)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for part in ast.walk(node):
                if isinstance(part, _NOT_CONSTANT) and not _makes_constant(part, makers):
                    yield RuleOffence("import_side_effect", "a call at import time", part.lineno, hint)


def _is_main_guard(node: ast.AST) -> bool:
    """Whether this is `if __name__ == "__main__":`, which is never true where kernels are traced."""
    match node:
        case ast.If(
            test=ast.Compare(
                left=ast.Name("__name__"), ops=[ast.Eq()], comparators=[ast.Constant("__main__")]
            ),
            orelse=[],
        ):
            return True
    return False


def _constant_makers(tree: ast.Module) -> Iterator[str]:
    """Names whose calls only make values: built-ins, what such modules have, and the file's own classes."""
    yield from _BUILTIN_CALLS_AT_TOP
    for node in tree.body:
        match node:
            case ast.Import(names=names):
                yield from (item.asname or item.name for item in names if item.name in _CONSTANT_MODULES)
            case ast.ImportFrom(module=module, names=names) if module in _CONSTANT_MODULES:
                yield from (item.asname or item.name for item in names)
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="namedtuple"))):
                yield name


def _makes_constant(node: ast.AST, makers: Collection[str]) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name))):
            return name in makers
    return False


def _async_offences(nodes: Nodes) -> Iterator[RuleOffence]:
    for node in nodes:
        if isinstance(node, _ASYNC):
            yield RuleOffence("forbidden_statement", "async code", node.lineno, "write plain functions")
