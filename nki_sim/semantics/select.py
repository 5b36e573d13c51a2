"""Counting patterns, and selection by affine predicates, index ranges and predicate tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_sim.forms import ParamValue
from nki_sim.semantics.arrays import Array, load_float32, store
from nki_sim.semantics.common import (
    BINARY,
    Semantics,
    Touched,
    Values,
    Views,
    accumulate_registers,
    as_float,
    load_rows,
    read_operand,
)


def flatten_free(view: Array) -> Array:
    """[partitions, elements per partition] in the view's own type."""
    return view if view.ndim == 2 else view.reshape(view.shape[0], -1)


def convert_like(value: Any, like: Array) -> Array:
    """Convert `value` as a store into the type of `like` would; returns arrays of that type unchanged."""
    given: Array = value if isinstance(value, np.ndarray) else np.asarray(value, np.float32)
    if given.dtype == like.dtype and given.dtype.metadata == like.dtype.metadata:
        return given
    out = np.empty(given.shape, like.dtype)
    store(out, load_float32(given))
    return out


def as_integer(value: ParamValue) -> int:
    assert isinstance(value, int)
    return value


def _affine_values(view: Array, values: Values) -> Array:
    """offset + channel * multiplier + the walk of the pattern, in 32-bit integers that wrap: [P, F]."""
    pattern = values["pattern"]
    assert isinstance(pattern, tuple)
    walk = np.zeros(1, np.int64)
    for step, count in zip(pattern[::2], pattern[1::2], strict=True):
        walk = np.add.outer(walk, step * np.arange(count)).reshape(-1)
    channel = as_integer(values["channel_multiplier"]) * np.arange(view.shape[0])
    total: Array = np.add(as_integer(values["offset"]) + channel[:, None], walk)
    return total.astype(np.int32)


def _iota(views: Views, values: Values) -> None:
    store(views["dst"], _affine_values(views["dst"], values))


def _store_selected(dst: Array, mask: Array, on_true: Array, *, on_false: Any) -> None:
    """Store `on_true` where the mask holds, else `on_false`; elements of unchanged type keep their bits."""
    result = np.where(mask, convert_like(on_true, dst), convert_like(on_false, dst))
    np.copyto(dst, result.reshape(dst.shape))


def _affine_select(views: Views, values: Values) -> None:
    mask = BINARY[str(values["cmp_op"])](_affine_values(views["dst"], values), 0)
    _store_selected(
        views["dst"], mask, flatten_free(views["on_true_tile"]), on_false=as_float(values["on_false_value"])
    )


def _range_select(views: Views, values: Values) -> None:
    """Select elements whose index, from `range_start`, is within both bounds, compared in float32."""
    data = load_rows(views["on_true_tile"])
    index = (as_integer(values["range_start"]) + np.arange(data.shape[1])).astype(np.float32)
    mask = BINARY[str(values["comp_op0"])](index, load_rows(views["bound0"]))
    mask &= BINARY[str(values["comp_op1"])](index, load_rows(views["bound1"]))
    result = np.where(mask, data, np.float32(as_float(values["on_false_value"])))
    store(views["dst"], result)
    accumulate_registers(views, values, result, "maximum")


def _predicate_holds(views: Views, values: Values) -> Array:
    """Where the predicate tile is nonzero, or zero with `reverse_pred`: [P, F]."""
    predicate = flatten_free(views["predicate"])
    return np.equal(predicate, 0) if values.get("reverse_pred") else np.not_equal(predicate, 0)


def _select_reduce(views: Views, values: Values) -> None:
    result = np.where(
        _predicate_holds(views, values), load_rows(views["on_true"]), read_operand(views, values, "on_false")
    )
    store(views["dst"], result)
    accumulate_registers(views, values, result, "maximum")


def _tensor_copy_predicated(views: Views, values: Values) -> None:
    dst = views["dst"]
    value = flatten_free(views["src"]) if "src" in views else as_float(values["src"])
    _store_selected(
        dst,
        _predicate_holds(views, values),
        np.broadcast_to(convert_like(value, dst), flatten_free(dst).shape),
        on_false=flatten_free(dst),
    )


TOUCHED: dict[str, Touched] = {
    "tensor_copy_predicated": lambda views, values: {"dst": _predicate_holds(views, values)},
}

SEMANTICS: dict[str, Semantics] = {
    "iota": _iota,
    "affine_select": _affine_select,
    "range_select": _range_select,
    "select_reduce": _select_reduce,
    "tensor_copy_predicated": _tensor_copy_predicated,
}
