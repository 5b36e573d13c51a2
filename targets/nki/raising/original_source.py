"""What raising takes from a kernel's text: its signature, its lines for comments, and where it loops."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nki_sim.forms import Site
from nki_sim.program.ir import Program
from targets.nki.raising.instruction_rows import NotRaised, number_tiles

_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class OriginalKernel:
    """A kernel as it was written. `signature` has its parameters with their defaults; `tile_sites` the
    declaration of each tile by its number.
    """

    name: str
    signature: tuple[str, ...]
    parameters: tuple[str, ...]
    text: str = field(repr=False)
    tile_sites: Mapping[int, Site] = field(default_factory=dict)

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.splitlines()

    def tile_name(self, number: int) -> str:
        """The name that the source gives a tile; empty if it gives none."""
        site = self.tile_sites[number]
        given = not re.fullmatch(r"tensor_\d+", site.name)
        return site.name if given else self.names_by_line.get(site.line, "")

    def line_text(self, line: int) -> str:
        """A line of the source without its indentation; empty if there is none."""
        return self._lines[line - 1].strip() if 0 < line <= len(self._lines) else ""

    @cached_property
    def names_by_line(self) -> Mapping[int, str]:
        """What a line makes: the name that it is assigned to, or the helper that returns it."""
        found: dict[int, str] = {}
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.FunctionDef) and node.name != self.name:
                made = [item for item in ast.walk(node) if isinstance(item, ast.Return)]
                found = dict.fromkeys(_spanned_lines(made), node.name) | found
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found |= dict.fromkeys(_spanned_lines([node]), node.targets[0].id)
        return found

    @cached_property
    def looped_lines(self) -> frozenset[int]:
        """The lines inside loops and comprehensions."""
        loops = (node for node in ast.walk(ast.parse(self.text)) if isinstance(node, _LOOPS))
        return frozenset(_spanned_lines(loops))


def _spanned_lines(nodes: Iterable[ast.stmt | ast.expr]) -> Iterator[int]:
    return (line for node in nodes for line in range(node.lineno, (node.end_lineno or 0) + 1))


def read_original(source: str, program: Program) -> OriginalKernel:
    """Return what raising needs of the source that a program was traced from.

    Raises:
        NotRaised: the program's kernel is no plain function at the top of the module.
    """
    function = next(_functions(ast.parse(source), program.kernel), None)
    if function is None:
        raise NotRaised(f"`{program.kernel}` is not defined at the top of the module")
    given = function.args
    if given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg:
        raise NotRaised("the kernel takes arguments by something else than plain parameters")
    if any(not isinstance(value, ast.Constant) for value in given.defaults):
        raise NotRaised("a parameter's default is no constant")
    defaults = [None] * (len(given.args) - len(given.defaults)) + [ast.unparse(v) for v in given.defaults]
    names = tuple(item.arg for item in given.args)
    signature = tuple(
        name if value is None else f"{name}={value}" for name, value in zip(names, defaults, strict=True)
    )
    sites = {number: program.site(tensor) for tensor, number in enumerate(number_tiles(program))}
    return OriginalKernel(function.name, signature, names, source, sites)


def _functions(tree: ast.Module, name: str) -> Iterator[ast.FunctionDef]:
    return (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
