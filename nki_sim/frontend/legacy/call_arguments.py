"""Converts the arguments of legacy calls (tiles, numbers, functions) to what the operators take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nki_sim.frontend.argument_values import argument_name
from nki_sim.frontend.legacy.masks import Box
from nki_sim.frontend.legacy.tiles import Tile, as_tile, to_operand
from nki_sim.frontend.lowering.promotion import as_number
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.functions import ALIASES

# NumPy's names for functions of the language.
_NUMPY = {
    "amax": "maximum", "amin": "minimum", "absolute": "abs", "true_divide": "divide", "remainder": "mod",
    "float_power": "power", "bitwise_not": "invert", "mean": "average",
}  # fmt: skip


def function_name(op: Any) -> str:
    """Return the language's name of a function given as `nl.add`, `np.add`, `np.max`...

    Raises:
        KernelError: the argument is not a function.
    """
    name = getattr(op, "__name__", None) or argument_name(op)
    if not isinstance(name, str):
        fail("op", f"{op!r} is no function", "pass one of the language or of NumPy: nl.add, np.add, nl.exp")
    name = _NUMPY.get(name, name)
    return ALIASES.get(name, name)


def to_operand_value(value: Any) -> Any:
    """Convert a tensor to a tile and a NumPy number to a Python one; return anything else unchanged."""
    if type(value) is Tile or isinstance(value, bool):
        return value
    found = as_number(value)
    return to_operand(value) if found is None else found


def mask_result(result: Tensor, boxes: Sequence[Box] | None, shape: Sequence[int]) -> Tile:
    """Return the tile with the boxes that a mask over `shape` left; an assignment writes only those."""
    made = as_tile(result)
    if boxes is not None:
        made._kept = list(dict.fromkeys(_fit_box(box, shape, made.shape) for box in boxes))
    return made


def product_boxes(product: Tensor, boxes: Sequence[Box] | None) -> Sequence[Box] | None:
    """Return the boxes of a product from those over its moving operand: all rows, the same columns."""
    return None if boxes is None else [((0, product.shape[0]), *box[1:]) for box in boxes]


def _fit_box(box: Box, shape: Sequence[int], wanted: Sequence[int]) -> Box:
    """Fit a box over a tile of one shape to another shape; axes that the shapes do not share are whole."""
    whole = tuple((0, size) for size in wanted)
    if len(shape) != len(wanted):
        return (box[0], *whole[1:]) if shape[0] == wanted[0] else whole
    return tuple(
        span if size == count else all_of
        for span, size, count, all_of in zip(box, shape, wanted, whole, strict=True)
    )
