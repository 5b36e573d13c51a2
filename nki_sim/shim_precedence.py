"""Decides what `import nki` gives when the shims are on the path: a real package found later, if any.

`NKI_SIM_FORCE=1` keeps the simulator even if a real package is installed.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

FORCE = "NKI_SIM_FORCE"

_SHIMS = Path(__file__).resolve().parent / "shims"


def use_installed_package(module: ModuleType) -> bool:
    """Replace a shim package by the installed package of its name and run it; False if the shim stays.

    Only a regular package counts. A folder of that name without `__init__` does not.
    """
    if os.environ.get(FORCE, "") not in {"", "0"}:
        return False
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != _SHIMS]
    real = PathFinder.find_spec(module.__name__, others)
    if real is None or real.loader is None or real.origin is None:
        return False
    module.__path__ = list(real.submodule_search_locations or [])
    module.__spec__ = real
    module.__file__ = real.origin
    real.loader.exec_module(module)
    return True
