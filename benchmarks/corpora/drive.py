"""The process in which one script of a corpus runs: `python -m benchmarks.corpora.drive SCRIPT`.

A script that calls one of its functions with a kernel at its top level (`check("accuracy", kernel_v1)`) is
asked the same about every other kernel in its namespace that takes the same parameters.
"""

from __future__ import annotations

import ast
import inspect
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.corpora import observer


def main(script: Path) -> None:
    """Run the script as `__main__` and report what it does; its own failure is the exit status."""
    observer.install()
    observer.tee_stdout()
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    namespace = _reported(lambda: runpy.run_path(str(script), run_name="__main__"))
    for expression in _calls(ast.parse(script.read_text())):
        for name in _others(expression, namespace):
            text = ast.unparse(_renamed(expression, namespace, name))
            _reported(lambda text=text: eval(text, namespace), quiet=True)


def _reported(action: Any, *, quiet: bool = False) -> dict[str, Any]:
    try:
        result = action()
    except BaseException as error:
        observer.write("ended", good=False, reason=f"{type(error).__name__}: {error}"[:500])
        if quiet and isinstance(error, Exception):
            return {}
        raise
    observer.write("ended", good=True, reason="")
    return result if isinstance(result, dict) else {}


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node.value


def _is_kernel(value: Any) -> bool:
    return type(value).__module__.startswith("nki_sim.frontend") and callable(value)


def _kernel_in(expression: ast.Call, namespace: dict[str, Any]) -> str | None:
    names = [item.id for item in expression.args if isinstance(item, ast.Name)]
    return next((name for name in names if _is_kernel(namespace.get(name))), None)


def _others(expression: ast.Call, namespace: dict[str, Any]) -> list[str]:
    first = _kernel_in(expression, namespace)
    if first is None:
        return []
    parameters = _parameters(namespace[first])
    return [
        name
        for name, value in namespace.items()
        if name != first and _is_kernel(value) and _parameters(value) == parameters
    ]


def _parameters(kernel: Any) -> list[str]:
    return list(inspect.signature(kernel).parameters)


def _renamed(expression: ast.Call, namespace: dict[str, Any], name: str) -> ast.Call:
    first = _kernel_in(expression, namespace)
    args = [
        ast.Name(name, ast.Load()) if isinstance(item, ast.Name) and item.id == first else item
        for item in expression.args
    ]
    return ast.fix_missing_locations(ast.Call(expression.func, args, expression.keywords))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
