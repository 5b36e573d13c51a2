"""Stands in for the CPU simulator that nki-library's tests import: its names, this simulator behind them.

`nki.cpu_simulate(kernel)[cores](**arrays)` runs a kernel; its other modules are those of the `nki` shim.
"""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

import nki

TARGETS = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}
SUBMODULES = (
    "language",
    "language.dtypes",
    "isa",
    "isa.constants",
    "typing",
    "compiler",
    "builtin",
    "tensor",
)


class _Simulated:
    """A kernel and the number of cores it is launched on."""

    def __init__(self, kernel: Any, cores: int = 1) -> None:
        self._kernel = kernel
        self._cores = cores

    def __getitem__(self, cores: int) -> "_Simulated":
        return _Simulated(self._kernel, cores)

    def __call__(self, **arguments: Any) -> Any:
        target = TARGETS.get(os.environ.get("NKI_NC_VERSION", ""))
        if target:
            os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = target
        kernel = self._kernel if hasattr(self._kernel, "__getitem__") else nki.jit(self._kernel)
        return nki.simulate(kernel[self._cores])(**arguments)


def _module(name: str) -> ModuleType:
    """`nki.<name>`, or else what the module above it holds, under this name."""
    try:
        return importlib.import_module(f"nki.{name}")
    except ModuleNotFoundError:
        made = ModuleType(f"nki.{name}")
        above = sys.modules.get(f"nki.{name.rpartition('.')[0]}") if "." in name else None
        vars(made).update({key: value for key, value in vars(above or made).items() if key[:2] != "__"})
        return made


nki.cpu_simulate = _Simulated
sys.modules[f"{__name__}.nki"] = nki
for _name in SUBMODULES:
    _made = sys.modules[f"{__name__}.nki.{_name}"] = _module(_name)
    _above, _, _last = f"{__name__}.nki.{_name}".rpartition(".")
    if not hasattr(sys.modules[_above], _last):
        # `import nki_cpu_simulator.nki.isa.constants as ...` asks the module above for it.
        setattr(sys.modules[_above], _last, _made)
