"""Tiles of values that are computed element by element: functions, choices, loads and known numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.constants import AffineNumbers, find_affine, find_predicate, split_band
from targets.nki.translation.simplify import COMMUTATIVE
from targets.nki.translation.stage import Box, Rows, StageContext, Tile
from targets.nki.translation.text import float_text, product_text, sum_text
from targets.nki.translation.transposes import enter_loop
from targets.nki.translation.values import (
    Assembled,
    Binary,
    Load,
    Number,
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

ROOTS = {"sqrt": 0.5, "rsqrt": -0.5}
_FEW_ROOTS = 64
"""Elements in each partition up to which VectorE may take roots."""

_MOST_STEPS = 16
_LONG_STEP = 256
"""Steps of a loop, and elements in each, for which single instructions are better than a repeated operand."""


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


def fill(  # noqa: PLR0917  a maker's arguments, a name, and the instruction
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
    tile = context.result_tile(value, stem, partition, free, dtype=dtype)
    with context.rows(lines, partition) as rows:
        lines.add(instruction(context.view(tile, rows, free), Views(context, rows, free)))
    return tile


def make_number(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """A column of one number."""
    assert isinstance(value, Number)
    text = float_text(value.number)
    return fill(
        context, "constant", value, partition, free, lambda dst, _: f"nisa.memset(dst={dst}, value={text})"
    )


def make_table(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """Known numbers: made by an engine if they are index arithmetic, else loaded."""
    assert isinstance(value, Table)
    affine = find_affine(value)
    if affine is not None:
        return _make_ramp(context, value, affine, partition=partition, free=free)
    predicate = find_predicate(value)
    if predicate is not None:
        ramp = _make_ramp(context, value, predicate, partition=partition, free=free)
        return fill(
            context, "mask", value, partition, free,
            lambda dst, views: f"nisa.tensor_scalar(dst={dst}, data={views.full(ramp)}, "
            "op0=nl.greater_equal, operand0=0.0)",
        )  # fmt: skip
    band = split_band(value)
    if band is not None:
        return context.tile(Binary(value.node, "multiply", *band), partition)
    strides = [step // 8 for step in np.ascontiguousarray(value.numbers).strides]
    access = make_access(0, zip(value.loops, strides, strict=True))
    return context.tile(Load(value.node, context.tables.buffer(value.numbers), access), partition)


def _make_ramp(
    context: StageContext,
    value: Table,
    affine: AffineNumbers,
    *,
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
    *,
    boxes: Box | None = None,
) -> str:
    """The arguments of an instruction that counts: pattern, offset and step between partitions."""
    runs = [context.run(atom, {**rows.limits, **(boxes or {})}) for atom in free]
    pairs = [f"[{affine.steps.get(run.atom, 0)}, {run.count}]" for run in runs]
    channel = affine.steps.get(partition, 0) if partition else 0
    terms: list[str | int] = [affine.offset, product_text(rows.start, channel)]
    terms += [product_text(name, affine.steps.get(atom, 0)) for atom, name in context.variables.items()]
    terms += [product_text(run.start, affine.steps.get(run.atom, 0)) for run in runs]
    pattern = ", ".join(pairs) or "[1, 1]"
    return f"pattern=[{pattern}], offset={sum_text(*terms)}, channel_multiplier={channel}"


def make_unary(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """A function of one value; ScalarE multiplies by a number or adds a column on the way."""
    assert isinstance(value, Unary)
    stem = _STEMS.get(value.function, value.function)
    is_root = context.roots_by_vector and context.width(partition, free) <= _FEW_ROOTS
    exponent = ROOTS.get(value.function) if is_root else None
    exponent = -1.0 if value.function == "reciprocal" and free else exponent
    if exponent is not None:
        power = Binary(value.node, "power", value.value, Number(value.node, exponent))
        return context.makers[Binary](context, power, partition, free)
    if value.function == "reciprocal":
        data = context.tile(value.value, partition)
        return fill(
            context, stem, value, partition, free,
            lambda dst, views: f"nisa.reciprocal(dst={dst}, data={views.full(data)})",
        )  # fmt: skip
    name = "abs" if value.function == "absolute" else value.function
    return _activate_source(context, value, value.value, partition=partition, free=free, name=name)


def _activate_source(
    context: StageContext,
    value: Value,
    source: Value,
    *,
    partition: Atom | None,
    free: tuple[Atom, ...],
    name: str,
) -> Tile:
    """A function by ScalarE of what is left of a value when ScalarE scales and shifts it on the way."""
    data, more, around = _linear_parts(context, source, partition, free=free)
    operands = {
        key: item.number if isinstance(item, Number) and key == "scale" else context.tile(item, partition)
        for key, item in more.items()
    }
    made = context.operand(data, partition)
    return _activate(context, value, partition, free, name, made, operands, around=around)


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
    around: Atom | None = None,
) -> Tile:
    """A function by ScalarE, which adds up its results on the way if their sum is wanted.

    Columns that vary with the first free loop make it a loop of instructions, `around`.
    """
    lines = context.lines(value)
    if name != "copy":
        context.busy["scalar"] += context.width(partition, free)
    tile = context.result_tile(value, stem or _STEMS.get(name, name), partition, free)
    inner = free if around is None else free[1:]
    total = _sum_tile(context, value, partition, free=free, inner=inner)
    with context.rows(lines, partition) as rows, ExitStack() as stack:
        place = None if around is None else enter_loop(context, stack, lines, around)
        fixed = {} if around is None or place is None else {around: place}
        texts = "".join(
            f", {key}={_column_text(context, item, rows, place=place)}" for key, item in more.items()
        )
        verb = "activation"
        if total is not None:
            verb = "activation_reduce"
            texts += f", reduce_op=nl.add, reduce_res={_column_text(context, total, rows, place=place)}"
        dst, source = (context.view(item, rows, inner, fixed=fixed) for item in (tile, data))
        lines.add(f"nisa.{verb}(dst={dst}, op=nl.{name}, data={source}{texts})")
    return tile


def _sum_tile(
    context: StageContext,
    value: Value,
    partition: Atom | None,
    *,
    free: tuple[Atom, ...],
    inner: tuple[Atom, ...],
) -> Tile | None:
    """A column for the sum of a value's elements in each partition, if something wants it."""
    total = context.sums.get(value)
    if total is None or not inner or set(total.over) != set(inner) or (total, partition) in context.tiles:
        return None
    if context.nest.level(total) != context.nest.level(value):
        return None
    outside = tuple(atom for atom in free if atom not in inner)
    column = context.new_tile("total", partition, outside, context.lines(value))
    context.tiles[total, partition] = column
    return column


def _linear_parts(
    context: StageContext, value: Value, partition: Atom | None, *, free: tuple[Atom, ...]
) -> tuple[Value, dict[str, Value], Atom | None]:
    """A value as scale * data + bias, and the loop with which the bias varies.

    The scale is a number, before or after the bias is added. The bias is a column, or a column for each step
    of the first free loop.
    """
    source, scale, bias = value, None, None
    for _ in range(2):
        if not isinstance(source, Binary) or not context.is_absorbable(source):
            break
        right, left = source.right, source.left
        if source.function == "multiply" and isinstance(right, Number) and scale is None:
            source, scale = left, right
            continue
        is_shift = source.function in {"add", "subtract"} and bias is None
        if not is_shift or not _is_bias(context, right, left, partition=partition, free=free):
            break
        sign = Number(value.node, -1.0)
        bias = right if source.function == "add" else Binary(value.node, "multiply", right, sign)
        bias = bias if scale is None else Binary(value.node, "multiply", bias, scale)
        source = left
    varies = () if bias is None else context.nest.free_atoms(bias, partition)
    found = {key: item for key, item in (("scale", scale), ("bias", bias)) if item is not None}
    return source, found, varies[0] if varies else None


def _is_bias(
    context: StageContext, bias: Value, data: Value, *, partition: Atom | None, free: tuple[Atom, ...]
) -> bool:
    """Whether ScalarE may add a value on the way: a column, or a column for each of a few long steps."""
    if isinstance(bias, Number) or isinstance(data, Number) or context.is_column(data, partition):
        return False
    varies = context.nest.free_atoms(bias, partition)
    if not varies:
        return True
    is_first = varies == free[:1] and context.nest.free_atoms(data, partition) == free
    return is_first and free[0].size <= _MOST_STEPS and context.width(None, free[1:]) >= _LONG_STEP // 2


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
        return _activate_source(context, value, value.left, partition=partition, free=free, name="square")
    rectified = _make_rectified(context, value, partition, free=free) if dtype == "float32" else None
    if rectified is not None:
        return rectified
    steps = _scalar_steps(context, value, partition, free=free)
    if steps is None:
        found = _by_columns(context, value, partition, free=free) if dtype == "float32" else None
        found = found or _three_operands(context, value, partition, free=free, dtype=dtype)
        if found is not None:
            return found
        one, two = _two_operands(context, value.left, value.right, partition=partition)
        by_gpsimd = dtype == "float32" and free and not one.in_psum and not two.in_psum
        engines = ("vector", "gpsimd") if by_gpsimd else ("vector",)
        if context.least_busy(engines, context.width(partition, free)) == "gpsimd":
            return fill(
                context, stem, value, partition, free,
                lambda dst, views: f"nisa.tensor_tensor(dst={dst}, data1={views.full(one)}, "
                f"data2={views.full(two)}, op=nl.{value.function}, engine=nisa.engine.gpsimd)",
            )  # fmt: skip
        return fill(
            context, stem, value, partition, free,
            lambda dst, views: f"nisa.scalar_tensor_tensor(dst={dst}, data={views.full(one)}, "
            f"op0=nl.multiply, operand0=1.0, op1=nl.{value.function}, operand1={views.full(two)})",
            dtype=dtype,
        )  # fmt: skip
    source, operations = steps
    data = context.operand(source, partition)
    linear = _as_linear(context, operations, partition) if dtype == "float32" and free else None
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

    return fill(context, stem, value, partition, free, instruction, dtype=dtype)


def _make_rectified(
    context: StageContext, value: Binary, partition: Atom | None, *, free: tuple[Atom, ...]
) -> Tile | None:
    """max(scale * x + bias, 0) by ScalarE, which does in one instruction what VectorE does in two.

    With only one of scale and bias it is one instruction for both engines.
    """
    if value.function != "maximum" or not free:
        return None
    if not isinstance(value.right, Number) or value.right.number != 0.0:
        return None
    source, steps = value.left, list[tuple[str, Value, bool]]()
    for name in ("add", "multiply"):
        step = None
        if isinstance(source, Binary) and source.function == name and context.is_absorbable(source):
            step = _scalar_step(context, source, partition, free=free)
        if step is not None and context.nest.free_atoms(source, partition) == free:
            source, steps = step[0], [step[1], *steps]
    is_busier = context.busy["scalar"] > context.busy["vector"]
    if not steps or (len(steps) == 1 and is_busier):
        return None
    linear = _as_linear(context, [_make_step(context, step, partition) for step in steps], partition)
    data = context.operand(source, partition)
    return _activate(context, value, partition, free, "relu", data, linear or {}, stem="larger")


def _two_operands(
    context: StageContext, left: Value, right: Value, *, partition: Atom | None
) -> tuple[Tile, Tile]:
    """The tiles of two operands, of which one may be in PSUM."""
    one = context.operand(left, partition)
    return one, context.tile(right, partition) if one.in_psum else context.operand(right, partition)


def _as_linear(
    context: StageContext, operations: Sequence[_Step], partition: Atom | None
) -> dict[str, Tile | float] | None:
    """The steps as ScalarE's scale and bias; None if they are something else."""
    found: dict[str, Tile | float] = {}
    for name, operand, turned in operations:
        if name == "multiply" and not found:
            found["scale"] = operand
        elif name == "subtract" and turned and not found:
            found["scale"] = -1.0
            found["bias"] = operand if isinstance(operand, Tile) else context.column_of(operand, partition)
        elif name == "add" and "bias" not in found:
            found["bias"] = operand if isinstance(operand, Tile) else context.column_of(operand, partition)
        else:
            return None
    return found


def _by_columns(
    context: StageContext, value: Binary, partition: Atom | None, *, free: tuple[Atom, ...]
) -> Tile | None:
    """Functions whose operands vary with the first free loop only: columns, for each of its steps."""
    if len(free) < 2 or free[0].size > _MOST_STEPS or context.width(None, free[1:]) < _LONG_STEP:
        return None
    first, rest = free[0], free[1:]
    steps: list[tuple[str, Value, bool]] = []
    source: Value = value
    while (
        len(steps) < 2 and isinstance(source, Binary) and (source is value or context.is_absorbable(source))
    ):
        step = _column_step(context, source, partition, loop=first)
        if step is None or (steps and not _pairs(source, value)):
            break
        source, steps = step[0], [step[1], *steps]
    if not any(context.nest.free_atoms(step[1], partition) for step in steps):
        return None
    if context.nest.free_atoms(source, partition) != free:
        return None
    data = context.operand(source, partition)
    operands = [
        (name, one.number if isinstance(one, Number) else context.tile(one, partition), turned)
        for name, one, turned in steps
    ]
    linear = _as_linear(context, operands, partition)
    by_scalar = linear is not None and context.prefers_scalar(context.width(partition, free))
    if linear is None:
        context.busy["vector"] += context.width(partition, free)
    lines = context.lines(value)
    tile = context.result_tile(value, _STEMS.get(value.function, "mask"), partition, free)
    with context.rows(lines, partition) as rows, ExitStack() as stack:
        place = enter_loop(context, stack, lines, first)
        target, given = (context.view(item, rows, rest, fixed={first: place}) for item in (tile, data))
        if linear is not None and by_scalar:
            texts = "".join(
                f", {key}={_column_text(context, one, rows, place=place)}" for key, one in linear.items()
            )
            lines.add(f"nisa.activation(dst={target}, op=nl.copy, data={given}{texts})")
            return tile
        texts = "".join(
            f", op{at}=nl.{function}, operand{at}={_column_text(context, one, rows, place=place)}"
            + f", reverse{at}=True" * turned
            for at, (function, one, turned) in enumerate(operands)
        )
        lines.add(f"nisa.tensor_scalar(dst={target}, data={given}{texts})")
    return tile


def _column_step(
    context: StageContext, value: Binary, partition: Atom | None, *, loop: Atom
) -> tuple[Value, tuple[str, Value, bool]] | None:
    """A function of a value, and one that is a number or has no loops inside a partition but this one."""
    for scalar, other, turned in ((value.right, value.left, False), (value.left, value.right, True)):
        if isinstance(other, Number):
            continue
        if isinstance(scalar, Number) or set(context.nest.free_atoms(scalar, partition)) <= {loop}:
            return other, (value.function, scalar, turned and value.function not in COMMUTATIVE)
    return None


def _column_text(context: StageContext, operand: Tile | float, rows: Rows, *, place: str | None) -> str:
    if not isinstance(operand, Tile):
        return float_text(operand)
    boxes = dict.fromkeys(operand.free, (place or "0", 1))
    return context.view(operand, rows, operand.free, boxes)


def _three_operands(
    context: StageContext, value: Binary, partition: Atom | None, *, free: tuple[Atom, ...], dtype: str
) -> Tile | None:
    """(data op0 scalar) op1 tensor as one instruction, if one operand is made by a number or a column.

    Of two such operands it takes the one whose data no instruction has to make.
    """
    sides = [(value.left, value.right, False), (value.right, value.left, True)]
    for inner, other, turned in sorted(sides, key=lambda side: _is_computed(context, side[0], partition)):
        if not isinstance(inner, Binary) or not context.is_absorbable(inner) or inner is other:
            continue
        first = _scalar_step(context, inner, partition, free=free)
        fits = context.nest.free_atoms(inner, partition) == free and _pairs(inner, value)
        if first is None or not fits:
            continue
        name, scalar, reverse = _make_step(context, first[1], partition)
        context.busy["vector"] += context.width(partition, free)
        data, operand = _two_operands(context, first[0], other, partition=partition)
        more = ", reverse0=True" * reverse
        more += ", reverse1=True" * (turned and value.function not in COMMUTATIVE)

        def instruction(dst: str, views: Views) -> str:
            return (
                f"nisa.scalar_tensor_tensor(dst={dst}, data={views.full(data)}, op0=nl.{name}, "  # noqa: B023
                f"operand0={views.scalar(scalar)}, op1=nl.{value.function}, "  # noqa: B023
                f"operand1={views.full(operand)}{more})"  # noqa: B023  it is used before the next round
            )

        stem = _STEMS.get(value.function, "mask")
        return fill(context, stem, value, partition, free, instruction, dtype=dtype)
    return None


def _is_computed(context: StageContext, value: Value, partition: Atom | None) -> bool:
    """Whether both operands of a function are computed, or columns: none is there or is loaded."""
    ready = [
        item
        for item in value.operands
        if (isinstance(item, Load | Assembled) or not context.is_absorbable(item))
        and not context.is_column(item, partition)
    ]
    return not ready


def _scalar_steps(
    context: StageContext, value: Binary, partition: Atom | None, *, free: tuple[Atom, ...]
) -> tuple[Value, list[_Step]] | None:
    """One or two functions of a value and numbers or columns, which one instruction computes."""
    last = _scalar_step(context, value, partition, free=free)
    if last is None:
        return None
    source, step = last
    if isinstance(source, Binary) and context.is_absorbable(source) and _pairs(source, value):
        first = _scalar_step(context, source, partition, free=free)
        if first is not None and context.nest.free_atoms(source, partition) == free:
            return first[0], [_make_step(context, item, partition) for item in (first[1], step)]
    return source, [_make_step(context, step, partition)]


def _pairs(first: Binary, second: Binary) -> bool:
    return first.function != "power"


def _scalar_step(
    context: StageContext, value: Binary, partition: Atom | None, *, free: tuple[Atom, ...]
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
