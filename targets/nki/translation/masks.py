"""Tiles of choices: by index where the condition is known, else by a mask of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from targets.nki.translation.access import Atom
from targets.nki.translation.constants import AffineNumbers, find_predicate
from targets.nki.translation.elementwise import Views, affine_arguments, fill, make_binary
from targets.nki.translation.hidden_blocks import TileMasks, find_tile_masks
from targets.nki.translation.simplify import COMPARISONS
from targets.nki.translation.stage import Box, Rows, StageContext, Tile
from targets.nki.translation.text import Lines, float_text, write_sequence
from targets.nki.translation.transposes import add_border, add_copy
from targets.nki.translation.values import (
    Binary,
    Contract,
    Number,
    Reduce,
    Select,
    Table,
    Unary,
    Value,
)

_PREDICATED = 2
"""What a choice by a mask in SBUF takes, in functions of two values; by one in PSUM it is one."""


def make_select(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """A choice: by index if the condition is known, else by a mask."""
    assert isinstance(value, Select)
    if isinstance(value.condition, Table):
        hidden = _hide_in_bank(context, value, value.condition, partition=partition, free=free)
        found = hidden or _select_by_index(context, value, value.condition, partition=partition, free=free)
        if found is not None:
            return found
    lines = context.lines(value)
    bits = _choice_bits(context, value, partition, free=free)
    width = context.width(partition, free)
    context.busy["vector"] += width if bits.in_psum else _PREDICATED * width
    left, right = (
        side.number if isinstance(side, Number) else context.tile(side, partition)
        for side in (value.left, value.right)
    )
    owned = [
        tile if isinstance(tile, Tile) and _is_own(context, side, tile, free=free, lines=lines) else None
        for side, tile in ((value.left, left), (value.right, right))
    ]
    turned = owned[1] is None and (owned[0] is not None or isinstance(right, float))
    below, above = (left, right) if turned else (right, left)
    tile = owned[0 if turned else 1] or context.new_tile("chosen", partition, free, lines)
    with context.rows(lines, partition) as rows:
        views, dst = Views(context, rows, free), context.view(tile, rows, free)
        if isinstance(below, float):
            add_border(lines, dst, below)
        elif tile is not below:
            add_copy(context, lines, dst, views.full(below), width)
        source = views.full(above) if isinstance(above, Tile) else float_text(above)
        lines.add(
            f"nisa.tensor_copy_predicated(dst={dst}, src={source}, predicate={views.full(bits)}"
            f"{', reverse_pred=True' * turned})"
        )
    return tile


def _is_own(context: StageContext, side: Value, tile: Tile, *, free: tuple[Atom, ...], lines: Lines) -> bool:
    """Whether nothing else needs the tile of one side of a choice, so that it may become the result."""
    is_whole = tile.free == free and not tile.places and not tile.windows
    return is_whole and context.uses[side] == 1 and context.lines(side) is lines


def _choice_bits(
    context: StageContext, value: Select, partition: Atom | None, *, free: tuple[Atom, ...]
) -> Tile:
    """Where a choice takes its first value, as bytes."""
    condition = value.condition
    key = condition, partition, free
    if key in context.choices:
        return context.choices[key]
    readers = context.readers.get(condition, ())
    only_chooses = context.uses[condition] == len(readers) and all(
        isinstance(reader, Select) and condition not in {reader.left, reader.right} for reader in readers
    )
    if only_chooses and _is_mask(condition) and context.nest.free_atoms(condition, partition) == free:
        bits = make_binary(context, condition, partition, free, dtype="uint8")
    else:
        mask = context.tile(condition, partition)
        lines = context.lines(value)
        bits = context.result_tile(value, "choice", partition, free, dtype="uint8")
        with context.rows(lines, partition) as rows:
            views = Views(context, rows, free)
            lines.add(f"nisa.tensor_copy(dst={views.full(bits)}, src={views.full(mask)})")
        if context.nest.level(condition) != context.nest.level(value):
            return bits  # another choice may be in another loop
    context.choices[key] = bits
    return bits


def _is_mask(value: Value) -> bool:
    """Whether an operation gives 0 or 1: a comparison, or what joins comparisons."""
    if not isinstance(value, Binary):
        return False
    joins = value.function in {"multiply", "maximum", "minimum"}
    return value.function in COMPARISONS or (joins and _is_mask(value.left) and _is_mask(value.right))


def _hide_in_bank(
    context: StageContext, value: Select, condition: Table, *, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile | None:
    """A product whose hidden elements a number replaces in PSUM; None if engines cannot read it there.

    Only blocks in which the mask hides something are touched. What it hides there is the same in most tiles
    of rows, and made once, before all loops.
    """
    nest, number = context.nest, value.right
    readers = context.readers.get(value, ())
    is_read = all(isinstance(reader, Reduce | Unary | Binary | Select) for reader in readers)
    is_own = isinstance(value.left, Contract | Select) and context.uses[value.left] == 1
    if not context.hides_in_banks or not isinstance(number, Number) or not (is_read and is_own):
        return None
    masked = [atom for atom in free if atom in condition.atoms]
    if partition is None or partition != nest.row or not masked:
        return None
    masks = find_tile_masks(condition, nest, masked, counted=context.ranges.get(masked[0]))
    hidden = None if masks is None else _make_hidden(context, masks, masked)
    if masks is None or hidden is None:
        return None
    lines = context.lines(value)
    bank = context.operand(value.left, partition)
    if not bank.in_psum or bank.free != free or context.lines(value.left) is not lines:
        return None
    blocks, which = hidden.free[-len(masked)], hidden.free[: -len(masked)]
    with context.rows(lines, partition) as rows:
        target = context.view(bank, rows, free, {masked[0]: masks.blocks.box})
        wanted = [blocks if atom == masked[0] else atom for atom in free]
        box = {blocks: ("0", masks.blocks.box[1])}
        predicate = context.view(
            hidden, rows, wanted, box, {atom: write_sequence(masks.which) for atom in which}
        )
        context.busy["vector"] += context.width(None, wanted)
        lines.add(
            f"nisa.tensor_copy_predicated(dst={target}, src={float_text(number.number)}, "
            f"predicate={predicate})"
        )
    return bank


def _find_in_sbuf(
    context: StageContext, value: Value, partition: Atom | None, *, free: tuple[Atom, ...], lines: Lines
) -> Tile:
    """The tile of a value in SBUF, where GpSimd reads: another mask may have left it in PSUM."""
    data = context.tile(value, partition)
    if not data.in_psum:
        return data
    tile = context.new_tile("scores", partition, free, lines)
    with context.rows(lines, partition) as rows:
        target, source = (context.view(item, rows, free) for item in (tile, data))
        add_copy(context, lines, target, source, context.width(partition, free))
    return tile


def _find_blocks(
    context: StageContext, condition: Table, partition: Atom | None, *, free: tuple[Atom, ...]
) -> Box | None:
    """The blocks in which a mask hides something from a tile of rows; None if there are no blocks."""
    masked = [atom for atom in free if atom in condition.atoms]
    if partition is None or partition != context.nest.row or not masked or masked[0] not in context.blocks:
        return None
    masks = find_tile_masks(condition, context.nest, masked, counted=context.ranges.get(masked[0]))
    return None if masks is None else {masked[0]: masks.blocks.box}


def _make_hidden(context: StageContext, masks: TileMasks, loops: Sequence[Atom]) -> Tile | None:
    """A tile of bytes that are 1 where masks hide something, made before all loops; None for other masks."""
    row = context.nest.row
    assert row is not None
    rows = Atom(row.name, context.nest.row_tile)
    affine: list[AffineNumbers | None] = []
    inner = [Atom(f"{loops[0].name}h", max(table.shape[1] for table in masks.tables)), *loops[1:]]
    for table in masks.tables:
        along = (rows, Atom(inner[0].name, table.shape[1]), *loops[1:])
        shows = Table(-1, np.where(table, 0.0, 1.0), along)
        affine.append(find_predicate(shows) if table.any() else None)
        if table.any() and affine[-1] is None:
            return None
    which = Atom(f"{loops[0].name}w", len(masks.tables))
    free = (which, *inner) if which.size > 1 else tuple(inner)
    lines = context.levels[0]
    shown = context.new_tile("shown", row, inner, lines)
    hidden = context.new_tile("hidden", row, free, lines, dtype="uint8")
    lines.add(f"nisa.memset(dst={shown.name}, value=0.0, engine=nisa.engine.gpsimd)")
    if None in affine or len({table.shape for table in masks.tables}) > 1:
        lines.add(f"nisa.memset(dst={hidden.name}, value=0, engine=nisa.engine.gpsimd)")
    for at, (table, found) in enumerate(zip(masks.tables, affine, strict=True)):
        if found is None:
            continue
        own = [Atom(inner[0].name, table.shape[1]), *inner[1:]]
        box: dict[Atom, tuple[str, str | int]] = {inner[0]: ("0", table.shape[1])}
        part = context.new_tile("part", row, own, lines)
        steps = ", ".join(f"[{found.steps.get(atom, 0)}, {atom.size}]" for atom in own)
        whole = Rows(context.nest.row_tile, None, "0")
        source = context.view(shown, whole, inner, box)
        target = context.view(hidden, whole, inner, box, {which: str(at)} if which.size > 1 else {})
        lines.add(
            f"nisa.affine_select(dst={part.name}, pattern=[{steps}], offset={found.offset}, "
            f"channel_multiplier={found.steps.get(rows, 0)}, on_true_tile={source}, on_false_value=1.0, "
            "cmp_op=nl.greater_equal)"
        )
        lines.add(f"nisa.tensor_copy(dst={target}, src={part.name})")
    return hidden


def _select_by_index(
    context: StageContext, value: Select, condition: Table, *, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile | None:
    """One instruction, if one of the two is a number and the condition compares indices."""
    affine = find_predicate(condition)
    if affine is None or isinstance(value.left, Number) == isinstance(value.right, Number):
        return None
    kept, other, compare = value.left, value.right, "greater_equal"
    if isinstance(kept, Number):
        kept, other, compare = other, kept, "less"
    if context.nest.free_atoms(kept, partition) != free:
        return None
    assert isinstance(other, Number)
    lines = context.lines(value)
    data = _find_in_sbuf(context, kept, partition, free=free, lines=lines)
    number = float_text(other.number)
    blocks = _find_blocks(context, condition, partition, free=free)
    if blocks is not None and _is_own(context, kept, data, free=free, lines=lines):
        with context.rows(lines, partition) as rows:
            part = context.view(data, rows, free, blocks)
            arguments = affine_arguments(context, affine, partition, free, rows, boxes=blocks)
            lines.add(
                f"nisa.affine_select(dst={part}, {arguments}, on_true_tile={part}, "
                f"on_false_value={number}, cmp_op=nl.{compare})"
            )
        return data

    def instruction(dst: str, views: Views) -> str:
        arguments = affine_arguments(context, affine, partition, free, views.rows)
        return (
            f"nisa.affine_select(dst={dst}, {arguments}, on_true_tile={views.full(data)}, "
            f"on_false_value={number}, cmp_op=nl.{compare})"
        )

    return fill(context, "chosen", value, partition, free, instruction)
