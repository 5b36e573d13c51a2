"""The modules that legacy kernels import, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from nki_sim.frontend.legacy import api, compiler, isa, language, typing
from nki_sim.frontend.modules import build_constants, build_surface

_SOURCES = {"language": language, "isa": isa, "typing": typing, "compiler": compiler}
_CHILDREN = {name: build_surface(f"neuronxcc.nki.{name}", source) for name, source in _SOURCES.items()}


def _build_packages() -> dict[str, ModuleType]:
    nki = build_surface("neuronxcc.nki", api)
    vars(nki).update(_CHILDREN)
    package = ModuleType("neuronxcc", "The package that holds the legacy namespace.")
    vars(package).update({"nki": nki, "__path__": []})
    return {"neuronxcc": package, "neuronxcc.nki": nki}


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
    **_build_packages(),
    **{f"neuronxcc.nki.{name}": module for name, module in _CHILDREN.items()},
    **_build_constants(),
}
