"""Compiles one NKI kernel with the vendor's compiler; runs in a jail on a host, under the SDK's Python.

The request on stdin is JSON: `source`, `filename`, `folder` (to work in), `inputs` (name is the kernel's own;
`shape` and `dtype` each), `scalars` ([position, value] each), `outputs` (`shape`, `dtype`), `target`. The
answer is one JSON object, written to the file descriptor in argv: `neff` (the file's path) with `inputs` and
`outputs` (the tensors' names), or `error` with `code`, `message` and `line`. It has shapes, never data.

What the installed SDK offers is looked up, not assumed. There are three routes:

- `jit` (NKI 0.6 and later, SDK 2.32): the decorated kernel is called with arrays, and leaves its NEFF in the
  folder that NKI_ARTIFACTS_DIR named when `nki` was imported. The call would then run it, which fails in a
  jail without a device and does not matter. Where the release lets us name another executor, nothing is run.
- `standalone` (SDK 2.29 to 2.31): `neuronxcc.nki_standalone`, which takes the kernel language's version.
- `baremetal` (SDK 2.27 and before): kernels of the legacy namespace, through `neuronxcc.nki.baremetal`.

Sources: the Neuron documentation, "Test and debug a NKI kernel end-to-end with nrtpy" (2.33) and
"nki.baremetal" (2.27); public code for the executor. Not tried on a device. Must run on Python 3.9.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

NEFF = "file.neff"
ARTEFACTS = "artefacts"
"""The folder that NKI_ARTIFACTS_DIR names; the compiler refuses one that is not empty."""

STANDALONE = "neuronxcc.nki_standalone"
COMPILE = "compile_nki_ir_kernel_to_neff"
VERSIONS = ("NKI_IR_VERSION", "NKI_IR_version")
_LEGACY = "neuronxcc"
_FIRST_WITH_ARTEFACTS = (0, 6)
_EXECUTOR_MODULE, _EXECUTOR_CLASS = "nki.framework.compiled", "StandaloneKernel"


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
    """Return the language version that a kernel is written in: beta 1 if it imports the legacy namespace."""
    if not known:
        return None
    return "beta1" if _imports_legacy(source) else max(known, key=lambda name: int(name[4:]))


def _imports_legacy(source: str) -> bool:
    return any(name.split(".")[0] == _LEGACY for name in _list_imports(source))


def _list_imports(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found


def find_routes() -> tuple[list[str], list[str]]:
    """Return the routes by which kernels can be compiled here, best first, and what is lacking without
    any."""
    routes = ["jit " + _nki_version_text()] if _has_jit_route() else []
    module, why = _import_standalone()
    if module is not None:
        routes += ["standalone " + name for name in sorted(language_versions(module)) or ["unversioned"]]
    if _find_baremetal() is not None:
        routes.append("baremetal")
    return routes, [] if routes else [why]


def _import_standalone() -> tuple[Any, str]:
    """The standalone compiler; None and the reason where there is none."""
    try:
        module = importlib.import_module(STANDALONE)
    except Exception as error:  # noqa: BLE001  a broken installation may raise anything
        return None, "no compiler: %s cannot be imported (%s)" % (STANDALONE, type(error).__name__)
    if hasattr(module, COMPILE):
        return module, ""
    return None, "%s has no %s: this release's compiler is not known" % (STANDALONE, COMPILE)


def _nki_version_text() -> str:
    try:
        return metadata.version("nki")
    except metadata.PackageNotFoundError:
        return ""


def _has_jit_route() -> bool:
    found = re.match(r"(\d+)\.(\d+)", _nki_version_text())
    return found is not None and (int(found[1]), int(found[2])) >= _FIRST_WITH_ARTEFACTS


def _find_baremetal() -> Any:
    """The legacy decorator; None where there is none."""
    try:
        return getattr(importlib.import_module("neuronxcc.nki"), "baremetal", None)
    except Exception:  # noqa: BLE001  a broken installation may raise anything
        return None


def _select_route(source: str) -> Callable[[_Job], None]:
    """The way to compile a kernel here.

    Raises:
        _CompileError: there is none for its namespace.
    """
    legacy = _imports_legacy(source)
    if not legacy and _has_jit_route():
        return _compile_by_jit
    standalone, why = _import_standalone()
    if standalone is not None:
        known = language_versions(standalone)
        if not legacy or not known or "beta1" in known:
            return _compile_standalone
    if legacy and _find_baremetal() is not None:
        return _compile_by_baremetal
    if legacy:
        text = "this SDK does not compile kernels of the legacy namespace neuronxcc.nki; import nki instead"
        raise _CompileError("unsupported_namespace", text)
    raise _CompileError("no_compiler", why)


class _Job:
    """What a route compiles: the kernel with its arguments in order, its outputs, the folder to work in."""

    def __init__(self, request: dict[str, Any]) -> None:
        import numpy as np

        self.folder = Path(request["folder"])
        self.source = request["source"]
        self.target = request["target"]
        self.kernel = _load_kernel(request, self.folder)
        arrays = [np.zeros(item["shape"], _numpy_dtype(item["dtype"])) for item in request["inputs"]]
        called: list[Any] = list(arrays)
        for position, value in request["scalars"]:
            called.insert(position, value)
        names = _parameter_names(self.kernel)
        if len(names) < len(called):
            text = "the kernel takes %d arguments, the problem has %d" % (len(names), len(called))
            raise _CompileError("arguments", text)
        self.arguments = dict(zip(names, called))
        self.inputs = [name for name, value in self.arguments.items() if any(value is one for one in arrays)]
        self.outputs = [
            _OutputStub("out%d" % number, tuple(item["shape"]), _numpy_dtype(item["dtype"]))
            for number, item in enumerate(request["outputs"])
        ]


def _compile_request(request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    os.chdir(folder)
    compile_kernel = _select_route(request["source"])
    job = _Job(request)
    compile_kernel(job)
    neff = folder / NEFF
    if not neff.is_file():
        raise _CompileError("no_artefact", "the compiler ended without an error and without a NEFF")
    return {"neff": str(neff), "inputs": job.inputs, "outputs": [item.name for item in job.outputs]}


def _compile_standalone(job: _Job) -> None:
    module = importlib.import_module(STANDALONE)
    known = language_versions(module)
    keywords = {
        "kernel_func": job.kernel,
        "kernel_inputs_dict": job.arguments,
        "kernel_outputs": job.outputs,
        "platform_target": job.target,
        "logical_nc_config": 1,
        "output_directory": str(job.folder),
        "version": known.get(select_version(job.source, known) or ""),
        "additional_compiler_args": "",
    }
    _call_with_supported(getattr(module, COMPILE), keywords)


def _compile_by_jit(job: _Job) -> None:
    """Call the kernel; what fails once its NEFF is there is the run, which nobody wants."""
    folder = job.folder / ARTEFACTS
    _keep_artefact(job, folder, lambda: _without_execution(job, folder)(*job.arguments.values()))


def _without_execution(job: _Job, folder: Path) -> Callable[..., Any]:
    """The kernel with an executor that does nothing, where this release has one; else as it is."""
    try:
        base = getattr(importlib.import_module(_EXECUTOR_MODULE), _EXECUTOR_CLASS)
        quiet: Callable[..., Any] = job.kernel._to_subclass(  # noqa: SLF001 - there is no public way
            base, _executor=lambda *_, **__: None, target=job.target, lnc=1, artifacts_dir=str(folder)
        )
    except (ImportError, AttributeError, TypeError):  # internal to each release
        return job.kernel  # type: ignore[no-any-return]
    return quiet


def _compile_by_baremetal(job: _Job) -> None:
    keywords = {"save_neff_name": str(job.folder / NEFF), "artifacts_dir": str(job.folder / ARTEFACTS)}
    function = getattr(job.kernel, "func", job.kernel)
    decorate = _find_baremetal()
    taken = inspect.signature(decorate).parameters
    kept = {name: value for name, value in keywords.items() if name in taken}
    _keep_artefact(job, job.folder / ARTEFACTS, lambda: decorate(function, **kept)(*job.arguments.values()))


def _keep_artefact(job: _Job, folder: Path, call: Callable[[], Any]) -> None:
    """Make a call that compiles and then runs; keep the NEFF whatever the run came to.

    Raises:
        Exception: whatever the call raised, if it left no NEFF.
    """
    failed: BaseException | None = None
    try:
        call()
    except Exception as error:  # noqa: BLE001  it matters only if no NEFF was left
        failed = error
    found = sorted(folder.rglob("*.neff")) if folder.is_dir() else []
    if found and not (job.folder / NEFF).is_file():
        shutil.copyfile(found[0], job.folder / NEFF)
    if failed is not None and not (job.folder / NEFF).is_file():
        raise failed


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
