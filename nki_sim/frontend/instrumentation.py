"""Compiles a kernel's file with what Python itself leaves out.

Assignments that declare a tensor's shape, such as `data: nt.tensor[128, 512] = nl.zeros(...)`, are checked,
because Python ignores annotations of local variables. `and` between masks of the legacy namespace joins them
like `&`; Python would ask each for its truth. Where the kernel may catch an error, the error is looked at
first. `self._name` is not a name of the front end's. What a file imports stays as it is, under whatever name:
a change would reach kernels that are traced later, and could count calls where nothing looks. `print` makes
the text of its arguments itself, so that the kernel does not see it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FunctionType, ModuleType
from typing import Any

from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.storage import fail
from nki_sim.frontend.types import TensorType
from nki_sim.refusals import check_own_name, note_caught_error

_NAME = "__nki_annotated__"
_JOIN = "__nki_join__"
_CAUGHT = "__nki_caught__"
_OWN = "__nki_own__"
_ASSIGNED = "__nki_assigned__"
_PRINT = "__nki_print__"
_FORMAT = "__nki_format__"
_KEEP = "what is imported stays as it is; use a name of your own"
_PRINT_OPTIONS = frozenset({"end", "flush", "sep"})


class _Instrumenter(ast.NodeTransformer):
    """Calls the front end where a file declares a shape, catches an error, uses a private name, prints, or
    assigns an attribute.
    """

    def __init__(self, *, takes_print: bool) -> None:
        self._takes_print = takes_print

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        """Rewrite `name: note[...] = value` to pass the value through `_check_annotation`."""
        self.generic_visit(node)
        if node.value and isinstance(node.target, ast.Name) and isinstance(node.annotation, ast.Subscript):
            nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            note = ast.Lambda(args=nothing, body=node.annotation)
            node.value = _call(_NAME, ast.Constant(node.target.id), node.value, note, place=node.value)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        return self._watch(node, node.body)

    def visit_Try(self, node: ast.Try) -> ast.AST:
        return self._watch(node, node.finalbody)  # it may leave by `return` or `break`, which drops the error

    def visit_TryStar(self, node: ast.TryStar) -> ast.AST:
        return self._watch(node, node.finalbody)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._watch(node, node.body if node.name == "__exit__" else [])

    def _watch(self, node: ast.AST, body: list[ast.stmt]) -> ast.AST:
        """Let `note_caught_error` look at an error before these statements do."""
        self.generic_visit(node)
        if body:
            body.insert(0, ast.copy_location(ast.Expr(_call(_CAUGHT, place=body[0])), body[0]))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        """Pass the `self` of `self._name` through `check_own_name`: any function may call anything so.

        The owner of an attribute that is assigned or deleted goes through `_check_assigned`.
        """
        self.generic_visit(node)
        match node:
            case ast.Attribute(value=ast.Name("self") as owner, attr=name) if name.startswith("_"):
                node.value = _call(_OWN, owner, ast.Constant(name), place=owner)
        if not isinstance(node.ctx, ast.Load):
            module = ast.Name(id="__name__", ctx=ast.Load())
            node.value = _call(_ASSIGNED, node.value, ast.Constant(node.attr), module, place=node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Rewrite `print(value, f"{value}")` so that the front end, not the file, asks for texts."""
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name("print") as name) if self._takes_print and all(
                word.arg in _PRINT_OPTIONS for word in node.keywords
            ):
                name.id = _PRINT
                for part in node.args:
                    _take_fields(part)
        return node


def _take_fields(part: ast.expr) -> None:
    for field in part.values if isinstance(part, ast.JoinedStr) else []:
        if isinstance(field, ast.FormattedValue) and (field.conversion >= 0 or not field.format_spec):
            as_written = ast.Constant(field.conversion in {ord("a"), ord("r")})
            field.value = _call(_FORMAT, field.value, as_written, place=field.value)
            field.conversion = -1


def _call(name: str, *args: ast.expr, place: ast.expr | ast.stmt) -> ast.Call:
    made = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(args), keywords=[])
    return ast.fix_missing_locations(ast.copy_location(made, place))


class _MaskJoiner(ast.NodeTransformer):
    """Rewrites `a and b` to pass `a`, and `b` not yet evaluated, to `join_lazily`."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        binds = any(isinstance(part, ast.NamedExpr | ast.Yield | ast.YieldFrom) for part in ast.walk(node))
        if not isinstance(node.op, ast.And) or binds:  # a lambda would bind another name, and yield itself
            return node
        joined, *others = node.values
        for other in others:
            called = ast.Name(id=_JOIN, ctx=ast.Load())
            nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            later = ast.Lambda(args=nothing, body=other)
            joined = ast.copy_location(ast.Call(func=called, args=[joined, later], keywords=[]), node)
        return ast.fix_missing_locations(joined)


def _binds_print(tree: ast.Module) -> bool:
    """Whether `print` may be another function in a file."""
    bound = {
        getattr(node, field, None) for node in ast.walk(tree) for field in ("name", "asname", "arg", "rest")
    }
    return "print" in bound or any(
        isinstance(node, ast.Name) and node.id == "print" and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )


def _imports_legacy(tree: ast.Module) -> bool:
    for node in tree.body:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any(name.partition(".")[0] == "neuronxcc" for name in names):
            return True
    return False


@dataclass(frozen=True, slots=True)
class CompiledFile:
    """The code of a file, and the functions that its checks call, which its namespace has to hold."""

    code: CodeType
    functions: Mapping[str, Callable[..., Any]]


def compile_with_checks(tree: ast.Module, filename: str) -> CompiledFile:
    """Compile a file with its checks; the tree is changed for them.

    Raises:
        SyntaxError: it cannot be compiled.
    """
    functions: dict[str, Callable[..., Any]] = {
        _NAME: _check_annotation, _CAUGHT: note_caught_error, _OWN: check_own_name,
        _ASSIGNED: _check_assigned, _PRINT: _print, _FORMAT: _format,
    }  # fmt: skip
    tree = _Instrumenter(takes_print=not _binds_print(tree)).visit(tree)
    if _imports_legacy(tree):
        from nki_sim.frontend.legacy.masks import join_lazily  # not at the top: few files need it

        functions[_JOIN] = join_lazily
        tree = _MaskJoiner().visit(tree)
    return CompiledFile(compile(tree, filename, "exec", dont_inherit=True), functions)


def _check_annotation(name: str, value: Any, note: Callable[[], Any]) -> Any:
    try:
        wanted = note()
    except Exception:  # noqa: BLE001  Python would not have evaluated it either
        note_caught_error()
        return value
    if isinstance(wanted, TensorType):
        wanted._check_shape(name, value)
    return value


def _check_assigned(owner: Any, name: str, module: str) -> Any:
    """Return the owner of a name that the file `module` assigns or deletes, if the file may change it.

    Raises:
        KernelError: the owner is imported.
    """
    if _is_imported(owner, module):
        told = getattr(owner, "__name__", type(owner).__name__)
        fail("forbidden_statement", f"assignment to `{name}` of the imported `{told}`", _KEEP)
    return owner


def _is_imported(owner: Any, module: str) -> bool:
    """Whether a value is shared with other files: a module, what one defines, or a value of the language."""
    if isinstance(owner, FunctionType):  # a decorator's has the name or the code of another file's
        return module not in {owner.__module__, owner.__globals__.get("__name__")}
    if isinstance(owner, type) or "__wrapped__" in getattr(owner, "__dict__", ()):
        return str(owner.__module__) != module
    if isinstance(owner, Enum):
        return type(owner).__module__ != module
    return isinstance(owner, ModuleType | KernelValue)


def _print(*values: object, **options: Any) -> None:
    print(*values, **options)  # noqa: T201  it is the kernel's


def _format(value: object, as_written: bool) -> str:
    return repr(value) if as_written else format(value)
