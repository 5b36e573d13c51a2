"""Arithmetic of MX: packed numbers, their shared scales, quantisation and products.

Formats and groups are those of the OCP Microscaling specification. Elements and scales are exact in float64,
in which a product is summed; the sum is rounded to float32 once.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nki_sim.dtypes import PACKED_DTYPES, PACKED_ELEMENTS
from nki_sim.operators.rules.mx import GROUP_PARTITIONS
from nki_sim.semantics.arrays import Array, Float
from nki_sim.semantics.common import Semantics, Values, Views, load_rows, store_sum

Double = npt.NDArray[np.float64]

SCALE_BIAS = 127
SCALE_NAN = 255
_FOUR_BITS = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
_LARGEST_EXPONENT = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}
"""Of the largest number that an element can be."""

_LARGEST = {"float8_e4m3fn_x4": 448.0, "float8_e5m2_x4": 57344.0, "float4_e2m1fn_x4": 6.0}


def unpack_numbers(view: Array) -> Float:
    """The numbers of packed elements, along a last axis of 4."""
    (name,) = view.dtype.names or ()
    held = view[name]
    if PACKED_DTYPES[name] != "float4_e2m1fn":
        return np.asarray(held.astype(np.float32))
    halves = np.stack([held & 0xF, held >> 4], axis=-1).reshape(*view.shape, PACKED_ELEMENTS)
    return np.asarray(_FOUR_BITS[halves])


def pack_numbers(values: Any, dtype: np.dtype[Any]) -> Array:
    """Round numbers, four along the last axis, to elements of a packed type: to nearest even, saturating."""
    (name,) = dtype.names or ()
    element = np.dtype(getattr(ml_dtypes, PACKED_DTYPES[name]))
    most = _LARGEST[name]
    rounded = np.clip(values, -most, most).astype(element)
    bits = rounded.view(np.uint8)
    if PACKED_DTYPES[name] == "float4_e2m1fn":
        bits = bits[..., ::2] | bits[..., 1::2] << np.uint8(4)
    return np.ascontiguousarray(bits).view(dtype)[..., 0]


def _read_scales(views: Views, role: str) -> Double:
    """The scales of an operand, a row for each group of partitions."""
    rows = [
        view.reshape(len(view), -1) for name, view in sorted(views.items()) if name.rstrip("0123") == role
    ]
    held = np.concatenate(rows).view(np.uint8)
    found: Double = np.ldexp(1.0, held.astype(np.int32) - SCALE_BIAS)
    return np.where(held == SCALE_NAN, np.nan, found)


def _dequantise(views: Views, role: str) -> Double:
    """An operand as numbers, [4 K, free]: the four of an element are neighbours of the contraction."""
    view = views[role]
    packed = view.reshape(len(view), -1)
    scales = np.repeat(_read_scales(views, f"{role}_scale"), GROUP_PARTITIONS, axis=0)
    numbers = unpack_numbers(packed) * scales[:, :, None]
    return np.asarray(numbers.transpose(0, 2, 1).reshape(-1, packed.shape[1]))


def _nc_matmul_mx(views: Views, values: Values) -> None:
    """dst[M, N] = stationary[K, M].T @ moving[K, N], over the four numbers of each element too."""
    left, right = _dequantise(views, "stationary"), _dequantise(views, "moving")
    store_sum(views["dst"], (left.T @ right).astype(np.float32), values.get("accumulate"))


def _quantize_mx(views: Views, values: Values) -> None:
    """Divide each group by a power of two that leaves room to round, and round to the elements' type.

    The documents give the scale, which is twice that of the specification's example, and the smallest one for
    groups of zeros. A group with infinity or NaN has the scale NaN [I].
    """
    del values
    dst, numbers = views["dst"], load_rows(views["src"])
    (name,) = dst.dtype.names or ()
    groups = numbers.reshape(-1, GROUP_PARTITIONS, numbers.shape[1] // PACKED_ELEMENTS, PACKED_ELEMENTS)
    largest = np.abs(groups).max(axis=(1, 3))
    finite = np.isfinite(largest)
    # frexp gives a fraction below 1, so its exponent is one more than that of the leading bit.
    exponents = np.frexp(np.where(finite, largest, 1.0))[1] - 1 - (_LARGEST_EXPONENT[name] - 1)
    exponents = np.where(largest == 0, -SCALE_BIAS, np.clip(exponents, -SCALE_BIAS, SCALE_BIAS))
    scaled = np.where(finite[:, None, :, None], np.ldexp(groups, -exponents[:, None, :, None]), np.nan)
    np.copyto(dst, pack_numbers(scaled.reshape(*numbers.shape[:1], -1, 4), dst.dtype).reshape(dst.shape))
    scales = np.where(finite, exponents + SCALE_BIAS, SCALE_NAN).astype(np.uint8)
    parts = [view for role, view in sorted(views.items()) if role.startswith("dst_scale")]
    for view, rows in zip(parts, np.split(scales, len(parts)), strict=True):
        np.copyto(view, rows.reshape(view.shape).view(view.dtype))


SEMANTICS: dict[str, Semantics] = {"nc_matmul_mx": _nc_matmul_mx, "quantize_mx": _quantize_mx}
