"""What corpora import besides NKI, where it is not installed.

`standins/` holds small real ones: devices of `torch_xla`, casts of `neuron_dtypes`, the names that
nki-library's tests expect of a CPU simulator. Any other package that a corpus imports at the top of its files
and that is absent (upload clients, plotting) becomes hollow: it can be imported, subclassed and named in an
`except`, and the first call raises `ModuleNotFoundError` with its name. Packages that compute references are
never hollow.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.corpora import sources

STANDINS = Path(__file__).parent / "standins"
VARIABLE = "COMPAT_HOLLOW"
"""Names that may be hollow, separated by commas: packages, or dotted modules of the corpus itself."""

COMPUTING = frozenset({"jax", "jaxlib", "nki", "neuronxcc", "nki_sim", "numpy", "pytest", "scipy", "torch"})


def install() -> None:
    """Make the stand-ins importable behind everything that is installed, hollow packages last."""
    sys.path.append(str(STANDINS))
    names = frozenset(filter(None, os.environ.get(VARIABLE, "").split(",")))
    sys.meta_path.append(_Finder(names))


def imported_by(files: Sequence[Path], root: Path) -> set[str]:
    """Dotted names of the modules that the files import at their top level."""
    found: set[str] = set()
    for file in files:
        tree = sources.parse_source(file)
        package = file.relative_to(root).parts[:-1]
        for node in tree.body if tree is not None else []:
            found.update(_names(node, package))
    return found


def _names(node: ast.stmt, package: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (item.name for item in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else ()
        yield ".".join([*above, *filter(None, [node.module])])


def absent(names: set[str], places: Sequence[Path]) -> set[str]:
    """What of the names cannot be imported here: packages, and modules missing in the corpus's own folders.

    `places` are those folders, as they are on the path.
    """
    found = {_missing_part(name, [*places, STANDINS]) for name in names}
    return {name for name in found if name and name.partition(".")[0] not in COMPUTING}


def _missing_part(name: str, places: Sequence[Path]) -> str:
    """The shortest beginning of a dotted name that leads nowhere, empty when it leads somewhere."""
    top, *below = name.split(".")
    here = [place for place in places if _leads(place / top)]
    if not here:
        known = top in sys.stdlib_module_names or importlib.util.find_spec(top) is not None
        return "" if known else top
    path = Path(top)
    for part in below:
        path /= part
        if not any(_leads(place / path) for place in here):
            return ".".join(path.parts)
    return ""


def _leads(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").exists()


class _Hollow(type):
    """A class of which every attribute is another, and whose call says what is missing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Hollow(name, (Exception,), {"__module__": cls.__module__})

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ in sys.modules and isinstance(sys.modules[cls.__module__], _HollowModule):
            raise ModuleNotFoundError(f"needs the package {cls.__module__}", name=cls.__module__)
        return super().__call__(*args, **kwargs)


class _HollowModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Hollow(name, (Exception,), {"__module__": self.__name__})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, *_where: object) -> ModuleSpec | None:
        parts = fullname.split(".")
        if any(".".join(parts[:count]) in self._names for count in range(1, len(parts) + 1)):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _HollowModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []
