"""Checks outputs: shapes, types, and the relative L2 error against the reference.

rel_l2 = ||out - reference|| / ||reference||, in float64, over all elements; infinite when an output is not
finite. Each problem sets its own tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, prod, sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seeds import ProblemSpec

Array = NDArray[Any]
_CHUNK = 1 << 20  # elements compared at a time, to keep float64 copies small


class ReturnedArray(Protocol):
    """What a kernel declares about an output: its shape and the name of its data type."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


class BadReferenceError(Exception):
    """The reference's outputs are unusable: a fault of the problem or of a cached file."""


def output_fault(found: Sequence[ReturnedArray], spec: ProblemSpec, size: str) -> tuple[str, str] | None:
    """Return (code, message) of the first way in which outputs differ in form from the problem's."""
    dims = spec.dims(size)
    if len(found) != len(spec.outputs):
        return "output_count", f"the kernel returns {len(found)} arrays, {spec.name} has {len(spec.outputs)}"
    for item, output in zip(found, spec.outputs, strict=True):
        shape = output.resolve_shape(dims)
        if output.kernel_shape is not None:
            if prod(item.shape) != prod(shape):
                text = f"has {prod(item.shape)} elements, it must have the {prod(shape)} of shape {shape}"
                return "output_shape", f"{output.name} {text}"
        elif tuple(item.shape) != shape:
            return "output_shape", f"{output.name} has shape {tuple(item.shape)}, it must be {shape}"
        if item.dtype != output.dtype:
            return "output_dtype", f"{output.name} is {item.dtype}, it must be {output.dtype}"
    return None


def rel_l2(outputs: Sequence[Array], references: Sequence[Array]) -> float:
    """Return the largest relative L2 error of any output.

    Raises:
        BadReferenceError: shapes differ, or a reference is not finite or all zero.
    """
    return max(_relative_error(out, reference) for out, reference in zip(outputs, references, strict=True))


def is_comparable(reference: Array) -> bool:
    """Whether a relative error is defined for the reference: finite, and not zero everywhere."""
    total = _sum_of_squares(reference)
    return isfinite(total) and total != 0.0


def _sum_of_squares(array: Array) -> float:
    flat = array.reshape(-1)
    parts = (flat[start : start + _CHUNK].astype(np.float64) for start in range(0, flat.size, _CHUNK))
    return sum(float(part @ part) for part in parts)


def _relative_error(out: Array, reference: Array) -> float:
    if out.shape != reference.shape:
        raise BadReferenceError(f"the reference has shape {reference.shape}, the output {out.shape}")
    flat, truth = out.reshape(-1), reference.reshape(-1)
    wrong = total = 0.0
    for start in range(0, flat.size, _CHUNK):
        expected = truth[start : start + _CHUNK].astype(np.float64)
        total += float(expected @ expected)
        expected -= flat[start : start + _CHUNK]
        wrong += float(expected @ expected)
    if not isfinite(total) or total == 0.0:
        raise BadReferenceError("the reference is not finite, or zero everywhere")
    return sqrt(wrong / total) if isfinite(wrong) else inf
