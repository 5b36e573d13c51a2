"""The process in which one script of a corpus runs: `python -m benchmarks.corpora.drive SCRIPT`.

A script that calls one of its functions with a kernel at its top level (`check("accuracy", kernel_v1)`) is
asked the same about every other kernel in its namespace that takes the same parameters, about each in a copy
of the process: what one leaves in the modules that they share is not there for the next.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.corpora import observer


def main(script: Path) -> int:
    """Run the script as `__main__` and report what it does; 1 when it fails."""
    observer.install()
    observer.tee_stdout()
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    source = script.read_text()
    namespace: dict[str, Any] = {
        "__name__": "__main__",
        "__file__": str(script),
        "__builtins__": __builtins__,
    }
    good = _report_errors(lambda: exec(compile(source, str(script), "exec"), namespace))
    for expression in _calls(ast.parse(source)):
        for name in _others(expression, namespace):
            code = compile(ast.unparse(_rename_argument(expression, namespace, name)), str(script), "eval")
            _in_a_copy(lambda code=code: _report_errors(lambda: eval(code, namespace)))
    return int(not good)


def _in_a_copy(action: Callable[[], Any]) -> None:
    """Run this in a fork and wait for its end."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        action()
    finally:
        sys.stdout.flush()
        os._exit(0)


def _report_errors(action: Callable[[], Any]) -> bool:
    try:
        action()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a script may raise anything
        if isinstance(error, SystemExit) and not error.code:
            observer.write("ended", good=True, reason="")
            return True
        traceback.print_exc()
        observer.write("ended", good=False, reason=f"{type(error).__name__}: {error}"[:500])
        return False
    observer.write("ended", good=True, reason="")
    return True


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


def _rename_argument(expression: ast.Call, namespace: dict[str, Any], name: str) -> ast.Call:
    first = _kernel_in(expression, namespace)
    args = [
        ast.Name(name, ast.Load()) if isinstance(item, ast.Name) and item.id == first else item
        for item in expression.args
    ]
    return ast.fix_missing_locations(ast.Call(expression.func, args, expression.keywords))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
