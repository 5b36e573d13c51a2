"""Has what follows a product read it in PSUM, part by part, where the product leaves PSUM in parts.

A product that does not fit evenly in banks is copied to SBUF part by part. If one instruction then adds a
column, scales or rectifies all of it, that instruction takes the place of the copies.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

from targets.nki.translation.interleave import change_statements, replace_body
from targets.nki.translation.statements import (
    Renamer,
    Statement,
    arguments_of,
    base_name,
    declared_name,
    find_instruction,
    instruction_name,
)

_FOLLOWING = frozenset({"activation", "tensor_scalar"})
"""Instructions on one tile, with columns and numbers."""


def fuse_epilogues(source: str) -> str | None:
    """Return a kernel with such instructions in the place of copies; None if there are none."""
    return change_statements(source, lambda kernel: _Fusion(kernel).fuse(kernel.body))


@dataclass(frozen=True)
class _Epilogue:
    """The instruction that follows, its tiles, and where their declarations, the copies and itself are."""

    call: ast.Call
    tile: str
    result: str
    declared: int
    copied: int
    result_declared: int
    following: int

    def apply(self, items: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of the block with the instruction in the place of the copies."""
        found = [*items]
        found[self.declared] = items[self.result_declared]
        found[self.copied] = _Replacing(self).visit(deepcopy(items[self.copied]))
        return [item for at, item in enumerate(found) if at not in {self.result_declared, self.following}]


class _Fusion:
    """Puts instructions in the place of copies, in a kernel whose uses of tiles are counted."""

    def __init__(self, kernel: ast.FunctionDef) -> None:
        names = [node for node in ast.walk(kernel) if isinstance(node, ast.Name)]
        self._uses = Counter(node.id for node in names if isinstance(node.ctx, ast.Load))
        items = [node for node in ast.walk(kernel) if isinstance(node, ast.Assign)]
        self._banks = {name for item in items if (name := declared_name(item, "psum"))}

    def fuse(self, items: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of a block, and of the loops in it; the same ones where nothing changes."""
        found = [replace_body(item, self.fuse) for item in items]
        while (match := self._find(found)) is not None:
            found = match.apply(found)
        return found

    def _find(self, items: Sequence[ast.stmt]) -> _Epilogue | None:
        """The first instruction of a block that can read what it needs in PSUM."""
        tiles = {name: at for at, item in enumerate(items) if (name := declared_name(item, "sbuf"))}
        steps = [Statement(item) for item in items]
        for following, item in enumerate(items):
            call = find_instruction(item)
            if call is None or instruction_name(call) not in _FOLLOWING:
                continue
            given = arguments_of(call)
            tile, result = base_name(given["data"]), base_name(given["dst"])
            copied = [at for at in range(following) if tile in steps[at].written and at != tiles.get(tile)]
            if self._uses[tile] != 2 or len(copied) != 1 or not {tile, result} <= tiles.keys():
                continue
            match = _Epilogue(call, tile, result, tiles[tile], copied[0], tiles[result], following)
            needed = steps[following].used - {tile, result}
            is_early = all(needed.isdisjoint(step.written) for step in steps[copied[0] : following])
            users = [at for at, step in enumerate(steps[:following]) if result in step.used]
            is_alike = users == [match.result_declared] and _is_alike(items, match)
            if is_early and is_alike and self._copies_product(items[copied[0]], match):
                return match
        return None

    def _copies_product(self, statement: ast.stmt, match: _Epilogue) -> bool:
        """Whether a statement, a loop most of the time, copies a product, the rows that are read later."""
        inside = statement
        while isinstance(inside, ast.For):
            inside = inside.body[-1]
        call = find_instruction(inside)
        if call is None or instruction_name(call) != "tensor_copy":
            return False
        given = arguments_of(call)
        if base_name(given["dst"]) != match.tile or base_name(given["src"]) not in self._banks:
            return False
        wanted = _view(arguments_of(match.call)["data"], match.tile)
        rows = wanted.removeprefix("[").partition(",")[0]
        has_rows = _view(given["dst"], match.tile).startswith(f"[{rows}, ")
        return not wanted or (has_rows and not wanted.removeprefix(f"[{rows}").strip("], :"))


def _is_alike(items: Sequence[ast.stmt], match: _Epilogue) -> bool:
    """Whether both tiles have the same shape, of which the instruction reads and writes the same rows."""
    one, other = items[match.declared], items[match.result_declared]
    assert isinstance(one, ast.Assign)
    assert isinstance(other, ast.Assign)
    given = arguments_of(match.call)
    views = _view(given["data"], match.tile), _view(given["dst"], match.result)
    return ast.dump(one.value) == ast.dump(other.value) and views[0] == views[1]


def _view(operand: ast.expr, tile: str) -> str:
    """The part of a tile that an operand is, as text."""
    return ast.unparse(operand).removeprefix(tile)


class _Replacing(ast.NodeTransformer):
    """Puts an instruction in the place of the copies of its data."""

    def __init__(self, match: _Epilogue) -> None:
        self._match = match

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Return the instruction for a copy of the tile; other calls as they are."""
        given = arguments_of(node)
        if instruction_name(node) != "tensor_copy" or base_name(given["dst"]) != self._match.tile:
            return node
        call = deepcopy(self._match.call)
        target = Renamer(self._match.tile, self._match.result).visit(given["dst"])
        own = {"dst": target, "data": given["src"]}
        for keyword in call.keywords:
            keyword.value = own.get(keyword.arg or "", keyword.value)
        return call
