"""The modules that legacy kernels import, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from nki_sim.frontend.legacy import api, compiler, isa, language, typing

_CHILDREN = {"language": language, "isa": isa, "typing": typing, "compiler": compiler}


def _build_package() -> ModuleType:
    package = ModuleType("neuronxcc", "The package that holds the legacy namespace.")
    vars(package)["nki"] = api
    vars(package)["__path__"] = []
    vars(api).update(_CHILDREN)
    return package


MODULES: Mapping[str, ModuleType] = {
    "neuronxcc": _build_package(),
    "neuronxcc.nki": api,
    **{f"neuronxcc.nki.{name}": module for name, module in _CHILDREN.items()},
}
