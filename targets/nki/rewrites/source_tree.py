"""A module's text, with a LibCST tree that is built when a rewrite first needs it.

Reading uses `ast`, which is several times faster. Most kernels that a search reads are never rewritten
further, so most trees are never built. A statement is found in the tree by its **place**: its index among the
lines of the module, then in the nested blocks, outermost first.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import libcst as cst

from targets.nki.rewrites.source_writer import SourceWriter

StatementPath = tuple[int, ...]
_SyntaxPart = ast.stmt | ast.expr | ast.keyword
MAX_CACHED_STATEMENTS = 4000
"""Number of simple statements whose bound names are cached, by their text."""
COMPOUND_SYNTAX = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.AsyncFor, ast.While, ast.If, ast.With,
    ast.AsyncWith, ast.Try, ast.TryStar, ast.Match,
)  # fmt: skip


class SourceError(Exception):
    """The source holds no kernel that can be read; the message says why."""


class SourceTree:
    """The text of a module, its `ast` lines and its LibCST tree."""

    def __init__(self, text: str) -> None:
        """Parse with `ast` only.

        Raises:
            SourceError: the text is not Python.
        """
        self.text = text
        try:
            self.body = ast.parse(text).body
        except (SyntaxError, ValueError) as error:
            raise SourceError(f"the source does not parse: {getattr(error, 'msg', error)}") from error
        self._lines = text.encode().splitlines(keepends=True)
        self._bindings: dict[int, frozenset[str]] = {}

    @cached_property
    def module(self) -> cst.Module:
        """The LibCST tree.

        Raises:
            SourceError: LibCST cannot parse what `ast` can.
        """
        try:
            return cst.parse_module(self.text)
        except cst.ParserSyntaxError as error:
            raise SourceError(f"the source does not parse: {error.message}") from error

    @cached_property
    def writer(self) -> SourceWriter:
        """Writes the module's statements, and new ones among them.

        Raises:
            SourceError: as for `module`.
        """
        return SourceWriter(self.module)

    def find_statement(self, place: StatementPath) -> cst.BaseStatement:
        """The statement at a place."""
        found: cst.BaseStatement = self.module.body[place[0]]
        for number in place[1:]:
            assert isinstance(found, cst.BaseCompoundStatement)
            inner = found.body.body[number]
            assert isinstance(inner, cst.BaseStatement)
            found = inner
        return found

    def find_line(self, place: StatementPath) -> list[ast.stmt]:
        """The statements of the line at a place, as `ast` nodes."""
        body, line = self.body, list[ast.stmt]()
        for number in place:
            line = list(group_by_line(body))[number]
            body = getattr(line[0], "body", [])
        return line

    def replace_expression(self, node: ast.expr, text: str) -> str:
        """Return the module's text with an expression replaced."""
        (line, start), (last, end) = _start_position(node), _end_position(node)
        front, back = self.text_between((1, 0), (line, start)), self._lines[last - 1][end:]
        return front + text + b"".join([back, *self._lines[last:]]).decode()

    def bound_names(self, item: ast.stmt) -> frozenset[str]:
        """Every name that a statement binds, in whatever way."""
        known = self._bindings.get(id(item))
        if known is None:
            simple = not isinstance(item, COMPOUND_SYNTAX)
            found = (
                _parsed_bindings(self.text_of(item)) if simple else frozenset(self._iterate_bound_names(item))
            )
            known = self._bindings[id(item)] = found
        return known

    def _iterate_bound_names(self, item: ast.stmt) -> Iterator[str]:
        """Go through each part of a block once; nested statements are cached, or will be."""
        parts: list[ast.AST] = [item]
        while parts:
            part = parts.pop()
            yield from _BINDING_RULES.get(type(part), _no_names)(part)
            for inner in ast.iter_child_nodes(part):
                if isinstance(inner, ast.stmt):
                    yield from self.bound_names(inner)
                else:
                    parts.append(inner)

    def names_in_statement(self, item: ast.stmt) -> frozenset[str]:
        """Every name in a statement."""
        return _node_names(item) if isinstance(item, COMPOUND_SYNTAX) else _parsed_names(self.text_of(item))

    def text_of(self, node: ast.stmt | ast.expr) -> str:
        """The text of a statement or expression, without what precedes it on its line."""
        return self.text_between(_start_position(node), _end_position(node))

    def is_indented(self, body: Sequence[ast.stmt]) -> bool:
        """Whether a block is on lines of its own: not after the colon, nor continued from its line."""
        first = body[0]
        before = self._lines[first.lineno - 1][: first.col_offset]
        return not before.strip() and not self._lines[first.lineno - 2].rstrip().endswith(b"\\")

    def text_between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """The text between two (line, byte) positions; lines count from 1."""
        lines = self._lines[start[0] - 1 : end[0]]
        lines[-1] = lines[-1][: end[1]]
        lines[0] = lines[0][start[1] :]
        return b"".join(lines).decode()

    def argument_texts(self, call: ast.Call) -> list[str]:
        """The arguments of a call as written, including brackets around them."""
        values = [*call.args, *(word.value for word in call.keywords)]
        ends = [_end_position(value) for value in values]
        items: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        stops = [*map(_start_position, items[1:]), _end_position(call)]
        return [
            self._bracketed_text(value, self.text_between(end, stop))
            for value, end, stop in zip(values, ends, stops, strict=True)
        ]

    def _bracketed_text(self, value: ast.expr, after: str) -> str:
        text = self.text_between(_start_position(value), _end_position(value))
        own = after.partition(",")[0].count(")") - (0 if "," in after else 1)
        return f"({text})" if own > 0 else text


@lru_cache(maxsize=MAX_CACHED_STATEMENTS)
def _parsed_names(statement: str) -> frozenset[str]:
    return _node_names(ast.parse(statement))


def _node_names(node: ast.AST) -> frozenset[str]:
    return frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name))


@lru_cache(maxsize=MAX_CACHED_STATEMENTS)
def _parsed_bindings(statement: str) -> frozenset[str]:
    """The names bound by a statement that contains no others."""
    parts = ast.walk(ast.parse(statement))
    return frozenset(name for part in parts for name in _BINDING_RULES.get(type(part), _no_names)(part))


def _no_names(node: ast.AST) -> Sequence[str]:
    del node
    return ()


_BINDING_RULES: Mapping[type[ast.AST], Callable[[Any], Sequence[str]]] = {
    ast.Name: lambda node: () if isinstance(node.ctx, ast.Load) else (node.id,),
    ast.FunctionDef: lambda node: (node.name,),
    ast.ClassDef: lambda node: (node.name,),
    ast.arg: lambda node: (node.arg,),
    ast.alias: lambda node: ((node.asname or node.name).partition(".")[0],),
    ast.ExceptHandler: lambda node: (node.name,) if node.name else (),
    ast.MatchAs: lambda node: (node.name,) if node.name else (),
    ast.MatchStar: lambda node: (node.name,) if node.name else (),
}


def _start_position(node: _SyntaxPart) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end_position(node: _SyntaxPart) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def group_by_line(body: Sequence[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """The statements of a block by line, as in LibCST: `a; b` is one line."""
    line = list(body[:1])
    for before, item in pairwise(body):
        if isinstance(before, COMPOUND_SYNTAX) or item.lineno != before.end_lineno:
            yield line
            line = []
        line.append(item)
    yield line


def normalize_source(source: str) -> str:
    """Return a source's normal form, without layout and comments; equal for sources that mean the same.

    Raises:
        SyntaxError: the source does not parse.
    """
    return ast.dump(ast.parse(source))
