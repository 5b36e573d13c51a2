"""The array methods that recording arrays support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from remote.judge.identity.tracing.arrays import RecordedArray, UntraceableError
from remote.judge.identity.tracing.ufuncs import record_elementwise


def _astype(self: RecordedArray, dtype: Any, *args: Any, **kwargs: Any) -> RecordedArray:
    """Keep the number: rounding to another float type is not part of the reference's formula."""
    kind, own = np.dtype(dtype).kind, self.dtype.kind
    if kind == "c":
        raise UntraceableError("it computes with complex numbers")
    if kind == "b" and own != "b":
        return record_elementwise(self.recorder, "not_equal", self, 0.0, dtype=dtype)
    if kind in "iu" and own not in "iub":
        return record_elementwise(self.recorder, "trunc", self, dtype=dtype)
    return self.copy_elements(np.dtype(dtype))


def _copy(self: RecordedArray, order: str = "C") -> RecordedArray:
    return self.copy_elements()


def _require_row_major(order: str) -> None:
    if order not in {"C", "A", "K"}:
        raise UntraceableError(f"it uses an order of elements, {order!r}")


def _flatten(self: RecordedArray, order: str = "C") -> RecordedArray:
    _require_row_major(order)
    return self.copy_elements().move_shadow(lambda array: np.reshape(array, -1, order="C"))


def _fill(self: RecordedArray, value: Any) -> None:
    self[...] = value


def _make_view_method(name: str) -> Callable[..., RecordedArray]:
    def method(self: RecordedArray, *args: Any, **kwargs: Any) -> RecordedArray:
        return self.move_shadow(lambda array: getattr(array, name)(*args, **kwargs))

    return method


def _make_function_method(function: Any) -> Callable[..., Any]:
    def method(self: RecordedArray, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return method


METHODS: dict[str, Callable[..., Any]] = {
    "astype": _astype,
    "copy": _copy,
    "fill": _fill,
    "flatten": _flatten,
    **{
        name: _make_view_method(name)
        for name in ("diagonal", "ravel", "reshape", "squeeze", "swapaxes", "transpose")
    },
    **{
        name: _make_function_method(getattr(np, name))
        for name in (
            "all", "any", "clip", "cumprod", "cumsum", "dot", "max", "mean", "min", "prod", "repeat", "round",
            "std", "sum", "take", "trace", "var",
        )
    },
}  # fmt: skip
