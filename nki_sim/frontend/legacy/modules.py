"""The modules that legacy kernels import, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from nki_sim.frontend.legacy import api, compiler, isa, language, typing
from nki_sim.frontend.modules import build_constants

_CHILDREN = {"language": language, "isa": isa, "typing": typing, "compiler": compiler}


def _build_package() -> ModuleType:
    package = ModuleType("neuronxcc", "The package that holds the legacy namespace.")
    vars(package)["nki"] = api
    vars(package)["__path__"] = []
    vars(api).update(_CHILDREN)
    return package


def _build_constants() -> dict[str, ModuleType]:
    """Modules of constants below those of instructions and of the language."""
    made = {}
    for parent in ("isa", "language"):
        name = f"neuronxcc.nki.{parent}.constants"
        made[name] = build_constants(name)
        vars(_CHILDREN[parent])["constants"] = made[name]
    vars(made["neuronxcc.nki.language.constants"]).update(
        {item: getattr(language, item) for item in ("bfp16", "fp32", "tile_size")}
    )
    return made


MODULES: Mapping[str, ModuleType] = {
    "neuronxcc": _build_package(),
    "neuronxcc.nki": api,
    **{f"neuronxcc.nki.{name}": module for name, module in _CHILDREN.items()},
    **_build_constants(),
}
