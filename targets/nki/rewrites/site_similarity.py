"""Describes a site of a kernel in words that mean the same in other kernels: its role, without names.

A loop is described by what varies with it, a tile by what writes and reads it, an instruction by where its
operands come from and what its result is for, a constant by what is made of it. The similarity of two sites
is the share of such words that they have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from targets.nki.rewrites.arithmetic import names_in
from targets.nki.rewrites.kernel_ir import (
    Access,
    Guard,
    IntegerConstant,
    Kernel,
    Loop,
    Statement,
    StatementKind,
    loop_contains,
)
from targets.nki.rewrites.values import LibrarySymbol, Tensor

SiteTraits = Counter[str]


def describe_site(kernel: Kernel, place: Any) -> SiteTraits:
    """Return the words for a transformation's site: a node, a tile, a constant, or several of these."""
    return Counter(_site_words(kernel, place))


def similarity(one: SiteTraits, other: SiteTraits) -> float:
    """Return the share of words that two sites have in common, 0 to 1; 1 if neither has any."""
    said = one.total() + other.total()
    return 2 * (one & other).total() / said if said else 1.0


def _site_words(kernel: Kernel, place: Any) -> Iterator[str]:
    match place:
        case Statement():
            yield from _statement_words(kernel, place)
        case Loop():
            yield from _loop_words(kernel, place)
        case Guard():
            yield f"guard at depth {len(place.path)}"
        case Tensor():
            yield from _tile_words(kernel, place)
        case IntegerConstant():
            yield from _constant_words(kernel, place)
        case str():
            yield place
        case _:
            for number, part in enumerate(_site_parts(place)):
                yield from (f"{number} {word}" for word in _site_words(kernel, part))


def _site_parts(place: Any) -> Sequence[Any]:
    """The parts of a site that has several; empty for a set, which has no order."""
    if is_dataclass(place):
        return [getattr(place, field.name) for field in fields(place)]
    return list(place) if isinstance(place, tuple | list) else []


def _statement_words(kernel: Kernel, item: Statement) -> Iterator[str]:
    yield f"does {item.op or item.kind}"
    yield f"on {item.engine}"
    for name, value in item.arguments.items():
        if name.startswith("op") and isinstance(value, LibrarySymbol):
            yield f"applies {value.leaf}"
    for access in item.accesses:
        yield f"{access.role} in {access.tensor.buffer}"
        yield from _operand_words(kernel, item, access)


def _loop_words(kernel: Kernel, loop: Loop) -> Iterator[str]:
    yield f"around {sum(loop_contains(loop, other) for other in kernel.loops)} loops"
    for item in kernel.operations():
        for access in item.accesses:
            if loop.id in access.view.loops:
                yield from (f"varies {word}" for word in _operand_words(kernel, item, access))
                # Data that is loaded again varies where it is used: a whole tile there may be a slice
                # elsewhere.
                yield from (f"varies {end}" for end in sorted(_result_uses(kernel, item)) if access.reads)


def _tile_words(kernel: Kernel, tile: Tensor) -> Iterator[str]:
    yield f"tile in {tile.buffer}"
    for item in kernel.users_of(tile):
        for access in item.accesses:
            if access.tensor.id == tile.id:
                yield from _operand_words(kernel, item, access)


def _constant_words(kernel: Kernel, constant: IntegerConstant) -> Iterator[str]:
    yield f"near 2^{constant.value.bit_length()}"
    for loop in kernel.loops:
        if constant.name in names_in(loop.stop):
            yield from (f"counts what {word}" for word in _loop_words(kernel, loop))
    for item in kernel.statements:
        if constant.name in item.uses and item.kind is not StatementKind.INERT:
            yield f"in {item.op or item.kind}"
            yield from (f"of {access.role} in {access.tensor.buffer}" for access in item.accesses)


def _operand_words(kernel: Kernel, item: Statement, access: Access) -> Iterator[str]:
    """The operand's role in its instruction, what makes it, and what the instruction's result is for."""
    word = f"{item.op} {access.role}"
    yield word
    if access.reads:
        makers = {
            one.op
            for one in kernel.users_of(access.tensor)
            if one is not item and one.writes_tensor(access.tensor)
        }
        yield from (f"{word} from {maker}" for maker in sorted(makers) or ["outside"])
    yield from (f"{word} for {end}" for end in sorted(_result_uses(kernel, item)) or ["the outside"])


def _result_uses(kernel: Kernel, item: Statement) -> set[str]:
    """The operand roles in other instructions that an instruction's results have."""
    results = [access.tensor for access in item.accesses if access.writes]
    return {
        f"{user.op} {access.role}"
        for tensor in results
        for user in kernel.users_of(tensor)
        for access in user.accesses
        if user is not item and access.reads and access.tensor.id == tensor.id
    }
