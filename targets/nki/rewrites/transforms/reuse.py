"""Reuse: what was loaded or computed before, from the same, is not made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import sole_writer
from targets.nki.rewrites.model import Kernel, Node, Statement, inside
from targets.nki.rewrites.round_trips import changes_in
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.values import Tensor, View


class Twins(NamedTuple):
    """`second` makes again what `first` made."""

    first: Statement
    second: Statement


class Reuse(Transform[Twins]):
    """Removes common subexpressions."""

    id: ClassVar[str] = "reuse"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "both instructions are the same, on the same operands, which do not change in between"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Twins]:
        del target
        return repeated(kernel)

    def choices(self, kernel: Kernel, target: Target, place: Twins) -> tuple[Choice, ...]:
        del target
        _check(kernel, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Twins, choice: Choice) -> str:
        del target, choice
        return used_again(kernel, place)


def repeated(kernel: Kernel) -> dict[str, Twins]:
    """Instructions that look like one before them, by the names of both results."""
    made = [item for item in kernel.operations() if _tile(kernel, item) is not None]
    found: dict[str, Twins] = {}
    for number, second in enumerate(made):
        first = next((item for item in made[:number] if _alike(item, second)), None)
        if first is not None:
            names = [kernel.label(_result(item)) for item in (first, second)]
            found[f"{names[0]} for {names[1]}"] = Twins(first, second)
    return found


def used_again(kernel: Kernel, place: Twins) -> str:
    """The source in which the first result is used for the second one, too.

    Raises:
        Refused: it may not be the same.
    """
    _check(kernel, place)
    kept, spared = _result(place.first), _result(place.second)
    gone = {place.second, kernel.declarations[spared.id]}

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if not isinstance(node, Statement):
            return None
        if node in gone:
            return []
        return [syntax.renamed(node.node, spared.name, kept.name)] if node.touches(spared) else None

    return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _result(item: Statement) -> Tensor:
    dst = item.access("dst")
    assert dst is not None
    return dst.tensor


def _tile(kernel: Kernel, item: Statement) -> Tensor | None:
    """The tile on chip that an instruction makes all of, alone, and nothing besides."""
    dst = item.access("dst")
    if dst is None or not dst.tensor.on_chip or sum(access.writes for access in item.accesses) > 1:
        return None
    return dst.tensor if sole_writer(kernel, dst.tensor) is item and dst.view.plain else None


def _inputs(item: Statement) -> dict[str, View]:
    return {access.role: access.view for access in item.accesses if not access.writes}


def _alike(first: Statement, second: Statement) -> bool:
    """Whether two instructions are the same but for where they write, the first where the second sees it."""
    a, b = _result(first), _result(second)
    # Zeros of both signs are equal, and make different results.
    same = first.op == second.op and repr(first.arguments) == repr(second.arguments)
    same = same and first.arguments == second.arguments and _inputs(first) == _inputs(second)
    tiles = (a.shape, a.dtype, a.buffer) == (b.shape, b.dtype, b.buffer)
    return same and tiles and second.path[: len(first.path)] == first.path


def _check(kernel: Kernel, place: Twins) -> None:
    first, second = place
    if first.guards or second.guards:
        raise Refused(f"{_result(first).name} or {_result(second).name} is made under a condition")
    if _result(second).id in kernel.escaping:
        raise Refused(f"something else is said of {_result(second).name}")
    around = [loop for loop in second.path if loop not in first.path]
    for view in _inputs(second).values():
        if kernel.changes(view.tensor, first, second) or changes_in(kernel, view.tensor, around):
            raise Refused(f"{view.tensor.name} changes in between")
    name = _result(first).name
    last = max(kernel.users(_result(second)), key=lambda item: item.order)
    bound = [item for item in kernel.statements if any(inside(loop, item) for loop in around)]
    if kernel.rebinds(name, first, last) or any(name in item.binds for item in bound):
        raise Refused(f"{name} means something else later")
