"""The modules that kernels import: `nki` and its submodules, installed while a kernel file runs.

Each holds the names that its source lists in `__all__`, and nothing that the source imports for itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

from nki_sim.dtypes import DTYPES, DType
from nki_sim.frontend import api, isa, language, types
from nki_sim.frontend.argument_values import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from nki_sim.frontend.compile_options import AddressRotation, CompileConfig, SpecializationConfig
from nki_sim.frontend.namespace import Namespace
from nki_sim.frontend.storage import fail

_CONSTANTS = (dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd)

# Names that the documents list for these modules.
COLLECTIVES = (
    "ReplicaGroup", "all_gather", "all_gather_v", "all_gather_v_prepare", "all_gather_v_trigger",
    "all_reduce", "all_to_all", "all_to_all_v", "all_to_all_v_prepare", "all_to_all_v_trigger",
    "collective_permute", "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id", "collective_permute_implicit_reduce", "rank_id",
    "reduce_scatter",
)  # fmt: skip
_DIRECTIVES = (
    "allocation_scope", "enable_stack_allocator", "force_auto_alloc", "multi_buffer", "no_reorder",
    "skip_middle_end_transformations",
)  # fmt: skip


class RefusedModule(ModuleType):
    """A module that imports and whose `refused` functions are refused by name."""

    def __init__(self, name: str, reason: str, functions: Collection[str]) -> None:
        super().__init__(name, reason)
        self._namespace = Namespace(name, functions, {})
        self._refused = frozenset(functions)
        self.__dict__.update({function: self._refusing_function(function) for function in functions})

    def _refusing_function(self, name: str) -> Callable[..., NoReturn]:
        def refuse(*_: object, **__: object) -> NoReturn:
            fail("unsupported", f"not supported: {self.__name__}.{name}", self.__doc__ or "")

        return refuse

    def __getattr__(self, name: str) -> Any:
        return self._namespace.refuse_name(name)


def list_offered(module: ModuleType) -> list[str]:
    """Return the names that kernels can use of a module; other modules in it have names of their own."""
    refused = vars(module).get("_refused", frozenset())
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in refused
    )


class _DataTypeModule(ModuleType):
    """A module that also works as an annotation, as in `nki.dtype | None`: any data type."""

    def __or__(self, other: Any) -> Any:
        return DType | other

    __ror__ = __or__


def _build_data_types() -> ModuleType:
    module = _DataTypeModule("nki.dtype", "The data types of `nki.language`.")
    module.__dict__.update(DTYPES)
    return module


def build_surface(name: str, source: ModuleType) -> ModuleType:
    """Build the module that kernels import, with what its source lists in `__all__`."""
    module = ModuleType(name, source.__doc__)
    vars(module).update({item: getattr(source, item) for item in source.__all__})
    refuse = vars(source).get("__getattr__")
    if refuse is not None:
        vars(module)["__getattr__"] = refuse
    return module


def build_constants(name: str) -> ModuleType:
    """Build the module `constants` of an instruction set: its enumerations."""
    module = ModuleType(name, "The enumerations of `nki.isa`.")
    module.__dict__.update({item.__name__: item for item in _CONSTANTS})
    return module


def _build_simulator() -> ModuleType:
    module = ModuleType("nki.simulator", "The entry that frameworks call to simulate a kernel.")
    vars(module)["simulate_kernel"] = api.simulate_kernel_call
    return module


def _build_modules() -> dict[str, ModuleType]:
    collectives = "collectives move data between devices; there is one device here"
    compiler = "its options change how a compiler works, not what a kernel computes; leave them out"
    made: dict[str, ModuleType] = {
        "nki": build_surface("nki", api),
        "nki.language": build_surface("nki.language", language),
        "nki.isa": build_surface("nki.isa", isa),
        "nki.isa.constants": build_constants("nki.isa.constants"),
        "nki.dtype": _build_data_types(),
        "nki.typing": build_surface("nki.typing", types),
        "nki.collectives": RefusedModule("nki.collectives", collectives, COLLECTIVES),
        "nki.compiler": RefusedModule("nki.compiler", compiler, _DIRECTIVES),
        "nki.simulator": _build_simulator(),
    }
    vars(made["nki.compiler"]).update(
        {item.__name__: item for item in (AddressRotation, CompileConfig, SpecializationConfig)}
    )
    return made


MODULES: Mapping[str, ModuleType] = _build_modules()


def attach_submodules() -> None:
    """Make each module an attribute of its parent, as importing does."""
    for name, module in MODULES.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(MODULES[parent], child, module)


@contextmanager
def install_modules(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Let `import` find these modules meanwhile, even if real packages of their names are installed."""
    roots = {name.partition(".")[0] for name in modules}
    taken = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in roots}
    for name in taken:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
            del sys.modules[name]
        sys.modules.update(taken)


@contextmanager
def register_module(module: ModuleType) -> Iterator[None]:
    """Put the module into `sys.modules` meanwhile, where dataclasses, typing and enum look it up."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before


def create_module(name: str, filename: str) -> ModuleType:
    """Create an empty module for a file; its `__name__` is not the name of any importable file."""
    module = ModuleType(f"__{name}__")
    module.__file__ = filename
    return module


attach_submodules()
