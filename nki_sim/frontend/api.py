"""`nki` itself: `jit`, which marks a kernel that other kernels can still call, launches, and `simulate`."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, ClassVar

from nki_sim.dtypes import DType
from nki_sim.frontend.compile_options import KernelConfig
from nki_sim.frontend.context import current_recorder, current_target, is_tracing
from nki_sim.frontend.namespace import Namespace
from nki_sim.frontend.nki_tensor import NkiTensor
from nki_sim.frontend.recorder import Recorder
from nki_sim.frontend.storage import fail
from nki_sim.refusals import DocumentedNames

__all__ = ["dtype", "jit", "simulate", "tensor"]

dtype, tensor = DType, NkiTensor

ProgramInstance = tuple[tuple[int, ...], int]
"""The place of a program in the launch grid, and the core that runs it."""


_NO_CONFIG = KernelConfig()


class Kernel(DocumentedNames):
    """A function marked with `@nki.jit`; `kernel[lnc]` launches it on that many cores.

    Called from another kernel it runs inline. Called with arrays it is simulated if `NKI_SIMULATOR=1`.
    """

    _dialect: ClassVar[str] = "nki"
    _recorder: ClassVar[type[Recorder]] = Recorder

    def __init__(
        self,
        function: Callable[..., Any],
        grid: tuple[int, ...] = (),
        config: KernelConfig = _NO_CONFIG,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._grid = grid
        self._config = config
        self._bracketed = False
        self.__name__ = getattr(function, "__name__", "kernel")

    @property
    def func(self) -> Callable[..., Any]:
        """The Python function."""
        return self._function

    @property
    def _code(self) -> CodeType | None:
        """The Python code behind partial calls, wrappers and objects with a `__call__`, or None."""
        found = inspect.unwrap(self._function)
        while isinstance(found, functools.partial):
            found = inspect.unwrap(found.func)
        if not hasattr(found, "__code__"):
            found = type(found).__call__
        return getattr(found, "__code__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            if self._grid and self._grid != (1,):
                fail(
                    "nested_kernel_with_spmd_grid",
                    f"{self.__name__}{list(self._grid)} is called in a kernel",
                    "call it without a grid: it runs in the launch it is called from",
                )  # fmt: skip
            current_recorder().config.check_nested(self._config, self.__name__)
            return self._function(*args, **kwargs)
        return self._launch(*args, **kwargs)

    def _launch(self, *args: Any, **kwargs: Any) -> Any:
        """Handle a call from outside kernels."""
        if os.environ.get("NKI_SIMULATOR", "").lower() not in {"1", "true"}:
            fail(
                "no_device", f"{self.__name__} is called with arrays and there is no device",
                "call nki.simulate(kernel)(...), or set NKI_SIMULATOR=1",
            )  # fmt: skip
        return simulate(self)(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Kernel:
        cores = grid[0] if isinstance(grid, tuple) and len(grid) == 1 else grid
        if type(cores) is not int or cores not in {1, 2}:
            fail(
                "launch_grid",
                f"{self.__name__}[{grid}]",
                "a logical core has one or two: kernel[1], kernel[2]",
            )
        made = self._launched_on(cores)
        made._bracketed = True
        return made

    def _launched_on(self, cores: int) -> Kernel:
        """Return the kernel with a launch of that many cores."""
        return type(self)(self._function, (cores,), self._config)

    def _programs(self) -> Iterator[ProgramInstance]:
        """Yield the programs of a launch in the order in which they are traced."""
        if not self._grid:
            yield (), 0
        for number in range(self._grid[0] if self._grid else 0):
            yield (number,), number

    def _check_results(self, arguments: Mapping[str, Any], returned: list[int], recorder: Recorder) -> None:
        """Check the arguments that the kernel wrote and its results against the rules of its dialect."""

    def with_schedule(self, edges: Any) -> Kernel:
        """Return the kernel; edges between named instructions are a hint that no result depends on."""
        for edge in edges:
            later, earlier = edge
            names = [later, *(earlier if isinstance(earlier, list | tuple) else [earlier])]
            if any(not isinstance(name, str) for name in names):
                fail("schedule", f"{edge!r} is not a pair of names of instructions")
        return self


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Mark a kernel; with or without parentheses. `grid` is the launch, other options are the compiler's.

    `compile_config` and `specialization_config` are objects of `nki.compiler`.
    """
    if function is None:
        return functools.partial(jit, **options)
    if not callable(function):
        fail(
            "argument_type",
            f"nki.jit of {type(function).__name__}, not of a function",
            "@nki.jit or @nki.jit()",
        )
    config = KernelConfig(options.get("compile_config"), options.get("specialization_config"))
    made = function if isinstance(function, Kernel) else Kernel(function, config=config)
    grid = options.get("grid")
    return made if grid is None else made[tuple(grid) if isinstance(grid, list) else grid]


LOGICAL_CORE = "NEURON_LOGICAL_NC_CONFIG"
"""The environment variable with the number of cores in a logical core."""

_PAIRED = 3
"""The generation of NeuronCores that two of a logical core begin with."""


def configure_launch(kernel: Kernel) -> Kernel:
    """Return the kernel as NEURON_LOGICAL_NC_CONFIG launches it; without that variable it stays as it is.

    A graph is compiled for one number of cores: a kernel that names another one in brackets is refused.
    """
    value = os.environ.get(LOGICAL_CORE)
    if value is None or kernel._dialect != "nki":
        return kernel
    if value not in {"1", "2"}:
        fail("lnc", f"{LOGICAL_CORE} is {value!r}", "a logical core has 1 core or 2")
    cores, target = int(value), current_target()
    if cores > 1 and target.generation < _PAIRED:
        fail(
            "lnc", f"{LOGICAL_CORE} is {value}, {target.name} has one core in a logical core (NCC_EARG001)",
            "set it to 1",
        )  # fmt: skip
    if kernel._grid and kernel._grid != (cores,):
        fail(
            "lnc_mismatch", f"NKI kernel '{kernel.__name__}' is configured with LNC={kernel._grid[0]}, but "
            f"neuronx-cc is using LNC={cores} (NCC_EVRF066)",
            f"leave the brackets out: {LOGICAL_CORE} says how many cores there are",
        )  # fmt: skip
    return kernel if kernel._grid or cores == 1 else kernel._launched_on(cores)


def simulate(kernel: Any) -> Callable[..., Any]:
    """Return the kernel as a function of NumPy arrays or torch tensors that runs on the CPU.

    The target is NEURON_PLATFORM_TARGET_OVERRIDE, by default trn2; the cores of a launch are those of
    NEURON_LOGICAL_NC_CONFIG, by default 1. Arrays that the kernel writes are changed in place. The call
    raises KernelError if the kernel breaks a rule.
    """
    from nki_sim.frontend.simulate import run

    return functools.partial(run, jit(kernel))


def simulate_kernel_call(
    func: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, _lnc: int | None = None
) -> Any:
    """Run a kernel on arrays, as `nki.simulator.simulate_kernel` does; `_lnc` is the number of cores."""
    kernel = jit(func)
    return simulate(kernel if _lnc is None else kernel._launched_on(_lnc))(*args, **(kwargs or {}))


_OLDER = ("baremetal", "benchmark", "profile", "simulate_kernel")
_namespace = Namespace("nki", __all__, dict.fromkeys(_OLDER, "there are nki.jit and nki.simulate"))


def __getattr__(name: str) -> Any:
    return _namespace.refuse_name(name)
