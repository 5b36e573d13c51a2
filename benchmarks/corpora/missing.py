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
    """Names that the files import at their top level: packages, and the corpus's own modules, dotted."""
    found: set[str] = set()
    for file in files:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
        except SyntaxError:
            continue
        package = ".".join(file.relative_to(root).with_suffix("").parts[:-1])
        for node in tree.body:
            found.update(_names(node, package))
    return {name for name in found if name.partition(".")[0] not in COMPUTING | sys.stdlib_module_names}


def _names(node: ast.stmt, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for item in node.names:
            yield item.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom) and node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        yield ".".join([*above, *([node.module] if node.module else [])])
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.partition(".")[0]


def absent(names: set[str], places: Sequence[Path]) -> set[str]:
    """Those of the names that cannot be imported here; `places` are the corpus's own folders of imports."""
    return {name for name in names if not _importable(name, [*places, STANDINS])}


def _importable(name: str, places: Sequence[Path]) -> bool:
    found = [place.joinpath(*name.split(".")) for place in places]
    if any(path.is_dir() or path.with_suffix(".py").exists() for path in found):
        return True
    return "." not in name and importlib.util.find_spec(name) is not None


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
        if fullname in self._names or fullname.partition(".")[0] in self._names:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _HollowModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []
