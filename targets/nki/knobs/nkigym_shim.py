"""Provides `nkigym.ops` for workloads that import their operators from there, with the classes of `ops.py`.

An installed package of that name is left alone, and wins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from re import sub
from types import ModuleType
from typing import Any, TypeVar

from targets.nki.knobs import ops

PACKAGE = "nkigym"

F = TypeVar("F", bound=Callable[..., Any])


def nkigym_kernel(function: F) -> F:
    """Marks a workload's function; does nothing here."""
    return function


@contextmanager
def provide_nkigym() -> Iterator[None]:
    """Make `from nkigym.ops import NKIMatmul` and `from nkigym.ops.matmul import NKIMatmul` work."""
    made = {} if PACKAGE in sys.modules or find_spec(PACKAGE) is not None else _build_modules()
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            sys.modules.pop(name, None)


def _build_modules() -> dict[str, ModuleType]:
    """The package, its operators, and a module for each, such as `tensor_scalar` for NKITensorScalar."""
    classes = {
        name: item for name, item in vars(ops).items() if name.startswith("NKI") and item is not ops.NKIOp
    }
    parts = {_snake_case(name): {name: item} for name, item in classes.items()}
    package, every = ModuleType(PACKAGE), ModuleType(f"{PACKAGE}.ops")
    vars(every).update(classes, nkigym_kernel=nkigym_kernel, __path__=[])
    vars(package).update(ops=every, __path__=[])
    found = {PACKAGE: package, every.__name__: every}
    for stem, names in parts.items():
        module = ModuleType(f"{PACKAGE}.ops.{stem}")
        vars(module).update(names)
        found[module.__name__] = module
    return found


def _snake_case(name: str) -> str:
    """`tensor_scalar` for NKITensorScalar, `dma_transpose` for NKIDMATranspose."""
    return sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.removeprefix("NKI")).lower()
