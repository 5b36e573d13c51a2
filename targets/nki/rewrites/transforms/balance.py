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
from targets.nki.rewrites.balancing import EngineBalance, EngineBalancer, MoveOptions, psum_copy_engine
from targets.nki.rewrites.column_splits import check_columns, is_splittable, result_width, split_columns
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.elementwise import find_sole_writer
from targets.nki.rewrites.engine_moves import other_engines, write_on
from targets.nki.rewrites.estimate import tile_banks
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.memory_placement import check_placement
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.transforms.engine import ChooseEngine
from targets.nki.rewrites.transforms.place import PlaceTile
from targets.nki.rewrites.transforms.share import ShareColumns
from targets.nki.rewrites.values import Tensor

MEMORY_MOVES, COLUMN_MOVES = "memories", "parts"
MOVE_KINDS: Mapping[str, frozenset[str]] = {
    "engines": frozenset(),
    "engines and memories": frozenset({MEMORY_MOVES}),
    "engines and parts": frozenset({COLUMN_MOVES}),
    "engines, memories and parts": frozenset({MEMORY_MOVES, COLUMN_MOVES}),
}
"""Moves allowed under each name: tiles go to PSUM, have copies there, or engines share instructions."""


class BalanceEngines(Transform[str]):
    """Moves instructions, parts of them and tiles while the cost table says that it evens out the engines."""

    id: ClassVar[str] = "balance"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = f"{ChooseEngine.keeps}; {ShareColumns.keeps}; {PlaceTile.keeps}"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, str]:
        del target
        return {"all instructions": ""} if any(kernel.operations()) else {}

    def list_choices(self, kernel: Kernel, target: Target, place: str) -> tuple[Choice, ...]:
        del place
        made = {name: _compute_balance(kernel, target, name) for name in MOVE_KINDS}
        found: list[Choice] = [{"move": name} for name in MOVE_KINDS if _is_distinct_balance(name, made)]
        if not found:
            raise RewriteRefused("no two moves together even out the engines")
        return tuple(reversed(found))

    def apply(self, kernel: Kernel, target: Target, place: str, choice: Choice) -> str:
        del place
        made = _compute_balance(kernel, target, str(choice["move"]))
        if not made:
            raise RewriteRefused("no move evens out the engines")
        declared = {kernel.declarations[tile.id] for tile in made.tiles}
        copies = {tile: kernel.fresh_name(f"{tile.name}_psum") for tile in made.copies}

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if not isinstance(node, Statement):
                return None
            if node in declared:
                return [syntax.replace_arguments(node.node, {"buffer": f"{kernel.nl}.psum"})]
            after = [
                line
                for tile, name in sorted(copies.items(), key=lambda item: item[1])
                if find_sole_writer(kernel, tile) is node
                for line in _write_psum_copy(kernel, target, tile, name=name)
            ]
            return [*_write_balanced(kernel, node, made, copies=copies), *after]

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _is_distinct_balance(name: str, made: Mapping[str, EngineBalance]) -> bool:
    """Whether several moves together give something that fewer kinds of moves do not."""
    mine, kinds = made[name], MOVE_KINDS[name]
    fewer = [made[other] for other, less in MOVE_KINDS.items() if other != name and less <= kinds]
    return len(mine) > 1 and mine not in fewer


def _write_balanced(
    kernel: Kernel, item: Statement, made: EngineBalance, *, copies: Mapping[Tensor, str]
) -> list[cst.BaseStatement]:
    """An instruction on its new engine or engines, reading its operands where they now are."""

    def on(node: cst.BaseStatement, engine: str) -> cst.BaseStatement:
        if engine != item.engine:
            node = write_on(kernel, item, node, engine)
        read = made.find_copy_read(item, engine)
        return node if read is None else syntax.rename_variable(node, read.name, copies[read])

    part = made.parts.get(item)
    if part is None:
        return [on(item.node, made.engine_of(item))]
    width = result_width(item)
    kept, moved = split_columns(kernel, item, Fraction(width - part.columns, width))
    return [on(kept, made.engine_of(item)), syntax.with_leading_lines(on(moved, part.engine), [])]


def _write_psum_copy(kernel: Kernel, target: Target, tile: Tensor, *, name: str) -> list[cst.BaseStatement]:
    """A copy of a tile in PSUM."""
    nl, nisa = kernel.nl, kernel.nisa
    sizes = ", ".join(shape_texts(kernel, kernel.declarations[tile.id]))
    words = {"dst": name, "src": tile.name, "engine": f"{nisa}.engine.{psum_copy_engine(target)}"}
    return [
        syntax.parse_statement(f"{name} = {nl}.ndarray(({sizes}), dtype={nl}.float32, buffer={nl}.psum)"),
        syntax.make_call(f"{nisa}.tensor_copy", words),
    ]


def _compute_balance(kernel: Kernel, target: Target, moves: str) -> EngineBalance:
    memories, parts = MEMORY_MOVES in MOVE_KINDS[moves], COLUMN_MOVES in MOVE_KINDS[moves]
    engines = {item: names for item in kernel.operations() if (names := _engine_options(item))}
    tiles = (
        frozenset(tile for tile in _declared_tiles(kernel) if _can_move_to_psum(kernel, tile))
        if memories
        else frozenset()
    )
    shared = frozenset(item for item in engines if _can_split_columns(kernel, item)) if parts else frozenset()
    copied = _copyable_tiles(kernel, target) if memories else {}
    return EngineBalancer(kernel, target, MoveOptions(engines, tiles, shared, copied)).balance()


def _copyable_tiles(kernel: Kernel, target: Target) -> dict[Tensor, Statement]:
    """Tiles that VectorE could read from a copy in PSUM, each with the instruction that writes it."""
    writers = {
        tile: find_sole_writer(kernel, tile) for tile in _declared_tiles(kernel) if tile.buffer == "sbuf"
    }
    return {
        tile: writer
        for tile, writer in writers.items()
        if writer is not None
        and tile.dtype == "float32"
        and tile_banks(tile, target) <= target.psum_banks
        and any(item.op == "tensor_tensor" and item.order > writer.order for item in kernel.users_of(tile))
        and _has_shape_texts(kernel, tile)
    }


def _has_shape_texts(kernel: Kernel, tile: Tensor) -> bool:
    try:
        shape_texts(kernel, kernel.declarations[tile.id])
    except RewriteRefused:
        return False
    return True


def _can_split_columns(kernel: Kernel, item: Statement) -> bool:
    if not is_splittable(item):
        return False
    try:
        check_columns(item)
        split_columns(kernel, item, Fraction(1, 2))
    except RewriteRefused:
        return False
    return True


def _engine_options(item: Statement) -> tuple[str, ...]:
    try:
        return other_engines(item)
    except RewriteRefused:
        return ()


def _declared_tiles(kernel: Kernel) -> list[Tensor]:
    return [item.tensor for item in kernel.declarations.values() if item.tensor is not None]


def _can_move_to_psum(kernel: Kernel, tile: Tensor) -> bool:
    if tile.buffer != "sbuf":
        return False
    try:
        check_placement(kernel, tile, "psum")
    except RewriteRefused:
        return False
    return True
