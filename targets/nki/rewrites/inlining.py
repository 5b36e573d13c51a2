"""Inlines names that are bound in loops: `start`, `size`, a row of a tensor.

A name that is bound in a loop ties statements to the place of the binding. If each use of it means the value
bound in the same iteration, the uses can contain the value itself, and the binding is removed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import names_in, substitute_names
from targets.nki.rewrites.elementwise import COMMUTATIVE_OPERATORS
from targets.nki.rewrites.kernel_ir import Guard, Kernel, Loop, Node, Statement, StatementKind, walk_nodes
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.source_tree import SourceError
from targets.nki.rewrites.values import Affine, LibrarySymbol, Slice, TensorView

NameMeanings = Mapping[str, str]

_REVERSIBLE = frozenset({"tensor_scalar", "scalar_tensor_tensor"})
"""Instructions with arguments that turn round the operands of their functions."""


@dataclass(frozen=True, eq=False)
class _NameScope:
    """A place where names are read or bound: a statement, or the head of a loop or condition."""

    node: Node
    reads: frozenset[str]
    binds: frozenset[str]
    wall: bool


def inline_names(kernel: Kernel) -> str | None:
    """Return the source without the removable names bound in loops; None if there are none."""
    found = {item: text for item in kernel.statements if (text := _inlinable_value(kernel, item)) is not None}
    if not found:
        return None
    meanings = _resolve_meanings(kernel, found)

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node in found:
            return []
        known = meanings.get(node, {})
        if isinstance(node, Statement):
            return [replace_names(node.node, known)] if known else None
        body = syntax.rebuild_block(node.body, emit)
        return [syntax.replace_body(_replace_in_head(node, known), body)] if body else []

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def canonicalize_kernel(kernel: Kernel, target: Target) -> Kernel:
    """Return the kernel as rewrites expect it.

    Removable names are inlined, and all arguments are by keyword. Operands of products, sums, maxima and
    minima are not turned round, which only VectorE could do.
    """
    for changed in (inline_names, _name_arguments, _turn_operands_back):
        source = changed(kernel)
        try:
            kernel = kernel if source is None else read_kernel(source, kernel.arguments, target)
        except SourceError:
            return kernel
    return kernel


def _name_arguments(kernel: Kernel) -> str | None:
    """The source with keywords for positional arguments of instructions; None if there are none."""
    placed = {item for item in kernel.operations() if _has_positional_arguments(kernel, item)}

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node not in placed or not isinstance(node, Statement):
            return None
        return [syntax.name_arguments(node.node, list(node.texts))]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit)) if placed else None


def _turn_operands_back(kernel: Kernel) -> str | None:
    """The source without reversals that change nothing; None if there are none."""
    found = {item: flags for item in kernel.operations() if (flags := _idle_reversals(item))}

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if not isinstance(node, Statement) or node not in found:
            return None
        return [syntax.replace_arguments(node.node, dict.fromkeys(found[node]))]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit)) if found else None


def _idle_reversals(item: Statement) -> list[str]:
    """The arguments that turn round the operands of a function for which that makes no difference."""
    if item.op not in _REVERSIBLE:
        return []
    return [
        flag
        for op, flag in (("op0", "reverse0"), ("op1", "reverse1"))
        if flag in item.texts
        and item.arguments.get(flag) is True
        and isinstance(function := item.arguments.get(op), LibrarySymbol)
        and function.leaf in COMMUTATIVE_OPERATORS
    ]


def _has_positional_arguments(kernel: Kernel, item: Statement) -> bool:
    (line,) = kernel.tree.find_line(item.place)
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Call) and bool(line.value.args)


def _resolve_meanings(kernel: Kernel, found: Mapping[Statement, str]) -> Mapping[Node, NameMeanings]:
    """The values of names at each node that reads them, resolved through other such names."""
    meanings: dict[Node, dict[str, str]] = {}
    places = list(_name_scopes(kernel))
    for number, place in enumerate(places):
        if not isinstance(place.node, Statement) or place.node not in found:
            continue
        (name,) = place.node.binds
        known = meanings.get(place.node, {}) | dict(place.node.texts)
        text = substitute_names(substitute_names(found[place.node], place.node.texts), known)
        for other in places[number + 1 :]:
            if name in other.reads and place.node.path[-1] in other.node.path:
                meanings.setdefault(other.node, {})[name] = text
    return meanings


def _name_scopes(kernel: Kernel) -> Iterator[_NameScope]:
    code = kernel.module.code_for_node
    for node in kernel.nodes:
        if isinstance(node, Statement):
            yield _NameScope(node, _names_read(node), node.binds, node.kind is StatementKind.OPAQUE)
        elif isinstance(node, Loop):
            yield _NameScope(node, names_in(code(node.node.iter)), frozenset({node.var}), wall=False)
        else:
            yield _NameScope(node, names_in(code(node.node.test)), frozenset(), wall=False)


def _names_read(item: Statement) -> frozenset[str]:
    """The names that a statement reads; for an assignment, those on the right."""
    if item.kind not in {StatementKind.BIND, StatementKind.DECLARE}:
        return item.uses
    line = item.node.body[0] if isinstance(item.node, cst.SimpleStatementLine) else None
    return names_in(cst.Module([]).code_for_node(line.value)) if isinstance(line, cst.Assign) else item.uses


def _inlinable_value(kernel: Kernel, item: Statement) -> str | None:
    """The source of the value that a statement binds to a name, if every use can contain it instead."""
    values = list(item.arguments.values())
    if item.kind is not StatementKind.BIND or not item.path or len(values) != 1 or len(item.binds) != 1:
        return None
    line = item.node.body[0] if isinstance(item.node, cst.SimpleStatementLine) else None
    if not isinstance(line, cst.Assign) or not isinstance(values[0], Affine | TensorView | Slice):
        return None
    text = kernel.module.code_for_node(line.value)
    if isinstance(values[0], Slice):
        text = _write_window(kernel, text)
    (name,) = item.binds
    if re.search(rf"\bfor\s+{name}\b|\blambda\b[^:]*\b{name}\b", kernel.tree.text):
        return None
    return text if _is_inlinable(kernel, item, name, parts=names_in(text)) else None


def _write_window(kernel: Kernel, text: str) -> str:
    """Return `slice(start, stop)` as the window nl.ds(start, size), which may stand in a subscript."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    if not isinstance(call.func, ast.Name):
        return text  # nl.ds already
    start, stop = call.args
    match start, stop:
        case ast.BinOp(one, ast.Mult(), size), ast.BinOp(
            ast.BinOp(other, ast.Add(), ast.Constant(1)), ast.Mult(), same
        ) if ast.dump(one) == ast.dump(other) and ast.dump(size) == ast.dump(same):
            length = ast.unparse(size)
        case _, ast.BinOp(other, ast.Add(), size) if ast.dump(start) == ast.dump(other):
            length = ast.unparse(size)
        case ast.Constant(0), _:
            length = ast.unparse(stop)
        case _:
            length = f"{ast.unparse(stop)} - ({ast.unparse(start)})"
    return f"{kernel.nl}.ds({ast.unparse(start)}, {length})"


def _is_inlinable(kernel: Kernel, item: Statement, name: str, *, parts: frozenset[str]) -> bool:
    """Whether every reader sees the binding in the same iteration, with unchanged parts."""
    loop, places = item.path[-1], list(_name_scopes(kernel))
    at = next(number for number, place in enumerate(places) if place.node is item)
    later = [place for place in places[at + 1 :] if loop in place.node.path]
    if any(({name} | parts) & place.binds or (place.wall and name in place.reads) for place in later):
        return False
    return all(
        _reads_own_binding(item, place, next((p for p in reversed(places[:number]) if name in p.binds), None))
        for number, place in enumerate(places)
        if name in place.reads and place.node is not item
    )


def _reads_own_binding(item: Statement, reader: _NameScope, binder: _NameScope | None) -> bool:
    """Whether it is certain if a reader sees the binding of its own iteration, or of another one."""
    if binder is None:
        return not set(item.path) & set(reader.node.path)
    if binder.node is item:
        return item.path[-1] in reader.node.path and _shares_guards(item, reader.node)
    guarded = isinstance(binder.node, Statement) and not _shares_guards(binder.node, reader.node)
    shared = set(item.path) & set(reader.node.path)
    return shared <= set(binder.node.path) <= set(reader.node.path) and not guarded


def _shares_guards(item: Statement, node: Node) -> bool:
    """Whether a node runs only where the statement did."""
    return all(node in walk_nodes(guard.body) for guard in item.guards)


def _replace_in_head(node: Loop | Guard, known: NameMeanings) -> cst.For | cst.If:
    if not known:
        return node.node
    visitor = _NameReplacer(known)
    if isinstance(node, Loop):
        return node.node.with_changes(iter=node.node.iter.visit(visitor))
    return node.node.with_changes(test=node.node.test.visit(visitor))


def replace_names(item: cst.BaseStatement, known: NameMeanings) -> cst.BaseStatement:
    """The statement with names replaced by expressions, sums of integers simplified."""
    changed = item.visit(_NameReplacer(known))
    assert isinstance(changed, cst.BaseStatement)
    return changed


class _NameReplacer(syntax.VariableTransformer):
    """Replaces names in the largest arithmetic expressions that contain them."""

    def __init__(self, known: NameMeanings) -> None:
        self._known = known
        self._change = partial(substitute_names, meanings=known)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:  # noqa: N802
        text = self._known.get(original_node.value)
        return updated_node if text is None else syntax.parse_expression(text)

    def leave_Slice(self, original_node: cst.Slice, updated_node: cst.Slice) -> cst.Slice:  # noqa: N802
        """Put spaces around a colon between sums, as a formatter would."""
        compound = any(
            isinstance(bound, cst.BinaryOperation) for bound in (updated_node.lower, updated_node.upper)
        )
        if not compound or original_node.deep_equals(updated_node):
            return updated_node
        space = cst.SimpleWhitespace(" ")
        return updated_node.with_changes(first_colon=cst.Colon(space, space))

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> bool:  # noqa: N802
        del node
        return False

    def leave_BinaryOperation(  # noqa: N802
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        code = cst.Module([]).code_for_node(original_node)
        return (
            syntax.parse_expression(self._change(code))
            if names_in(code) & self._known.keys()
            else updated_node
        )
