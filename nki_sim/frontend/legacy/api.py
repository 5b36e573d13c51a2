"""`neuronxcc.nki` itself: the decorators that mark kernels, and the ways to run one.

A kernel called with arrays is traced and run by the simulator; called from another kernel it is inlined.
Every latency here is predicted by the model, none is measured.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from nki_sim.errors import KernelError
from nki_sim.frontend import api as current_api
from nki_sim.frontend.api import ProgramInstance
from nki_sim.frontend.legacy.grid import LaunchGrid
from nki_sim.frontend.legacy.recorder import LegacyRecorder
from nki_sim.frontend.legacy.tiles import Tile
from nki_sim.frontend.legacy.typing import mutable_tensor
from nki_sim.frontend.namespace import Namespace
from nki_sim.frontend.recorder import Recorder
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.frontend.types import TensorType

__all__ = ["baremetal", "benchmark", "jit", "profile", "simulate_kernel", "tensor", "trace"]

_MODES = frozenset({"auto", "jax", "torchxla", "baremetal", "benchmark", "profile", "simulation", "trace"})


class Latency:
    """PREDICTED latency of a kernel in us; the model has no spread, so all percentiles are the same."""

    def __init__(self, predicted_us: float) -> None:
        self._predicted_us = predicted_us

    def __repr__(self) -> str:
        return f"Latency({self._predicted_us:.4g} us predicted)"

    def get_latency_percentile(self, percentile: int) -> float:
        """Return the predicted latency in us."""
        del percentile
        return self._predicted_us


class BenchmarkResult:
    """The value of `kernel.benchmark_result` after a call."""

    def __init__(self, predicted_us: float) -> None:
        self.nc_latency = Latency(predicted_us)


class LegacyKernel(current_api.Kernel):
    """A function marked as a kernel, and the grid it is launched on."""

    _dialect: ClassVar[str] = "neuronxcc"
    _recorder: ClassVar[type[Recorder]] = LegacyRecorder

    def __init__(
        self, function: Callable[..., Any], mode: str = "auto", grid: LaunchGrid | None = None
    ) -> None:
        super().__init__(function._function if isinstance(function, current_api.Kernel) else function)
        self._mode = mode
        self._launch_grid = grid or LaunchGrid(())
        self._grid = self._launch_grid.shape
        self.benchmark_result: BenchmarkResult | None = None

    def __getitem__(self, grid: Any) -> LegacyKernel:
        return type(self)(self._function, self._mode, LaunchGrid.from_key(grid))

    def _programs(self) -> Iterator[ProgramInstance]:
        """Yield the programs of a launch in the order in which they are traced."""
        return self._launch_grid.programs()

    def _check_results(self, arguments: Mapping[str, Any], returned: list[int], recorder: Recorder) -> None:
        """Check that written arguments are annotated as mutable and returned, or are the only outputs."""
        recorder.inputs_written()
        _check_mutations(self._function, arguments, returned, getattr(recorder, "written_inputs", {}))

    def _launch(self, *args: Any, **kwargs: Any) -> Any:
        """Handle a call from outside kernels: run on arrays, or predict the latency."""
        from nki_sim.frontend import simulate

        if self._mode == "trace":
            fail(
                "nki_api_outside_of_nki_kernel", f"{self.__name__}, marked @nki.trace, is called with arrays",
                "call it from a kernel; mark what is launched with @nki.jit",
            )  # fmt: skip
        if self._mode == "benchmark":
            self.benchmark_result = BenchmarkResult(simulate.predict_latency_us(self, *args, **kwargs))
            return None
        return simulate.run(self, *args, **kwargs)


def jit(kernel: Any = None, mode: str = "auto", *, grid: Any = None, **options: Any) -> Any:
    """Mark a kernel; with or without parentheses. `grid` is its launch, other options are the compiler's."""
    del options
    if mode not in _MODES:
        fail("argument_value", f"nki.jit(mode={mode!r})", f"one of {', '.join(sorted(_MODES))}")
    if kernel is None:
        return lambda function: jit(function, mode, grid=grid)
    return LegacyKernel(kernel, mode, None if grid is None else LaunchGrid.from_key(grid))


def baremetal(kernel: Any = None, **options: Any) -> Any:
    """Mark a kernel that takes and returns NumPy arrays; here it runs on the simulator."""
    return jit(kernel, mode="baremetal", **options)


def benchmark(kernel: Any = None, **options: Any) -> Any:
    """Mark a kernel whose calls fill `.benchmark_result.nc_latency` with PREDICTED latencies; no run."""
    return jit(kernel, mode="benchmark", **options)


def profile(kernel: Any = None, **options: Any) -> Any:
    """Mark a kernel that runs on the simulator; no NEFF and no trace files are written."""
    return jit(kernel, mode="profile", **options)


def trace(kernel: Any = None, **options: Any) -> Any:
    """Mark a function that other kernels inline."""
    return jit(kernel, mode="trace", **options)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel, possibly with a grid (`kernel[n, m]`), on NumPy arrays and return its outputs."""
    from nki_sim.frontend import simulate

    wanted = kernel if isinstance(kernel, LegacyKernel) else LegacyKernel(kernel)
    return simulate.run(wanted, *args, **kwargs)


tensor = Tile

_namespace = Namespace("neuronxcc.nki", __all__, {})


def __getattr__(name: str) -> Any:
    return _namespace.refuse_name(name)


def _check_mutations(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    returned: list[int],
    written: Mapping[int, int],
) -> None:
    """Check that the arguments that a kernel writes (number -> line) are annotated as mutable and returned.

    If a kernel returns nothing, they are its outputs, as in the first release.
    """
    notes = inspect.signature(function).parameters
    for name, value in arguments.items():
        if not returned or not isinstance(value, Tensor) or value._storage.id not in written:
            continue
        line = written[value._storage.id]
        if not _is_mutable(notes[name].annotation):
            raise KernelError(
                "cannot_update_immutable_parameter", f"parameter {name} is immutable, the kernel writes it",
                line, "annotate it as nt.mutable_tensor, or write to a tensor of the kernel's own",
            )  # fmt: skip
        if value._storage.id not in returned:
            raise KernelError(
                "mutable_parameter_not_returned", f"parameter {name} is written and not returned", line,
                "return every parameter that is annotated as mutable",
            )  # fmt: skip


def _is_mutable(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2].startswith("mutable_tensor")
    if isinstance(annotation, TensorType):
        return annotation._name == mutable_tensor.__name__
    return isinstance(annotation, type) and issubclass(annotation, mutable_tensor)
