"""Balance: several instructions go to other engines at once, whole or in part, and tiles to PSUM, until these
come out even.

VectorE reads two tiles in half the time when one of them is in PSUM. A tile that others read where it is gets
a copy there, which ScalarE makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.balancing import Balance, Balancer, Freedom, copying_engine
from targets.nki.rewrites.columns import check_columns, cut, is_wide, width_of
from targets.nki.rewrites.elementwise import sole_writer
from targets.nki.rewrites.estimate import tile_banks
from targets.nki.rewrites.model import Kernel, Node, Statement
from targets.nki.rewrites.placing import check_place
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.transforms.engine import Engine, other_engines
from targets.nki.rewrites.transforms.place import Place
from targets.nki.rewrites.transforms.share import Share
from targets.nki.rewrites.values import Tensor

MEMORIES, PARTS = "memories", "parts"
MOVES: Mapping[str, frozenset[str]] = {
    "engines": frozenset(),
    "engines and memories": frozenset({MEMORIES}),
    "engines and parts": frozenset({PARTS}),
    "engines, memories and parts": frozenset({MEMORIES, PARTS}),
}
"""By name: whether tiles go to PSUM or have copies there, whether engines share instructions."""


class BalanceEngines(Transform[str]):
    """Moves instructions, parts of them and tiles by the cost table until no move evens out the engines."""

    id: ClassVar[str] = "balance"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = f"{Engine.keeps}; {Share.keeps}; {Place.keeps}"

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, str]:
        del target
        return {"all instructions": ""} if any(kernel.operations()) else {}

    def choices(self, kernel: Kernel, target: Target, place: str) -> tuple[Choice, ...]:
        del place
        made = {name: _balance(kernel, target, name) for name in MOVES}
        found: list[Choice] = [{"move": name} for name in MOVES if _is_own(name, made)]
        if not found:
            raise Refused("no two moves together even out the engines")
        return tuple(reversed(found))

    def apply(self, kernel: Kernel, target: Target, place: str, choice: Choice) -> str:
        del place
        made = _balance(kernel, target, str(choice["move"]))
        if not made:
            raise Refused("no move evens out the engines")
        declared = {kernel.declarations[tile.id] for tile in made.tiles}
        copies = {tile: kernel.fresh(f"{tile.name}_psum") for tile in made.copies}

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if not isinstance(node, Statement):
                return None
            if node in declared:
                return [syntax.with_arguments(node.node, {"buffer": f"{kernel.nl}.psum"})]
            after = [
                line
                for tile, name in sorted(copies.items(), key=lambda item: item[1])
                if sole_writer(kernel, tile) is node
                for line in _copy(kernel, target, tile, name)
            ]
            return [*_moved(kernel, node, made, copies), *after]

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _is_own(name: str, made: Mapping[str, Balance]) -> bool:
    """Whether some moves of several together come to something that fewer kinds of moves do not."""
    mine, kinds = made[name], MOVES[name]
    fewer = [made[other] for other, less in MOVES.items() if other != name and less <= kinds]
    return len(mine) > 1 and mine not in fewer


def _moved(
    kernel: Kernel, item: Statement, made: Balance, copies: Mapping[Tensor, str]
) -> list[cst.BaseStatement]:
    """An instruction on the engine, or the two, where it goes, reading what it reads there."""

    def on(node: cst.BaseStatement, engine: str) -> cst.BaseStatement:
        if engine != item.engine:
            node = syntax.with_arguments(node, {"engine": f"{kernel.nisa}.engine.{engine}"})
        read = made.copy_read(item, engine)
        return node if read is None else syntax.renamed(node, read.name, copies[read])

    part = made.parts.get(item)
    if part is None:
        return [on(item.node, made.engine(item))]
    width = width_of(item)
    kept, moved = cut(kernel, item, Fraction(width - part.columns, width))
    moved = syntax.with_arguments(moved, {"engine": f"{kernel.nisa}.engine.{part.engine}"})
    return [on(kept, made.engine(item)), syntax.at_front(on(moved, part.engine), [])]


def _copy(kernel: Kernel, target: Target, tile: Tensor, name: str) -> list[cst.BaseStatement]:
    """A copy of a tile in PSUM."""
    nl, nisa = kernel.nl, kernel.nisa
    sizes = ", ".join(shape_texts(kernel, kernel.declarations[tile.id]))
    words = {"dst": name, "src": tile.name, "engine": f"{nisa}.engine.{copying_engine(target)}"}
    return [
        syntax.statement(f"{name} = {nl}.ndarray(({sizes}), dtype={nl}.float32, buffer={nl}.psum)"),
        syntax.call(f"{nisa}.tensor_copy", words),
    ]


def _balance(kernel: Kernel, target: Target, moves: str) -> Balance:
    memories, parts = MEMORIES in MOVES[moves], PARTS in MOVES[moves]
    engines = {item: names for item in kernel.operations() if (names := _engines(item))}
    tiles = frozenset(tile for tile in _tiles(kernel) if _may_move(kernel, tile)) if memories else frozenset()
    shared = frozenset(item for item in engines if _may_be_cut(kernel, item)) if parts else frozenset()
    copied = _copied(kernel, target) if memories else {}
    return Balancer(kernel, target, Freedom(engines, tiles, shared, copied)).balance()


def _copied(kernel: Kernel, target: Target) -> dict[Tensor, Statement]:
    """Tiles of which VectorE could read a copy in PSUM, each with what writes it."""
    writers = {tile: sole_writer(kernel, tile) for tile in _tiles(kernel) if tile.buffer == "sbuf"}
    return {
        tile: writer
        for tile, writer in writers.items()
        if writer is not None
        and tile.dtype == "float32"
        and tile_banks(tile, target) <= target.psum_banks
        and any(item.op == "tensor_tensor" and item.order > writer.order for item in kernel.users(tile))
        and _has_sizes(kernel, tile)
    }


def _has_sizes(kernel: Kernel, tile: Tensor) -> bool:
    try:
        shape_texts(kernel, kernel.declarations[tile.id])
    except Refused:
        return False
    return True


def _may_be_cut(kernel: Kernel, item: Statement) -> bool:
    if not is_wide(item):
        return False
    try:
        check_columns(item)
        cut(kernel, item, Fraction(1, 2))
    except Refused:
        return False
    return True


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
