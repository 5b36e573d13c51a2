"""Compiles one NKI kernel with the vendor's compiler; runs in a jail on a host, under the SDK's Python.

The request on stdin is JSON: `source`, `filename`, `folder` (to work in), `inputs` (name is the kernel's own;
`shape` and `dtype` each), `scalars` ([position, value] each), `outputs` (`shape`, `dtype`), `target`. The
answer is one JSON object, written to the file descriptor in argv: `neff` (the file's path) with `inputs` and
`outputs` (the tensors' names), or `error` with `code`, `message` and `line`. It has shapes, never data.

What the installed SDK offers is looked up, not assumed: the entry point's keywords from its signature, the
versions of the kernel language from the members of its enumeration. Must run on Python 3.9.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

STANDALONE = "neuronxcc.nki_standalone"
COMPILE = "compile_nki_ir_kernel_to_neff"
VERSIONS = ("NKI_IR_VERSION", "NKI_IR_version")
_LEGACY = "neuronxcc"


class _CompileError(Exception):
    """The kernel cannot be compiled; has the code and the line in its file."""

    def __init__(self, code: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.code, self.line = code, line


def main() -> int:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.read())
    answer = int(sys.argv[-1])
    try:
        told: dict[str, Any] = _compile_request(request)
    except _CompileError as fault:
        told = {"error": {"code": fault.code, "message": str(fault)[-4000:], "line": fault.line}}
    except BaseException as error:  # noqa: BLE001  whatever kernel or compiler raise is an answer
        line = _find_error_line(error, request["filename"])
        message = "".join(traceback.format_exception_only(type(error), error)).strip()
        told = {"error": {"code": "vendor_compiler", "message": message[-4000:], "line": line}}
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump(told, out)
    return 0


def language_versions(module: Any) -> dict[str, Any]:
    """Return the versions of the kernel language that a compiler knows, by name."""
    for name in VERSIONS:
        found = getattr(module, name, None)
        if found is not None:
            return {item: getattr(found, item) for item in dir(found) if re.fullmatch(r"beta\d+", item)}
    return {}


def select_version(source: str, known: dict[str, Any]) -> str | None:
    """Return the language version that a kernel is written in: beta 1 if it imports the legacy namespace.

    Raises:
        _CompileError: the compiler does not know that version.
    """
    if not known:
        return None
    newest = max(known, key=lambda name: int(name[4:]))
    legacy = any(name.split(".")[0] == _LEGACY for name in _list_imports(source))
    if legacy and "beta1" not in known:
        text = "this SDK does not compile kernels of the legacy namespace neuronxcc.nki; import nki instead"
        raise _CompileError("unsupported_namespace", text)
    return "beta1" if legacy else newest


def _list_imports(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found


def _compile_request(request: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    module = importlib.import_module(STANDALONE)
    compile_kernel = getattr(module, COMPILE)
    known = language_versions(module)
    folder = Path(request["folder"])
    os.chdir(folder)
    version = select_version(request["source"], known)
    kernel = _load_kernel(request, folder)
    names = _parameter_names(kernel)
    arrays = [np.zeros(item["shape"], _numpy_dtype(item["dtype"])) for item in request["inputs"]]
    called: list[Any] = list(arrays)
    for position, value in request["scalars"]:
        called.insert(position, value)
    if len(names) < len(called):
        text = "the kernel takes %d arguments, the problem has %d" % (len(names), len(called))
        raise _CompileError("arguments", text)
    outputs = [
        _OutputStub("out%d" % number, tuple(item["shape"]), _numpy_dtype(item["dtype"]))
        for number, item in enumerate(request["outputs"])
    ]
    keywords = {
        "kernel_func": kernel,
        "kernel_inputs_dict": dict(zip(names, called)),
        "kernel_outputs": outputs,
        "platform_target": request["target"],
        "logical_nc_config": 1,
        "output_directory": str(folder),
        "version": known.get(version or ""),
        "additional_compiler_args": "",
    }
    _call_with_supported(compile_kernel, keywords)
    neff = folder / "file.neff"
    if not neff.is_file():
        raise _CompileError("no_artefact", "the compiler ended without an error and without a NEFF")
    given = [name for name, value in zip(names, called) if any(value is array for array in arrays)]
    return {"neff": str(neff), "inputs": given, "outputs": [item.name for item in outputs]}


class _OutputStub:
    """An output, described as the compiler expects it."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype


def _call_with_supported(function: Callable[..., Any], keywords: dict[str, Any]) -> None:
    """Call `function` with those keywords that this version of it accepts."""
    taken = inspect.signature(function).parameters.values()
    if not any(item.kind is item.VAR_KEYWORD for item in taken):
        names = {item.name for item in taken}
        keywords = {name: value for name, value in keywords.items() if name in names}
    function(**keywords)


def _load_kernel(request: dict[str, Any], folder: Path) -> Any:
    """The file's kernel: the function called `kernel`, else the only decorated one."""
    path = folder / request["filename"]
    path.write_text(request["source"], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    decorated = [
        node.name
        for node in ast.parse(request["source"]).body
        if isinstance(node, ast.FunctionDef)
        and any("jit" in ast.unparse(item) for item in node.decorator_list)
    ]
    wanted = "kernel" if "kernel" in decorated else decorated[0] if len(decorated) == 1 else None
    if wanted is None:
        raise _CompileError("entry", "decorate the kernel with @nki.jit and call it `kernel`")
    return getattr(module, wanted)


def _parameter_names(kernel: Any) -> list[str]:
    return list(inspect.signature(getattr(kernel, "func", kernel)).parameters)


def _numpy_dtype(name: str) -> Any:
    import numpy as np

    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _find_error_line(error: BaseException, filename: str) -> int:
    """The last line in the kernel's own file on the way to the error; 0 if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if Path(frame.filename).name == filename]
    return (own[-1] or 0) if own else 0
