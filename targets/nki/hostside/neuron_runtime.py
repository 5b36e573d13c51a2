"""Loads, runs and times a NEFF on one NeuronCore, through the runtime's Python package that is installed.

From SDK 2.32 on this is `nrtpy`; before, it was `spike`, with the same classes under other names. The wheel
of `nrtpy` cannot be installed beside that of `nki`, so it is looked for in other environments of the same
Python too. Source: the Neuron documentation of SDK 2.33, "nrtpy model API" and "Get started with nrtpy". Not
tried on a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.hostside.devices import KernelFaultError, LoadedKernel

LOGICAL_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
LOGICAL_SIZE = 1
"""Physical cores of a logical one. The compiler and the runtime must be told the same (NCC_EVRF066), and both
take 2 on Trainium 2 and 3 if they are told nothing; kernels here run on one core."""

ENVIRONMENTS = ("~/nrtpy_venv", "~/.cache/nki-kernel-agent/nrtpy", "/opt/aws_neuronx_venv*")
"""Where another environment may have nrtpy; the first is the documentation's."""

_PREFIXES = {"nrtpy": ("Nrtpy", "Spike"), "spike": ("Spike",)}  # of the classes Model and Tensor
_LIBRARY = Path("/opt/aws/neuron/lib/libnrt.so.1")


@dataclass(frozen=True)
class Runtime:
    """A runtime's package, and the folder of another environment that has it (empty: importable as it is)."""

    package: str
    folder: str = ""

    def describe(self) -> str:
        """Return its name, and where it is if that is elsewhere."""
        return "%s in %s" % (self.package, self.folder) if self.folder else self.package


def find_runtime() -> Runtime | None:
    """Return the newest runtime that is installed; nothing is imported."""
    if importlib.util.find_spec("nrtpy") is not None:
        return Runtime("nrtpy")
    tag = "python%d.%d" % sys.version_info[:2]  # its extension module is built for one version of Python
    for place in ENVIRONMENTS:
        pattern = os.path.join(os.path.expanduser(place), "lib", tag, "site-packages", "nrtpy")  # noqa: PTH111, PTH118
        for found in sorted(glob.glob(pattern), reverse=True):  # noqa: PTH207
            return Runtime("nrtpy", str(Path(found).parent))
    return Runtime("spike") if importlib.util.find_spec("spike") is not None else None


def _import_runtime(runtime: Runtime) -> tuple[Any, Any]:
    """Import the classes of models and of tensors.

    Raises:
        ImportError: the package has neither.
    """
    if runtime.folder:
        sys.path.append(runtime.folder)  # last: NumPy and all else come from our own environment
    if _LIBRARY.exists():  # the package links to it, and the loader does not look into this folder
        ctypes.CDLL(str(_LIBRARY), mode=ctypes.RTLD_GLOBAL)
    module = importlib.import_module(runtime.package)
    for prefix in _PREFIXES[runtime.package]:
        if hasattr(module, prefix + "Model"):
            return getattr(module, prefix + "Model"), getattr(module, prefix + "Tensor")
    raise ImportError("%s has no class of models that is known here" % runtime.describe())


class LoadedNeff(LoadedKernel):
    """A NEFF on a NeuronCore; `names` are the inputs in the order of the kernel's parameters.

    Raises:
        KernelFaultError: the runtime does not load it.
        ImportError: there is no runtime.
    """

    def __init__(self, neff: Path, names: Sequence[str], folder: Path) -> None:
        os.environ[LOGICAL_VARIABLE] = str(LOGICAL_SIZE)  # read when the runtime is initialised
        runtime = find_runtime()
        if runtime is None:
            raise ImportError("neither nrtpy nor spike is installed")
        model, self._tensor = _import_runtime(runtime)
        # The runtime wants the suffix, and writes files next to it.
        own = folder / ("%s.neff" % neff.parent.name)
        shutil.copyfile(neff, own)
        with _blame_kernel("device_load", "the runtime does not load what was compiled: "):
            self._model = model.load_from_neff(str(own))
        self._names = list(names)
        self._inputs: dict[str, Any] = {}

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        import numpy as np

        known = list(getattr(self._model, "input_tensors_info", {}) or self._names)
        names = self._names if set(self._names) == set(known) else known
        self._inputs = {
            name: self._tensor.from_numpy(np.ascontiguousarray(array), name)
            for name, array in zip(names, inputs)
        }
        with _blame_kernel("device_error"):
            outputs = self._model(inputs=self._inputs)
            # Types are not kept (`|V2` for float16): the bytes are what counts, and are sent as such.
            return [outputs[name].numpy() for name in sorted(outputs, key=_output_order)]

    def time_runs(self, warmups: int, runs: int) -> list[float]:
        with _blame_kernel("device_error"):
            if not runs:
                for _ in range(warmups):
                    self._model(inputs=self._inputs)
                return []
            result = self._model.benchmark(inputs=self._inputs, warmup_iter=warmups, benchmark_iter=runs)
        found = getattr(result, "durations_ms", None)
        if not found:  # older releases do not keep device-side durations
            found = [result.mean_ms] if runs == 1 else []
        return [float(value) for value in found]


def _output_order(name: str) -> tuple[str, int]:
    """Sort `output_10` after `output_2`; names without a number keep their order."""
    found = re.fullmatch(r"(.*?)(\d+)", name)
    return (found[1], int(found[2])) if found else ("", 0)


@contextlib.contextmanager
def _blame_kernel(code: str, said: str = "") -> Iterator[None]:
    """Turn what the runtime raises into the kernel's failure; home then checks whether another kernel runs.

    Raises:
        KernelFaultError: the runtime raised something.
    """
    try:
        yield
    except Exception as error:
        message = "%s%s: %s" % (said, type(error).__name__, str(error)[-4000:])
        told = {"type": "RuntimeError", "code": code, "message": message, "line": 0, "hint": ""}
        raise KernelFaultError(told) from error
