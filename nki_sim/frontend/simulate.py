"""Runs kernels of this process on arrays: traces, checks, computes, and returns arrays of the same kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.checks import warnings
from nki_sim.checks.violations import raise_violations
from nki_sim.forms import ArraySpec
from nki_sim.frontend.api import Kernel, configure_launch
from nki_sim.frontend.bind import map_tensors
from nki_sim.frontend.context import platform_target
from nki_sim.frontend.entry import TracedKernel, trace_function
from nki_sim.frontend.faults import locate_errors
from nki_sim.frontend.operands import dtype_name
from nki_sim.frontend.tensor import Tensor
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.semantics.arrays import NUMPY, Array


def run(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel and return its result, as NumPy arrays or torch tensors like the arguments.

    Arrays that the kernel writes are changed in place. An output may be written in part; its other elements
    are undefined.

    Raises:
        KernelError: the kernel breaks a rule or raises; the traceback ends at the line of its file.
        TargetError: the environment names an unknown target.
    """
    with locate_errors(kernel._code):
        traced, program = trace_and_check(kernel, args, kwargs)
        arrays = [to_numpy(array) for array in traced.arrays]
        outputs = numerics.run(program, arrays, partial_outputs=True)
        found = dict(zip(program.outputs, outputs, strict=True))
    torch = any(_is_torch(array) for array in traced.arrays)
    for number, array in zip(program.inputs, traced.arrays, strict=True):
        if number in found:
            _write_back(array, found[number])

    def result(tensor: Tensor) -> Any:
        array = found[tensor._storage.id].reshape(tensor.shape)
        return to_torch(array) if torch else array

    return None if traced.result is None else map_tensors(traced.result, result)


def trace_and_check(
    kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[TracedKernel, Program]:
    """Trace the kernel on shapes; return it and its program, which breaks no rule.

    Raises:
        KernelError: for the first broken rule.
    """
    target = platform_target()
    filename, line = _code_place(kernel)
    if kernel._dialect == "nki" and kernel._bracketed:
        warnings.emit_warning(warnings.bracketed_launch(kernel.__name__, kernel._grid[0], line), filename)
    traced = trace_function(configure_launch(kernel), args, kwargs, target=target)
    program = Program.from_bytes(traced.program)
    raise_violations(checks.check(program, targets.load(target), partial_outputs=True))
    for warning in warnings.find_warnings(program, targets.load(target)):
        warnings.emit_warning(warning, filename)
    return traced, program


def _code_place(kernel: Kernel) -> tuple[str, int]:
    """The file and line of a kernel's Python."""
    return (kernel._code.co_filename, kernel._code.co_firstlineno) if kernel._code else ("kernel.py", 0)


def predict_latency_us(kernel: Kernel, *args: Any, **kwargs: Any) -> float:
    """Predict the latency of the kernel with these arguments, in us.

    Raises:
        KernelError: the kernel breaks a rule or raises; `latency_unknown` if the number of iterations of one
            of its loops depends on data.
    """
    from nki_sim.timing.forecast import forecast_program, unknown_latency_error

    with locate_errors(kernel._code):
        _, program = trace_and_check(kernel, args, kwargs)
        unknown = unknown_latency_error(program)
        if unknown:
            raise unknown
    return forecast_program(program, targets.load(program.target)).latency_ms * 1e3


# -- arrays of other packages --------------------------------------------------------------------


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def to_numpy(array: Any) -> Array:
    """Convert an array to a type that programs take; torch types that NumPy lacks are read bit by bit.

    A specification of an array stands for one of zeros.
    """
    if isinstance(array, ArraySpec):
        return np.zeros(array.shape, NUMPY[array.dtype])
    if not _is_torch(array):
        found = np.asarray(array)
        return found.astype(NUMPY[dtype_name(found.dtype)], copy=False)
    import torch

    wanted = NUMPY[dtype_name(array.dtype)]
    plain = array.detach().cpu().contiguous()
    try:
        return np.asarray(plain.numpy()).astype(wanted, copy=False)
    except TypeError:
        bits = {1: torch.uint8, 2: torch.int16}[plain.element_size()]
        return np.asarray(plain.view(bits).numpy()).view(wanted)


def to_torch(array: Array) -> Any:
    """Convert a NumPy array to a torch tensor."""
    import torch

    kind = getattr(torch, dtype_name(array.dtype).removesuffix("_"))
    try:
        return torch.from_numpy(np.ascontiguousarray(array)).to(kind)
    except TypeError:
        bits = f"i{array.itemsize}" if array.itemsize > 1 else "u1"
        return torch.from_numpy(np.ascontiguousarray(array).view(bits)).view(kind)


def _write_back(array: Any, values: Array) -> None:
    if _is_torch(array):
        array.copy_(to_torch(values))
    elif isinstance(array, np.ndarray):
        np.copyto(array, values.astype(array.dtype, copy=False))
