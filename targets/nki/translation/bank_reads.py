"""Lets engines read transposed tiles in the bank of PSUM in which the tensor engine left them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy

from targets.nki.translation.chunk_loops import PSUM_READERS, READ, TWO_TENSORS, is_by_gpsimd
from targets.nki.translation.interleave import change_statements, replace_body
from targets.nki.translation.statements import (
    Renamer,
    Statement,
    arguments_of,
    base_name,
    declared_name,
    find_instruction,
    instruction_name,
    names_in,
)

_READERS = PSUM_READERS | {"tensor_reduce"}
_COLUMNS = frozenset({"bias", "scale", "operand0"})
"""Operands that are columns, which must be in SBUF."""


def read_banks(source: str) -> str | None:
    """Return a kernel without copies of whole banks that their readers do not need, or None."""
    return change_statements(source, lambda kernel: _BankReads(kernel).read_in(kernel.body))


class _BankReads:
    """What a kernel says of its tiles: how often each is named, and which are in PSUM."""

    def __init__(self, kernel: ast.FunctionDef) -> None:
        statements = [item for item in ast.walk(kernel) if isinstance(item, ast.stmt)]
        self._counts = Counter(item.id for item in ast.walk(kernel) if isinstance(item, ast.Name))
        self._in_psum = {declared_name(item, "psum") for item in statements}

    def read_in(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of a block; the same ones where nothing is read in a bank."""
        inner = [replace_body(item, self.read_in) for item in body]
        for at, item in enumerate(inner):
            names = _whole_copy(item, inner[:at])
            if names is None or not self._may_read(inner, at, *names):
                continue
            tile, bank = names
            rest = [one for one in inner if one is not item and declared_name(one) != tile]
            return self.read_in([Renamer(tile, bank).visit(deepcopy(one)) for one in rest])
        is_same = all(new is old for new, old in zip(inner, body, strict=True))
        return list(body) if is_same else inner

    def _may_read(self, body: Sequence[ast.stmt], at: int, tile: str, bank: str) -> bool:
        """Whether only engines that reach PSUM use the tile, behind the copy, and the bank stays as it is."""
        named = [item.id for one in body for item in ast.walk(one) if isinstance(item, ast.Name)]
        if self._counts[tile] != named.count(tile):
            return False
        if any(tile in Statement(item).used and not declared_name(item) for item in body[:at]):
            return False
        for item in body[at + 1 :]:
            statement = Statement(item)
            if bank in statement.used or tile in statement.written:
                return False
            if tile in statement.used and not self._reads_from_psum(item, tile):
                return False
        return True

    def _reads_from_psum(self, item: ast.stmt, tile: str) -> bool:
        """Whether an instruction may have the tile in PSUM: as one operand, and no other one is there."""
        call = find_instruction(item)
        if call is None or instruction_name(call) not in _READERS or is_by_gpsimd(call):
            return False
        words = arguments_of(call)
        own = [word for word, view in words.items() if word in READ and tile in names_in([view])]
        if len(own) != 1 or own[0] in _COLUMNS:
            return False
        both = TWO_TENSORS.get(instruction_name(call), ())
        others = [words[word] for word in both if word in words and word != own[0]]
        return own[0] not in both or not any(names_in([view]) & self._in_psum for view in others)


def _whole_copy(item: ast.stmt, before: Sequence[ast.stmt]) -> tuple[str, str] | None:
    """The tile and the bank, both declared before, if a statement copies all of a bank to all of a tile."""
    call = find_instruction(item)
    if call is None or instruction_name(call) != "tensor_copy":
        return None
    views = [arguments_of(call).get(word) for word in ("dst", "src")]
    declared = {declared_name(one): one for one in before if declared_name(one)}
    names = [base_name(view) for view in views if isinstance(view, ast.Name | ast.Subscript)]
    if len(names) != len(views) or not {*names} <= declared.keys():
        return None
    tile, bank = names
    shapes = [_shape_of(declared[name]) for name in names]
    is_bank = declared_name(declared[bank], "psum") == bank and declared_name(declared[tile], "sbuf") == tile
    is_alike = _dtype_of(declared[tile]) == _dtype_of(declared[bank]) and shapes[0] == shapes[1]
    is_whole = all(_is_whole(view, shapes[0]) for view in views)
    return (tile, bank) if is_bank and is_alike and is_whole else None


def _shape_of(declaration: ast.stmt) -> tuple[str, ...]:
    assert isinstance(declaration, ast.Assign)
    assert isinstance(declaration.value, ast.Call)
    shape = declaration.value.args[0]
    return tuple(ast.unparse(item) for item in shape.elts) if isinstance(shape, ast.Tuple) else ()


def _dtype_of(declaration: ast.stmt) -> str:
    assert isinstance(declaration, ast.Assign)
    assert isinstance(declaration.value, ast.Call)
    return ast.unparse(arguments_of(declaration.value)["dtype"])


def _is_whole(view: ast.expr | None, shape: Sequence[str]) -> bool:
    """Whether an operand names all elements of a tile of that shape, dimension by dimension."""
    if isinstance(view, ast.Name):
        return True
    if not isinstance(view, ast.Subscript) or not isinstance(view.value, ast.Name):
        return False
    parts = view.slice.elts if isinstance(view.slice, ast.Tuple) else [view.slice]
    texts = [ast.unparse(part) for part in parts]
    return len(texts) == len(shape) and all(
        text in {":", f"0:{size}"} for text, size in zip(texts, shape, strict=True)
    )
