"""What can be read off a corpus's files without running them: kernels, and which files do something."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from pathlib import Path

DECORATORS = frozenset({"jit", "baremetal", "benchmark", "profile"})


def parse_source(file: Path) -> ast.Module | None:
    """The file's syntax, None for what is no Python of this version."""
    try:
        return ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return None


def kernels(file: Path) -> list[str]:
    """Functions of a file that a decorator of `nki` marks as kernels."""
    tree = parse_source(file)
    if tree is None:
        return []
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(_marks(item) for item in node.decorator_list)
    ]


def _marks(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        if any(ast.unparse(item.value) in {"'trace'", '"trace"'} for item in decorator.keywords):
            return False  # inlined into kernels, none itself
        decorator = decorator.func
    if isinstance(decorator, ast.Attribute):
        return decorator.attr in DECORATORS and ast.unparse(decorator.value) in {"nki", "neuronxcc.nki"}
    return isinstance(decorator, ast.Name) and decorator.id in {"jit", "nki_jit", "baremetal"}


def acts(file: Path) -> bool:
    """Whether running the file does more than define things."""
    tree = parse_source(file)
    return tree is not None and any(_acts(node) for node in tree.body)


def _acts(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def imports(text: str) -> set[str]:
    """Every part of every module and name that a source imports."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return set()
    found = [
        item.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for item in node.names
    ]
    found += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {part for name in found for part in name.split(".")}


def mentions(file: Path, text: str) -> bool:
    return text in file.read_text(encoding="utf-8", errors="replace")


def is_selected(name: str, pattern: str | None) -> bool:
    """Whether `--only` lets a name through: a shell pattern of it or of its last part, or part of it."""
    if not pattern or pattern in name:
        return True
    return any(fnmatch.fnmatch(text, pattern) for text in (name, Path(name).name, Path(name).stem))


def python_files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*.py") if ".git" not in path.parts)
