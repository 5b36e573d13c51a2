"""Tiles of values that are computed element by element: functions, choices, loads and known numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

import numpy as np

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.constants import AffineNumbers, find_affine, find_predicate
from targets.nki.translation.hbm import Run, array_text
from targets.nki.translation.simplify import COMMUTATIVE
from targets.nki.translation.stage import Box, Rows, StageContext, Tile
from targets.nki.translation.text import Lines, product_text, sum_text
from targets.nki.translation.values import (
    Binary,
    Load,
    Number,
    Select,
    Table,
    Unary,
    Value,
)

_STEMS = {
    "add": "sums", "subtract": "difference", "multiply": "product", "maximum": "larger", "minimum": "smaller",
    "abs": "magnitude",
    "square": "squares", "reciprocal": "inverse", "exp": "exponential", "log": "logarithm",
    "sqrt": "root", "rsqrt": "inverse_root", "power": "powers",
}  # fmt: skip
_INVERSE = {
    "less": "greater_equal", "less_equal": "greater", "greater": "less_equal", "greater_equal": "less",
    "equal": "not_equal", "not_equal": "equal",
}  # fmt: skip

_MAX_LOOPS = 4
"""Loops that an instruction walks in each partition."""

_Step = tuple[str, Tile | float, bool]
"""A function, its number or column, and whether that comes first."""


@dataclass(frozen=True)
class Views:
    """How one instruction names its operands."""

    context: StageContext
    rows: Rows
    free: tuple[Atom, ...]

    def full(self, tile: Tile) -> str:
        """A tile, repeated along the free loops that it lacks."""
        return self.context.view(tile, self.rows, self.free)

    def scalar(self, operand: Tile | float) -> str:
        """A number, or a tile of one number for each partition."""
        return self.context.view(operand, self.rows, ()) if isinstance(operand, Tile) else float_text(operand)


def float_text(number: float) -> str:
    """Return a number as a literal."""
    if np.isfinite(number):
        return repr(float(number))
    return f'float("{number}")'


def _fill(  # noqa: PLR0917  a maker's arguments, a name, and the instruction
    context: StageContext,
    stem: str,
    value: Value,
    partition: Atom | None,
    free: tuple[Atom, ...],
    instruction: Callable[[str, Views], str],
    *,
    dtype: str = "float32",
) -> Tile:
    """Make a tile by one instruction for each chunk of partitions."""
    lines = context.lines(value)
    tile = context.new_tile(stem, partition, free, lines, dtype=dtype)
    with context.rows(lines, partition) as rows:
        lines.add(instruction(context.view(tile, rows, free), Views(context, rows, free)))
    return tile


def make_number(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """A column of one number."""
    assert isinstance(value, Number)
    text = float_text(value.number)
    return _fill(
        context, "constant", value, partition, free, lambda dst, _: f"nisa.memset(dst={dst}, value={text})"
    )


def make_load(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """Elements of an array in HBM; the same ones in all partitions if the loop there does not move them."""
    assert isinstance(value, Load)
    if value.access.backward:
        return make_turned(context, context.forward_load(value), value.access.backward, partition, free)
    if (whole := context.whole_runs(value, partition, free)) is not None:
        tile = context.tile(whole[0], partition)
        return tile.at(*whole[1:])
    lines = context.lines(value)
    free = tuple(sorted(free, key=lambda atom: -value.access.stride(atom)))  # in runs, as they lie in HBM
    tile = context.new_tile(f"{value.buffer.name}_tile", partition, free, lines, dtype=value.buffer.dtype)
    write_load(context, value, tile, lines)
    return tile if value.buffer.dtype == "float32" else _widened(context, value, tile)


def make_turned(
    context: StageContext,
    value: Value,
    loops: frozenset[Atom],
    partition: Atom | None,
    free: tuple[Atom, ...],
) -> Tile:
    """A value with some loops going the other way; an engine reads them backwards."""
    data = context.tile(value, partition)
    return turn_tile(context, data, loops, context.lines(value), free)


def turn_tile(
    context: StageContext, data: Tile, loops: frozenset[Atom], lines: Lines, free: tuple[Atom, ...]
) -> Tile:
    """A tile's elements in a tile of its own, with some loops going the other way."""
    if data.partition in loops or context.nest.row in loops or data.places:
        raise UntranslatableError("rows that are read backwards")
    tile = context.new_tile("turned_around", data.partition, free, lines)
    sizes = [context.nest.width(atom) for atom in data.free]
    strides = [prod(sizes[at + 1 :]) for at in range(len(sizes))]
    whole = prod(sizes) * data.chunks
    with context.rows(lines, data.partition) as rows:
        offset = sum(
            stride * (size - 1)
            for atom, stride, size in zip(data.free, strides, sizes, strict=True)
            if atom in loops
        )
        start = sum_text(offset, product_text(rows.chunk or "0", prod(sizes)))
        by_atom = dict(zip(data.free, strides, strict=True))
        pairs = "".join(
            f", [{-by_atom[atom] if atom in loops else by_atom[atom]}, {context.nest.width(atom)}]"
            for atom in free
        )
        source = f"{data.name}.ap([[{whole}, {rows.count}]{pairs}], offset={start})"
        lines.add(f"nisa.tensor_copy(dst={context.view(tile, rows, free)}, src={source})")
    return tile


def _widened(context: StageContext, value: Load, tile: Tile) -> Tile:
    """The same elements as float32: all arithmetic is done in it."""
    lines = context.lines(value)
    wide = context.new_tile(f"{value.buffer.name}_wide", tile.partition, tile.free, lines)
    with context.rows(lines, tile.partition) as rows:
        target, source = (context.view(item, rows, tile.free) for item in (wide, tile))
        lines.add(f"nisa.tensor_copy(dst={target}, src={source})")
    return wide


def write_load(
    context: StageContext, load: Load, tile: Tile, lines: Lines, part: tuple[tuple[Atom, int, Atom], ...] = ()
) -> None:
    """Load a value into a tile, or into a part of it: by loop the first element, and the part's own loop.

    One transfer walks only a few loops: the outermost of more are loops of the kernel.
    """
    boxes: Box = {atom: (str(first), own.size) for atom, first, own in part}
    owns = {atom: own for atom, _, own in part}
    with context.rows(lines, tile.partition) as rows, ExitStack() as stack:
        whole = [atom for atom in tile.free if atom not in owns and atom != context.nest.row]
        around = whole[: max(0, len(tile.free) - _MAX_LOOPS)]
        fixed = {atom: context.names.new("i_load") for atom in around}
        for atom, name in fixed.items():
            stack.enter_context(lines.loop(name, atom.size))
        walked = tuple(atom for atom in tile.free if atom not in fixed)
        runs: list[Run | int] = []
        if tile.partition is None:
            runs.append(1)
        elif tile.partition in load.atoms:
            runs.append(Run(tile.partition, rows.start, rows.count))
        else:
            runs.append(Run(tile.partition, "0", rows.count))
        runs += [
            Run(owns[atom], "0", owns[atom].size) if atom in owns else context.run(atom, {})
            for atom in walked
        ]
        runs += [1] if not tile.free else []
        source = array_text(load.buffer, load.access, runs=runs, fixed={**context.variables, **fixed})
        target = context.view(tile, rows, walked, boxes, fixed)
        lines.add(f"nisa.dma_copy(dst={target}, src={source})")


def make_table(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """Known numbers: made by an engine if they are index arithmetic, else loaded."""
    assert isinstance(value, Table)
    affine = find_affine(value)
    if affine is not None:
        return _make_ramp(context, value, affine, partition, free)
    predicate = find_predicate(value)
    if predicate is not None:
        ramp = _make_ramp(context, value, predicate, partition, free)
        return _fill(
            context, "mask", value, partition, free,
            lambda dst, views: f"nisa.tensor_scalar(dst={dst}, data={views.full(ramp)}, "
            "op0=nl.greater_equal, operand0=0.0)",
        )  # fmt: skip
    strides = [step // 8 for step in np.ascontiguousarray(value.numbers).strides]
    access = make_access(0, zip(value.loops, strides, strict=True))
    return context.tile(Load(value.node, context.tables.buffer(value.numbers), access), partition)


def _make_ramp(
    context: StageContext,
    value: Table,
    affine: AffineNumbers,
    partition: Atom | None,
    free: tuple[Atom, ...],
) -> Tile:
    """Affine whole numbers, as float32."""
    lines = context.lines(value)
    whole = context.new_tile("index", partition, free, lines, dtype="int32")
    tile = context.new_tile("ramp", partition, free, lines)
    with context.rows(lines, partition) as rows:
        arguments = affine_arguments(context, affine, partition, free, rows)
        target, result = context.view(whole, rows, free), context.view(tile, rows, free)
        lines.add(f"nisa.iota(dst={target}, {arguments})")
        if affine.factor == 1.0:
            lines.add(f"nisa.tensor_copy(dst={result}, src={target})")
        else:
            factor = float_text(affine.factor)
            lines.add(f"nisa.tensor_scalar(dst={result}, data={target}, op0=nl.multiply, operand0={factor})")
    return tile


def affine_arguments(
    context: StageContext,
    affine: AffineNumbers,
    partition: Atom | None,
    free: tuple[Atom, ...],
    rows: Rows,
) -> str:
    """The arguments of an instruction that counts: pattern, offset and step between partitions."""
    row = context.nest.row
    pairs = [
        f"[{affine.steps.get(atom, 0)}, {context.row_count() if atom == row else atom.size}]" for atom in free
    ]
    channel = affine.steps.get(partition, 0) if partition else 0
    terms: list[str | int] = [affine.offset, product_text(rows.start, channel)]
    terms += [product_text(name, affine.steps.get(atom, 0)) for atom, name in context.variables.items()]
    if row is not None and row in free:
        terms.append(product_text(context.row_start(), affine.steps.get(row, 0)))
    pattern = ", ".join(pairs) or "[1, 1]"
    return f"pattern=[{pattern}], offset={sum_text(*terms)}, channel_multiplier={channel}"


def make_unary(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """A function of one value; ScalarE multiplies by a number or adds a column on the way."""
    assert isinstance(value, Unary)
    stem = _STEMS.get(value.function, value.function)
    if value.function == "reciprocal" and free:
        return context.makers[Binary](
            context, Binary(value.node, "power", value.value, Number(value.node, -1.0)), partition, free
        )
    if value.function == "reciprocal":
        data = context.tile(value.value, partition)
        return _fill(
            context, stem, value, partition, free,
            lambda dst, views: f"nisa.reciprocal(dst={dst}, data={views.full(data)})",
        )  # fmt: skip
    source, more = _activation_source(context, value, partition)
    name = "abs" if value.function == "absolute" else value.function
    return _activate(context, value, partition, free, name, context.tile(source, partition), more)


def _activate(  # noqa: PLR0917  a maker's arguments, and the function's
    context: StageContext,
    value: Value,
    partition: Atom | None,
    free: tuple[Atom, ...],
    name: str,
    data: Tile,
    more: Mapping[str, Tile | float],
    *,
    stem: str | None = None,
) -> Tile:
    """A function by ScalarE, which adds up its results on the way if their sum is wanted."""
    lines = context.lines(value)
    if name != "copy":
        context.busy["scalar"] += context.width(partition, free)
    tile = context.new_tile(stem or _STEMS.get(name, name), partition, free, lines)
    total = _sum_tile(context, value, partition, free)
    with context.rows(lines, partition) as rows:
        views = Views(context, rows, free)
        texts = "".join(f", {key}={views.scalar(item)}" for key, item in more.items())
        verb = "activation"
        if total is not None:
            verb = "activation_reduce"
            texts += f", reduce_op=nl.add, reduce_res={views.scalar(total)}"
        dst = context.view(tile, rows, free)
        lines.add(f"nisa.{verb}(dst={dst}, op=nl.{name}, data={views.full(data)}{texts})")
    return tile


def _sum_tile(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile | None:
    """A column for the sum of a value's elements in each partition, if something wants it."""
    total = context.sums.get(value)
    if total is None or not free or set(total.over) != set(free) or (total, partition) in context.tiles:
        return None
    if context.nest.level(total) != context.nest.level(value):
        return None
    column = context.new_tile("total", partition, (), context.lines(value))
    context.tiles[total, partition] = column
    return column


def _activation_source(
    context: StageContext, value: Unary, partition: Atom | None
) -> tuple[Value, dict[str, Tile | float]]:
    """The operand of an activation, and its scale or bias."""
    source = value.value
    if not isinstance(source, Binary) or not context.is_absorbable(source):
        return source, {}
    right = source.right
    if source.function == "multiply" and isinstance(right, Number):
        return source.left, {"scale": right.number}
    is_column = not isinstance(right, Number) and context.is_column(right, partition)
    if not is_column or isinstance(source.left, Number) or context.is_column(source.left, partition):
        return source, {}
    if source.function == "add":
        return source.left, {"bias": context.tile(right, partition)}
    if source.function == "subtract":
        negative = Binary(value.node, "multiply", right, Number(value.node, -1.0))
        return source.left, {"bias": context.tile(negative, partition)}
    return source, {}


def make_binary(
    context: StageContext,
    value: Value,
    partition: Atom | None,
    free: tuple[Atom, ...],
    *,
    dtype: str = "float32",
) -> Tile:
    """A function of two values; numbers and columns are operands of their own kind."""
    assert isinstance(value, Binary)
    stem = "mask" if value.function in _INVERSE else _STEMS[value.function]
    if value.function == "multiply" and value.left is value.right:
        inner, more = _activation_source(context, Unary(value.node, "square", value.left), partition)
        return _activate(context, value, partition, free, "square", context.tile(inner, partition), more)
    steps = _scalar_steps(context, value, partition, free)
    if steps is None and dtype == "float32":
        found = _three_operands(context, value, partition, free)
        if found is not None:
            return found
    if steps is None:
        context.busy["vector"] += context.width(partition, free)
        one, two = context.tile(value.left, partition), context.tile(value.right, partition)
        return _fill(
            context, stem, value, partition, free,
            lambda dst, views: f"nisa.scalar_tensor_tensor(dst={dst}, data={views.full(one)}, "
            f"op0=nl.multiply, operand0=1.0, op1=nl.{value.function}, operand1={views.full(two)})",
            dtype=dtype,
        )  # fmt: skip
    source, operations = steps
    data = context.tile(source, partition)
    linear = _as_linear(operations) if dtype == "float32" and free else None
    if linear is not None and context.prefers_scalar(context.width(partition, free)):
        return _activate(context, value, partition, free, "copy", data, linear, stem=stem)
    if linear is None:
        context.busy["vector"] += context.width(partition, free)

    def instruction(dst: str, views: Views) -> str:
        texts = "".join(
            f", op{at}=nl.{name}, operand{at}={views.scalar(operand)}" + f", reverse{at}=True" * turned
            for at, (name, operand, turned) in enumerate(operations)
        )
        return f"nisa.tensor_scalar(dst={dst}, data={views.full(data)}{texts})"

    return _fill(context, stem, value, partition, free, instruction, dtype=dtype)


def _as_linear(operations: Sequence[_Step]) -> dict[str, Tile | float] | None:
    """The steps as ScalarE's scale and bias; None if they are something else."""
    found: dict[str, Tile | float] = {}
    for name, operand, _ in operations:
        if name == "multiply" and not found:
            found["scale"] = operand
        elif name == "add" and isinstance(operand, Tile) and "bias" not in found:
            found["bias"] = operand
        else:
            return None
    return found


def _three_operands(
    context: StageContext, value: Binary, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile | None:
    """(data op0 scalar) op1 tensor as one instruction, if one operand is made by a number or a column."""
    for inner, other, turned in ((value.left, value.right, False), (value.right, value.left, True)):
        if not isinstance(inner, Binary) or not context.is_absorbable(inner) or inner is other:
            continue
        first = _scalar_step(context, inner, partition, free)
        fits = context.nest.free_atoms(inner, partition) == free and _pairs(inner, value)
        if first is None or not fits:
            continue
        name, scalar, reverse = _make_step(context, first[1], partition)
        context.busy["vector"] += context.width(partition, free)
        data, operand = context.tile(first[0], partition), context.tile(other, partition)
        more = ", reverse0=True" * reverse
        more += ", reverse1=True" * (turned and value.function not in COMMUTATIVE)

        def instruction(dst: str, views: Views) -> str:
            return (
                f"nisa.scalar_tensor_tensor(dst={dst}, data={views.full(data)}, op0=nl.{name}, "  # noqa: B023
                f"operand0={views.scalar(scalar)}, op1=nl.{value.function}, "  # noqa: B023
                f"operand1={views.full(operand)}{more})"  # noqa: B023  it is used before the next round
            )

        return _fill(context, _STEMS.get(value.function, "mask"), value, partition, free, instruction)
    return None


def _scalar_steps(
    context: StageContext, value: Binary, partition: Atom | None, free: tuple[Atom, ...]
) -> tuple[Value, list[_Step]] | None:
    """One or two functions of a value and numbers or columns, which one instruction computes."""
    last = _scalar_step(context, value, partition, free)
    if last is None:
        return None
    source, step = last
    if isinstance(source, Binary) and context.is_absorbable(source) and _pairs(source, value):
        first = _scalar_step(context, source, partition, free)
        if first is not None and context.nest.free_atoms(source, partition) == free:
            return first[0], [_make_step(context, item, partition) for item in (first[1], step)]
    return source, [_make_step(context, step, partition)]


def _pairs(first: Binary, second: Binary) -> bool:
    return first.function != "power"


def _scalar_step(
    context: StageContext, value: Binary, partition: Atom | None, free: tuple[Atom, ...]
) -> tuple[Value, tuple[str, Value, bool]] | None:
    for scalar, other, turned in ((value.right, value.left, False), (value.left, value.right, True)):
        if isinstance(other, Number):
            continue
        if isinstance(scalar, Number) or (free and context.is_column(scalar, partition)):
            if not free and not isinstance(scalar, Number):
                continue
            return other, (value.function, scalar, turned and value.function not in COMMUTATIVE)
    return None


def _make_step(context: StageContext, step: tuple[str, Value, bool], partition: Atom | None) -> _Step:
    name, scalar, turned = step
    operand = scalar.number if isinstance(scalar, Number) else context.tile(scalar, partition)
    return name, operand, turned


def make_select(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """A choice: by index if the condition is known, else by a mask."""
    assert isinstance(value, Select)
    if isinstance(value.condition, Table):
        found = _select_by_index(context, value, value.condition, partition, free)
        if found is not None:
            return found
    lines = context.lines(value)
    bits = _choice_bits(context, value, partition, free)
    left, right = context.tile(value.left, partition), context.tile(value.right, partition)
    is_own = context.uses[value.right] == 1 and right.free == free and context.lines(value.right) is lines
    tile = right if is_own else context.new_tile("chosen", partition, free, lines)
    with context.rows(lines, partition) as rows:
        views, dst = Views(context, rows, free), context.view(tile, rows, free)
        if not is_own:
            lines.add(f"nisa.tensor_copy(dst={dst}, src={views.full(right)})")
        lines.add(
            f"nisa.tensor_copy_predicated(dst={dst}, src={views.full(left)}, predicate={views.full(bits)})"
        )
    return tile


def _choice_bits(
    context: StageContext, value: Select, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """Where a choice takes its first value, as bytes."""
    condition = value.condition
    is_compared = isinstance(condition, Binary) and condition.function in _INVERSE
    if is_compared and context.uses[condition] == 1 and context.nest.free_atoms(condition, partition) == free:
        return make_binary(context, condition, partition, free, dtype="uint8")
    mask = context.tile(condition, partition)
    lines = context.lines(value)
    bits = context.new_tile("choice", partition, free, lines, dtype="uint8")
    with context.rows(lines, partition) as rows:
        views = Views(context, rows, free)
        lines.add(f"nisa.tensor_copy(dst={views.full(bits)}, src={views.full(mask)})")
    return bits


def _select_by_index(
    context: StageContext, value: Select, condition: Table, partition: Atom | None, free: tuple[Atom, ...]
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

    return _fill(context, "chosen", value, partition, free, instruction)
