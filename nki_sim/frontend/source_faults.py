"""Finds names and arguments that a kernel file has wrong, without running it: all of them at once.

Tracing stops at the first error, so whoever mends a kernel meets such errors one after the other. What only a
trace can tell (shapes, memories, operands) is not looked for, and nothing here refuses a kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import ModuleType

from nki_sim.errors import KernelError
from nki_sim.frontend import isa
from nki_sim.frontend.modules import MODULES
from nki_sim.operators import OPERATORS
from nki_sim.refusals import AbsentNameError

_PACKAGE = "nki"
_CHECKED = ("nki.language", "nki.isa")
"""The modules whose names kernels get wrong."""


def list_source_faults(source: str) -> list[KernelError]:
    """Return what names of `nki.language` and `nki.isa` and their arguments have wrong, by line.

    A file that does not parse has none. What stands in a `try` may be there to be caught, and is left out.
    """
    try:
        tree = ast.parse(source)
        modules = _find_modules(tree)
        found = [fault for node in _walk(tree) for fault in _list_node_faults(node, modules)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return sorted(found, key=lambda error: (error.line or 0, error.message))


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.Try | ast.TryStar):
            yield node
            waiting += ast.iter_child_nodes(node)


def _find_modules(tree: ast.AST) -> dict[str, str]:
    """Return the modules of kernels by the names that the file gives them; no name that it binds again."""
    found: dict[str, str] = {}
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {one.asname: one.name for one in names if one.asname}
                if any(not one.asname and _is_of_package(one.name) for one in names):
                    found[_PACKAGE] = _PACKAGE
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found |= {one.asname or one.name: f"{module}.{one.name}" for one in names}
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
    return {name: module for name, module in found.items() if name not in bound and _is_of_package(module)}


def _is_of_package(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def _list_node_faults(node: ast.AST, modules: Mapping[str, str]) -> Iterator[KernelError]:
    match node:
        case ast.Attribute(value=value, attr=attr, ctx=ast.Load()):
            module = _read_module(value, modules)
            if module in _CHECKED:
                yield from _find_name_fault(MODULES[module], attr, node.lineno)
        case ast.Call(func=ast.Attribute(value=value, attr=attr), keywords=keywords):
            if _read_module(value, modules) == "nki.isa" and attr in OPERATORS and attr in isa.__all__:
                for one in keywords:
                    yield from _find_argument_fault(attr, one)


def _read_module(value: ast.expr, modules: Mapping[str, str]) -> str:
    match value:
        case ast.Name(id=name):
            return modules.get(name, "")
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            return f"{modules[name]}.{attr}" if name in modules else ""
    return ""


def _find_name_fault(module: ModuleType, name: str, line: int) -> Iterator[KernelError]:
    try:
        getattr(module, name)
    except AbsentNameError as error:
        said = error.refusal
        yield KernelError(said.code, said.message, line, said.hint)
    except AttributeError:
        return


def _find_argument_fault(operator: str, said: ast.keyword) -> Iterator[KernelError]:
    name = said.arg
    if name is None or (isinstance(said.value, ast.Constant) and said.value.value is None):
        return
    if not isa.is_known_argument(operator, name):
        hint = isa.hint_at_argument(operator, name)
        yield KernelError(
            "unsupported_argument", f"nisa.{operator} takes no {name}=", said.value.lineno, hint
        )
