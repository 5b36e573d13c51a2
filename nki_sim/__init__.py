"""Simulator of a NeuronCore: runs NKI kernels on a CPU and predicts their performance.

`trace` runs a kernel's Python once, on shapes, and records a `Program` (`program/ir.py`). Numerics, rule
checks, timing, counters and explanations are all functions of that program. This package does not depend on
the agent, and it imports nothing outside the standard library until it needs it. Open `forms.py` first, then
`operators/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nki_sim.forms import ArraySpec

if TYPE_CHECKING:
    from nki_sim.program.ir import Program

__version__ = "0.1.0"
MODEL_VERSION = 7

__all__ = ["MODEL_VERSION", "ArraySpec", "__version__", "eager", "read_values", "toolchain", "trace"]


def toolchain() -> str:
    """Return a string that names everything a result depends on besides kernel and target; used in cache
    keys.
    """
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
    launches the kernel on that many cores, like `kernel[lnc](...)`.

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
    """Run a kernel so that its Python code can read tensor values while it runs.

    `kernel` is a function of this process or the path of a file. `inputs` are arrays and plain values. The
    result holds arrays instead of the tensors that the kernel returns.

    Raises:
        nki_sim.errors.KernelError: the kernel breaks a rule or raises.
        nki_sim.errors.TargetError: unknown target.
    """
    from nki_sim.frontend import eager as module

    return module.run_eagerly(kernel, inputs, target, entry=entry)


def read_values(tile: Any) -> Any:
    """Return a copy of a tile's current elements as an array, in kernels that run eagerly.

    Raises:
        nki_sim.errors.KernelError: the values are not known, as while tracing.
    """
    from nki_sim.frontend import context
    from nki_sim.frontend.storage import fail

    found = context.read_values(tile)
    if found is None:
        fail("no_values", f"the values of {tile.name} are not known here", "run the kernel eagerly")
    return found
