"""Runs kernels on shapes and returns the programs they record, as bytes.

Anything the kernel does wrong becomes a `KernelError` with the line of the kernel's own file.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from nki_sim import targets
from nki_sim.errors import KernelError
from nki_sim.frontend.api import Kernel
from nki_sim.frontend.bind import bind_arguments, collect_outputs
from nki_sim.frontend.context import recording, targeting
from nki_sim.frontend.faults import KernelOrigin, map_kernel_errors
from nki_sim.frontend.instrumentation import CompiledFile, compile_with_checks
from nki_sim.frontend.kernel_state import describe_state
from nki_sim.frontend.modules import MODULES, create_module, install_modules, register_module
from nki_sim.frontend.recorder import Recorder
from nki_sim.frontend.storage import fail
from nki_sim.garbage_collection import rare_garbage_collection
from nki_sim.program import wire
from nki_sim.refusals import noting_refusals

__all__ = ["MODULES", "TracedKernel", "trace_bytes", "trace_function"]

MAX_INSTRUCTIONS = 2_000_000

MORE_CALLS = 14
"""Further calls of a kernel whose file keeps something from call to call."""


@dataclass(frozen=True)
class TracedKernel:
    """A kernel that ran on shapes: its program, the arrays it was called with, and its result.

    `arrays` are in the order of the program's inputs. `result` is what the kernel returns: nested tensors.
    """

    program: bytes
    arrays: list[Any]
    result: Any


def trace_bytes(
    source: str,
    *,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    target: str = "trn2",
    entry: str | None = None,
    filename: str = "kernel.py",
    lnc: int | None = None,
    max_instructions: int = MAX_INSTRUCTIONS,
    repeat: bool = False,
) -> bytes:
    """Run the kernel of `source` on shapes and return bytes for `Program.from_bytes`.

    With `repeat` the kernel is called again, and once in its file loaded anew: the program must be the same
    each time, or the one that is looked at is not the one that runs later. What the simulator refused ends
    the kernel then even if it caught the error, because a device may not refuse the same.

    Raises:
        KernelError: the kernel does not parse, breaks a rule or raises, or builds different programs.
        TargetError: unknown target.
    """
    tree = _parse_source(source, filename)
    chosen = targets.load(target)
    place = KernelOrigin(filename)
    names = _assigned_names(tree)

    def trace_calls() -> Iterator[tuple[bytes, ModuleType]]:
        """Load the file, and call its kernel again and again; its own state lasts from call to call."""
        module = create_module("kernel", filename)
        with register_module(module):
            kernel = _execute_module(file, module, entry)
            kernel = kernel if lnc is None else kernel[lnc]
            while True:
                recorder = kernel._recorder(chosen, filename, max_instructions=max_instructions, names=names)
                recorder.analyse_source(tree)
                traced = _trace_programs(kernel, args, kwargs or {}, recorder, place)
                if repeat:
                    refusals.raise_first()
                yield traced.program, module

    refusals = noting_refusals(filename)
    with _install_namespaces(source), targeting(chosen), map_kernel_errors(place), refusals:
        file = compile_with_checks(_parse_source(source, filename), filename)
        if not repeat:
            return next(trace_calls())[0]
        return _trace_repeatedly(trace_calls)


def _trace_repeatedly(trace_calls: Callable[[], Iterator[tuple[bytes, ModuleType]]]) -> bytes:
    """Return a kernel's program, after it was called again, and again in its file loaded anew.

    A file whose state changes from call to call gets `MORE_CALLS`, because it may count them.

    Raises:
        KernelError: a program differs.
    """
    calls = trace_calls()
    first, module = next(calls)
    before = describe_state(vars(module))
    later = [next(calls)[0]]
    if describe_state(vars(module)) != before:
        later += [next(calls)[0] for _ in range(MORE_CALLS)]
    anew, _ = next(trace_calls())
    for others, when in ((later, "when it is called again"), ([anew], "when its file is loaded again")):
        if not all(_is_same_program(first, other) for other in others):
            text = f"the kernel builds another program {when}"
            hint = "let the program depend on the arguments only, not on what ran before"
            fail("trace_differs", text, hint)
    return first


def _is_same_program(one: bytes, other: bytes) -> bool:
    """Whether two programs are equal but for the names of their tensors, which nothing computes with."""
    if one == other:
        return True
    return _unpack_nameless(one) == _unpack_nameless(other)


def _unpack_nameless(program: bytes) -> tuple[dict[str, Any], dict[str, memoryview]]:
    header, columns = wire.unpack(program)
    header["sites"] = [site[1:] for site in header["sites"]]
    return header, columns


@contextmanager
def kernel_from_source(source: str, filename: str, entry: str | None = None) -> Iterator[Kernel]:
    """Yield the kernel of a file; meanwhile its `import nki` gives the simulator.

    Raises:
        KernelError: the file does not parse or raises, or has no such kernel.
    """
    tree = _parse_source(source, filename)
    module = create_module("kernel", filename)
    with _install_namespaces(source), register_module(module):
        with map_kernel_errors(KernelOrigin(filename, attended=True)):
            kernel = _execute_module(compile_with_checks(tree, filename), module, entry)
        yield kernel


def trace_function(
    kernel: Kernel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "trn2",
    max_instructions: int = MAX_INSTRUCTIONS,
) -> TracedKernel:
    """Run a kernel of this process on shapes; arguments may hold arrays, specifications and plain values.

    Outputs may be reshaped views of whole tensors. A kernel that writes its arguments may return nothing; its
    program then has no output of its own.

    Raises:
        KernelError: the kernel breaks a rule or raises; the line is one of the kernel's own file.
        TargetError: unknown target.
    """
    chosen = targets.load(target)
    filename = kernel._code.co_filename if kernel._code else ""
    place = KernelOrigin(filename, attended=True)
    with targeting(chosen), map_kernel_errors(place):
        tree = _parse_file(filename)
        recorder = kernel._recorder(
            chosen, filename, max_instructions=max_instructions, names=_assigned_names(tree)
        )
        recorder.analyse_source(tree)
        return _trace_programs(kernel, args, kwargs or {}, recorder, place, views=True)


def _trace_programs(
    kernel: Kernel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    recorder: Recorder,
    place: KernelOrigin,
    *,
    views: bool = False,
) -> TracedKernel:
    """Trace every program of the launch; the first one's results are the outputs."""
    views = views or kernel._dialect == "neuronxcc"
    recorder.config = kernel._config
    place.line = kernel._code.co_firstlineno if kernel._code else 0
    recorder.kernel_line = place.line
    recorder.grid = kernel._grid
    recorder.auto_alloc = getattr(kernel._function, "auto_alloc", False)
    results: list[Any] = []
    arrays: list[Any] = []
    with recording(recorder), rare_garbage_collection():
        for where, core in kernel._programs():
            recorder.begin_program(where, core)
            bound, named, arrays = bind_arguments(kernel._function, args, kwargs, recorder)
            results.append(kernel._function(*bound, **named))
        result = results[0]
        found = [] if result is None and views else collect_outputs(result, recorder, views=views)
        numbers = [tensor._storage.id for tensor in found]
        kernel._check_results(
            inspect.signature(kernel._function).bind(*bound, **named).arguments, numbers, recorder
        )
        if views:
            numbers += [number for number in recorder.inputs_written() if number not in numbers]
        if not numbers:
            fail("no_output", "the kernel returns nothing", "return the nl.shared_hbm tensor it writes")
        return TracedKernel(recorder.to_bytes(kernel.__name__, numbers), arrays, result)


def _install_namespaces(source: str) -> Any:
    """The modules that a file may import; the legacy namespace is loaded only for files that name it."""
    if "neuronxcc" not in source:
        return install_modules(MODULES)
    from nki_sim.frontend.legacy import modules as legacy

    return install_modules({**MODULES, **legacy.MODULES})


def _execute_module(file: CompiledFile, module: ModuleType, entry: str | None) -> Kernel:
    namespace = module.__dict__
    namespace |= file.functions
    exec(file.code, namespace)  # noqa: S102  running it is the purpose
    return _find_kernel(namespace, entry)


def _parse_source(source: str, filename: str) -> ast.Module:
    try:
        return ast.parse(source, filename)
    except SyntaxError as error:
        raise KernelError("syntax_error", str(error.msg), error.lineno or 0) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise KernelError("syntax_error", str(error) or type(error).__name__) from error


def _assigned_names(tree: ast.Module) -> dict[int, str]:
    """Map lines to variables for `name = call(...)`, so that tensors get the name from the source."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            goal = node.targets[0]
            if isinstance(goal, ast.Name):
                names[node.value.lineno] = goal.id
    return names


def _parse_file(filename: str) -> ast.Module:
    """Parse a file of this process; returns an empty module if its source cannot be read."""
    try:
        with open(filename, encoding="utf-8") as file:  # noqa: PTH123  the name may not be a path at all
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _find_kernel(namespace: dict[str, Any], entry: str | None) -> Kernel:
    kernels = {name: value for name, value in namespace.items() if isinstance(value, Kernel)}
    wanted = entry or ("kernel" if "kernel" in kernels else None)
    if wanted is None and len(set(kernels.values())) == 1:
        return next(iter(kernels.values()))
    if wanted not in kernels:
        raise _no_entry_error(namespace, kernels, wanted)
    return kernels[wanted]


def _no_entry_error(
    namespace: Mapping[str, Any], kernels: Mapping[str, Kernel], wanted: str | None
) -> KernelError:
    """Return which function was probably meant, and what to write."""
    functions = [
        value
        for value in namespace.values()
        if inspect.isfunction(value) and value.__module__ == namespace["__name__"]
    ]
    plain = next((item for item in functions if item.__name__ in (wanted, "kernel")), None)
    if plain is None and not kernels and functions:
        plain = functions[-1]
    if plain is not None:
        line = plain.__code__.co_firstlineno
        text = f"the function `{plain.__name__}` is not decorated with @nki.jit"
        hint = f"write @nki.jit on the line above `def {plain.__name__}`"
        return KernelError("entry", text, line, hint)
    if not kernels:
        return KernelError("entry", "the file has no kernel", hint="write a function with @nki.jit above it")
    named = ", ".join(sorted(kernels))
    if wanted is None:
        hint = "name the one that is meant `kernel`, or name it as the entry"
        return KernelError("entry", f"the file has several @nki.jit functions: {named}", hint=hint)
    return KernelError("entry", f"no @nki.jit function {wanted}; found: {named}", hint="name one of these")
