"""Balance: several instructions go to other engines at once, and tiles to PSUM, until these come out even."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from agent_core.builtin import syntax
from agent_core.builtin.balancing import Balance, Balancer
from agent_core.builtin.model import Kernel, Node, Statement
from agent_core.builtin.transforms.base import Choice, Refused, Transform
from agent_core.builtin.transforms.engine import Engine, other_engines
from agent_core.builtin.transforms.place import Place, check_place
from agent_core.builtin.values import Tensor
from nki_sim.targets import Target

ENGINES, BOTH = "engines", "engines and memories"


class BalanceEngines(Transform[str]):
    """Moves instructions and tiles by the cost table until no move evens out the engines further."""

    id: ClassVar[str] = "balance"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = f"{Engine.keeps}; {Place.keeps}"

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, str]:
        del target
        return {"all instructions": ""} if any(kernel.operations()) else {}

    def choices(self, kernel: Kernel, target: Target, place: str) -> tuple[Choice, ...]:
        del place
        alone, both = (_balance(kernel, target, memories=memories) for memories in (False, True))
        found: list[Choice] = []
        if len(both) > 1 and both.tiles:
            found.append({"move": BOTH})
        if len(alone) > 1:
            found.append({"move": ENGINES})
        if not found:
            raise Refused("no two moves together even out the engines")
        return tuple(found)

    def apply(self, kernel: Kernel, target: Target, place: str, choice: Choice) -> str:
        del place
        made = _balance(kernel, target, memories=choice["move"] == BOTH)
        if not made:
            raise Refused("no move evens out the engines")
        declared = {kernel.declarations[tile.id] for tile in made.tiles}

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if not isinstance(node, Statement):
                return None
            if node in declared:
                return [syntax.with_arguments(node.node, {"buffer": f"{kernel.nl}.psum"})]
            engine = made.engines.get(node)
            if engine is None or engine == node.engine:
                return None
            return [syntax.with_arguments(node.node, {"engine": f"{kernel.nisa}.engine.{engine}"})]

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _balance(kernel: Kernel, target: Target, *, memories: bool) -> Balance:
    engines = {item: names for item in kernel.operations() if (names := _engines(item))}
    tiles = frozenset(tile for tile in _tiles(kernel) if _may_move(kernel, tile)) if memories else frozenset()
    return Balancer(kernel, target, engines, tiles).balance()


def _engines(item: Statement) -> tuple[str, ...]:
    try:
        return other_engines(item)
    except Refused:
        return ()


def _tiles(kernel: Kernel) -> list[Tensor]:
    return [item.tensor for item in kernel.declarations.values() if item.tensor is not None]


def _may_move(kernel: Kernel, tile: Tensor) -> bool:
    if tile.buffer != "sbuf":
        return False
    try:
        check_place(kernel, tile, "psum")
    except Refused:
        return False
    return True
