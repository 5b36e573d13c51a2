"""Tiles of choices: by index where the condition is known, else by a mask of bytes."""

from __future__ import annotations

from targets.nki.translation.access import Atom
from targets.nki.translation.constants import find_predicate
from targets.nki.translation.elementwise import Views, affine_arguments, fill, make_binary
from targets.nki.translation.simplify import COMPARISONS
from targets.nki.translation.stage import StageContext, Tile
from targets.nki.translation.text import Lines, float_text
from targets.nki.translation.transposes import add_border, add_copy
from targets.nki.translation.values import Binary, Number, Select, Table, Value

_PREDICATED = 2
"""What a choice by a mask in SBUF takes, in functions of two values; by one in PSUM it is one."""


def make_select(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """A choice: by index if the condition is known, else by a mask."""
    assert isinstance(value, Select)
    if isinstance(value.condition, Table):
        found = _select_by_index(context, value, value.condition, partition=partition, free=free)
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
    data = context.tile(kept, partition)
    number = float_text(other.number)

    def instruction(dst: str, views: Views) -> str:
        arguments = affine_arguments(context, affine, partition, free, views.rows)
        return (
            f"nisa.affine_select(dst={dst}, {arguments}, on_true_tile={views.full(data)}, "
            f"on_false_value={number}, cmp_op=nl.{compare})"
        )

    return fill(context, "chosen", value, partition, free, instruction)
