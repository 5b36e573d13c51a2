"""Finds duplicate kernels: digests a source's syntax tree without what has no effect on its meaning.

Comments, formatting, docstrings, and spellings of the same constant do not count; everything else does. The
tree is serialised by our own walk, because `ast.dump` changes between Python versions.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator

from state.model import Digest, digest_of

MAX_SOURCE_BYTES = 1 << 18

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
        return ast.parse(source.decode(), feature_version=(3, 11))
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(f"the source cannot be parsed: {error or type(error).__name__}") from error


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
