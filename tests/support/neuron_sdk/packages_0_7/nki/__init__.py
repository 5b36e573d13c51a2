"""Stands in for the vendor's package of NKI 0.7: a decorated kernel compiles when it is called with arrays.

The NEFF goes to the folder that NKI_ARTIFACTS_DIR named when this package was imported. Then the kernel is
run, which fails, because there is no device here.
"""

import inspect
import json
import os
from pathlib import Path

from stand_in_neff import make_neff

_ARTIFACTS = os.environ.get("NKI_ARTIFACTS_DIR")


class Kernel:
    """What the decorator makes of a function."""

    def __init__(self, func):
        self.func = func

    def __call__(self, *arguments):
        compile_to(_ARTIFACTS, self.func, arguments)
        raise RuntimeError("NRT Error NRT_INVALID(2): no Neuron device is available")

    def _to_subclass(self, subclass, **fields):
        """Internal; a kernel whose file says `# executor: none` is as of a release that has it no more."""
        if "# executor: none" in Path(inspect.getsourcefile(self.func)).read_text():
            raise AttributeError("_to_subclass")
        return subclass(self.func, **fields)


def compile_to(folder, func, arguments, target=None):
    """Write kernel.neff to a folder, which must be empty."""
    names = func.__code__.co_varnames[: func.__code__.co_argcount]
    neff = make_neff(
        func,
        dict(zip(names, arguments, strict=False)),
        target=target or os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"],
        logical=int(os.environ["NEURON_LOGICAL_NC_CONFIG"]),
    )
    Path(folder).mkdir(parents=True, exist_ok=True)
    if list(Path(folder).iterdir()):
        raise RuntimeError("Compilation artifacts already exist")
    left = {"nothing": None, "empty": ""}.get(neff["faults"].get("compile"), json.dumps(neff))
    if left is not None:
        (Path(folder) / "kernel.neff").write_text(left)


def jit(func=None, *, compile_config=None, specialization_config=None):
    return jit if func is None else Kernel(func)
