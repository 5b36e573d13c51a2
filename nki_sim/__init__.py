"""The embedded device: NKI kernels on a CPU, with a performance model.

A kernel's Python runs once, on shapes, and leaves a `Program` (`ir`); numerics, rules, timing, counters
and explanations are functions of that program alone. Nothing here knows of the agent, and nothing outside
the standard library is imported until it is used. Open `forms` and `operators` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nki_sim.forms import ArraySpec

if TYPE_CHECKING:
    from nki_sim.program.ir import Program

__version__ = "0.1.0"
MODEL_VERSION = 4

__all__ = ["MODEL_VERSION", "ArraySpec", "__version__", "eager", "toolchain", "trace"]


def toolchain() -> str:
    """Names what a result depends on besides kernel and target; part of cache keys."""
    from nki_sim.program.wire import VERSION

    return f"nki_sim {__version__} model {MODEL_VERSION} format {VERSION}"


def trace(
    source: str,
    *,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    target: str = "trn2",
    entry: str | None = None,
    filename: str = "kernel.py",
    lnc: int | None = None,
    max_instructions: int = 2_000_000,
) -> Program:
    """Run a kernel's Python on shapes, in this process, and return its program.

    Arguments are `ArraySpec`, plain values, and lists, tuples, dictionaries and dataclasses of these. `lnc`
    launches the kernel on that many cores, as `kernel[lnc](...)` does.

    Raises:
        nki_sim.errors.KernelError: the kernel does not parse, breaks a rule or raises.
        nki_sim.errors.TargetError: unknown target.
    """
    from nki_sim.frontend.entry import trace_bytes
    from nki_sim.program.ir import Program

    return Program.from_bytes(
        trace_bytes(
            source,
            args=args,
            kwargs=kwargs,
            target=target,
            entry=entry,
            filename=filename,
            lnc=lnc,
            max_instructions=max_instructions,
        )
    )


def eager(kernel: Any, inputs: Sequence[Any], target: str = "trn2", *, entry: str | None = None) -> Any:
    """Run a kernel, a function of this process or the path of a file, with values at hand in its Python.

    `inputs` are arrays and plain values; the result has arrays in the place of the tensors it returns.

    Raises:
        nki_sim.errors.KernelError: the kernel breaks a rule or raises.
        nki_sim.errors.TargetError: unknown target.
    """
    from nki_sim.frontend import eager as module

    return module.run_eagerly(kernel, inputs, target, entry=entry)
