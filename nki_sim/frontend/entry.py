"""Executes a kernel file on shapes and returns the program it records, as bytes.

Whatever the kernel does wrong comes out as a `KernelError` with the line of the kernel's own file.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any

from nki_sim import targets
from nki_sim.errors import KernelError
from nki_sim.forms import ArraySpec
from nki_sim.frontend import api, isa, language
from nki_sim.frontend.api import Kernel
from nki_sim.frontend.recorder import Recorder, recording
from nki_sim.frontend.tensor import Tensor, fail, row_major

Argument = ArraySpec | int | float | bool

_MODULES: dict[str, ModuleType] = {"nki": api, "nki.language": language, "nki.isa": isa}


def trace_bytes(
    source: str,
    *,
    args: Sequence[Argument],
    target: str = "trn2",
    entry: str | None = None,
    filename: str = "kernel.py",
    max_instructions: int = 2_000_000,
) -> bytes:
    """Run the kernel of `source` on shapes; the bytes are for `Program.from_bytes`.

    Raises:
        KernelError: the kernel does not parse, breaks a rule or raises.
        TargetError: unknown target.
    """
    tree = _parse(source, filename)
    recorder = Recorder(
        targets.load(target), filename, max_instructions=max_instructions, names=_assigned_names(tree)
    )
    with _simulated_nki(), recording(recorder), _kernel_faults(recorder):
        namespace: dict[str, Any] = {"__name__": "kernel", "__file__": filename}
        exec(compile(tree, filename, "exec"), namespace)  # noqa: S102  running the kernel is the purpose
        kernel = _find_kernel(namespace, entry)
        recorder.kernel_line = getattr(getattr(kernel.function, "__code__", None), "co_firstlineno", 0)
        result = kernel.function(*_bind(kernel, args, recorder))
        return recorder.to_bytes(kernel.__name__, _outputs(result))


def _parse(source: str, filename: str) -> ast.Module:
    try:
        return ast.parse(source, filename)
    except SyntaxError as error:
        raise KernelError("syntax_error", str(error.msg), error.lineno or 0) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise KernelError("syntax_error", str(error) or type(error).__name__) from error


def _assigned_names(tree: ast.Module) -> dict[int, str]:
    """Line -> variable for `name = call(...)`, so that tensors carry the name the source gives them."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            goal = node.targets[0]
            if isinstance(goal, ast.Name):
                names[node.value.lineno] = goal.id
    return names


@contextmanager
def _simulated_nki() -> Iterator[None]:
    """`import nki` gives the simulator's front end meanwhile, even where a real package is installed."""
    taken = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "nki"}
    for name in taken:
        del sys.modules[name]
    sys.modules.update(_MODULES)
    api.language, api.isa = language, isa  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in _MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(taken)


@contextmanager
def _kernel_faults(recorder: Recorder) -> Iterator[None]:
    """Everything that comes out of kernel code becomes a KernelError with the kernel's line."""
    try:
        yield
    except KernelError as error:
        line = error.line or _line_of(error.__traceback__, recorder.filename) or recorder.kernel_line
        raise type(error)(error.code, error.message, line, error.hint) from None
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        line = _line_of(error.__traceback__, recorder.filename)
        raise KernelError("kernel_exit", f"the kernel raised {type(error).__name__}", line) from None
    except BaseException as error:  # noqa: BLE001  kernel code may raise anything, and all of it is its fault
        line = _line_of(error.__traceback__, recorder.filename)
        raise KernelError("kernel_exception", f"{type(error).__name__}: {error}"[:2000], line) from None


def _line_of(traceback: TracebackType | None, filename: str) -> int:
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _find_kernel(namespace: dict[str, Any], entry: str | None) -> Kernel:
    kernels = {name: value for name, value in namespace.items() if isinstance(value, Kernel)}
    wanted = entry or ("kernel" if "kernel" in kernels else None)
    if wanted is None and len(set(kernels.values())) == 1:
        return next(iter(kernels.values()))
    if wanted not in kernels:
        found = ", ".join(sorted(kernels)) or "none"
        fail(
            "entry", f"no @nki.jit function {wanted or 'that is the only one'}; found: {found}",
            "decorate the kernel with @nki.jit and call it `kernel`, or name it as the entry",
        )  # fmt: skip
    return kernels[wanted]


def _bind(kernel: Kernel, args: Sequence[Argument], recorder: Recorder) -> list[Any]:
    parameters = list(inspect.signature(kernel.function).parameters.values())
    required = [item for item in parameters if item.default is item.empty]
    if not len(required) <= len(args) <= len(parameters):
        fail(
            "arguments", f"{kernel.__name__} takes {len(parameters)} arguments, {len(args)} given",
            f"its parameters are {', '.join(item.name for item in parameters)}",
        )  # fmt: skip
    return [
        recorder.argument(parameter.name, value.shape, value.dtype) if isinstance(value, ArraySpec) else value
        for parameter, value in zip(parameters, args, strict=False)
    ]


def _outputs(result: Any) -> list[int]:
    tensors = list(result) if isinstance(result, tuple | list) else [result]
    if not tensors:
        fail("no_output", "the kernel returns nothing", "return the nl.shared_hbm tensor it writes")
    for tensor in tensors:
        _check_output(tensor)
    numbers = [tensor.storage.id for tensor in tensors]
    if len(set(numbers)) != len(numbers):
        fail("output_twice", "the kernel returns a tensor twice", "return each output once")
    return numbers


def _check_output(tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        fail("output_type", f"the kernel returns {type(tensor).__name__}, not a tensor")
    site = tensor.storage.site
    if site.buffer != "shared_hbm" or tensor.dims != row_major(site.shape):
        fail(
            "output_buffer", f"output {site.name} is a view {tensor.shape} of {site.shape} in {site.buffer}",
            "return whole tensors declared with buffer=nl.shared_hbm, not views of them",
        )  # fmt: skip
