"""Finds duplicate kernels: digests a source's syntax tree without what has no effect on its meaning.

Comments, formatting, docstrings, and spellings of the same constant do not count; everything else does. The
tree is serialised by our own walk, because `ast.dump` changes between Python versions.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress

from state.model import Digest, digest_of

MAX_SOURCE_BYTES = 1 << 18

_MAX_FIELD_CHARS = 1 << 26
"""Fields of an f-string times its length: Python before 3.12 reads the string anew for each field."""

_MORE_TRIES = 4
"""How often a text is parsed again while other threads disturb it."""

_STRINGS = re.compile(
    r"""\#[^\r\n]*|([A-Za-z]{0,2})("{3}|'{3}|"|')((?:[^\\"']++|\\.|(?!\2)["'])*+)(?:\2)?""", re.DOTALL
)
"""A comment, or a string: its prefix, its quotes, and its text."""

_SILENT_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_WITH_DOCSTRING = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def parse_source(source: bytes) -> ast.Module:
    """Return the syntax tree of a kernel's source.

    Raises:
        SyntaxError: it is too large, not UTF-8, or not Python.
    """
    if len(source) > MAX_SOURCE_BYTES:
        raise SyntaxError(f"the source has {len(source)} bytes (at most {MAX_SOURCE_BYTES})")
    try:
        text = source.decode()
        if source.count(b"{") * len(source) > _MAX_FIELD_CHARS:
            _check_fields(text)
        return _parse_text(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(f"the source cannot be parsed: {error or type(error).__name__}") from error


def _parse_text(text: str) -> ast.Module:
    """Parse a text; CPython 3.11 may fail while others parse, because all threads share the tree's depth."""
    for _ in range(_MORE_TRIES):
        with suppress(SystemError):
            return ast.parse(text, feature_version=(3, 11))
    return ast.parse(text, feature_version=(3, 11))


def _check_fields(text: str) -> None:
    """Refuse f-strings with so many fields that to parse them takes seconds.

    Raises:
        SyntaxError: the source has such strings.
    """
    work = 0
    for found in _STRINGS.finditer(text):
        if "f" in (found[1] or "").lower():
            work += found[3].count("{") * len(found[3])
        if work > _MAX_FIELD_CHARS:
            line = text.count("\n", 0, found.start()) + 1
            raise SyntaxError("an f-string has too many fields", ("", line, None, None))


def code_digest(source: bytes) -> Digest:
    """Return the digest that identifies duplicates; that of the bytes if they are not Python."""
    try:
        tree = parse_source(source)
    except SyntaxError:
        return digest_of(source)
    digest = hashlib.sha256()
    for token in _tree_tokens(tree):
        digest.update(token.encode(errors="surrogatepass") + b"\n")
    return digest.hexdigest()


def _tree_tokens(tree: ast.Module) -> Iterator[str]:
    """The tree in prefix order, with an explicit stack: deep trees are legal input."""
    stack: list[object] = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, ast.AST):
            children = list(_meaningful_fields(item))
            yield f"{type(item).__name__}/{len(children)}"
            stack.extend(reversed(children))
        elif isinstance(item, list):
            yield f"list/{len(item)}"
            stack.extend(reversed(item))
        else:
            yield f"{type(item).__name__}:{item!r}"


def _meaningful_fields(node: ast.AST) -> Iterator[object]:
    for name, value in ast.iter_fields(node):
        # An absent field equals an empty one, so that new fields of newer Pythons change nothing.
        if name in _SILENT_FIELDS or value is None or value == []:
            continue
        yield name
        yield _body_without_docstring(node) if name == "body" and isinstance(node, _WITH_DOCSTRING) else value


def _body_without_docstring(node: ast.AST) -> list[ast.stmt]:
    body: list[ast.stmt] = getattr(node, "body", [])
    match body[:1]:
        case [ast.Expr(value=ast.Constant(value=str()))]:
            return body[1:]
    return body
