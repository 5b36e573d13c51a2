"""The methods of arrays, for arrays that record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from remote.judge.identity.tracing.arrays import Recording, UntraceableError
from remote.judge.identity.tracing.ufuncs import elementwise


def _astype(self: Recording, dtype: Any, *args: Any, **kwargs: Any) -> Recording:
    """Rounding to another float type is not what the reference means: the number stays."""
    kind, own = np.dtype(dtype).kind, self.dtype.kind
    if kind == "c":
        raise UntraceableError("it computes with complex numbers")
    if kind == "b" and own != "b":
        return elementwise(self.recorder, "not_equal", self, 0.0, dtype=dtype)
    if kind in "iu" and own not in "iub":
        return elementwise(self.recorder, "trunc", self, dtype=dtype)
    return self.copied(np.dtype(dtype))


def _copy(self: Recording, order: str = "C") -> Recording:
    return self.copied()


def _row_major(order: str) -> None:
    if order not in {"C", "A", "K"}:
        raise UntraceableError(f"it uses an order of elements, {order!r}")


def _flatten(self: Recording, order: str = "C") -> Recording:
    _row_major(order)
    return self.copied().moved(lambda array: np.reshape(array, -1, order="C"))


def _fill(self: Recording, value: Any) -> None:
    self[...] = value


def _moving(name: str) -> Callable[..., Recording]:
    def method(self: Recording, *args: Any, **kwargs: Any) -> Recording:
        return self.moved(lambda array: getattr(array, name)(*args, **kwargs))

    return method


def _as_function(function: Any) -> Callable[..., Any]:
    def method(self: Recording, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return method


METHODS: dict[str, Callable[..., Any]] = {
    "astype": _astype,
    "copy": _copy,
    "fill": _fill,
    "flatten": _flatten,
    **{
        name: _moving(name)
        for name in ("diagonal", "ravel", "reshape", "squeeze", "swapaxes", "transpose")
    },
    **{
        name: _as_function(getattr(np, name))
        for name in (
            "clip", "cumsum", "dot", "max", "mean", "min", "prod", "repeat", "round", "std", "sum", "take",
            "var",
        )
    },
}  # fmt: skip
