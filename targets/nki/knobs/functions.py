"""The functions of one and two numbers that operators take by name, and their NumPy implementations.

Names are those of `nki.language`; `SPELLINGS` has other spellings that workloads use. Activations run on
ScalarE, the others on VectorE. Arrays are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targets.nki.knobs.errors import WorkloadError

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A function that folds a whole row; `identity` is its start value."""

    fold: Callable[..., Any]
    combine: Callable[..., Any]
    identity: float


def _sigmoid(x: FloatArray) -> FloatArray:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, np.float32(1), small) / (1 + small), np.float32)


BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}

ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "copy": np.positive,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "reciprocal": np.reciprocal,
    "relu": lambda x: np.maximum(x, 0),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
}
"""Functions that run on ScalarE."""

LOWEST = float(np.finfo(np.float32).min)

REDUCTIONS: Mapping[str, Reduction] = {
    "add": Reduction(np.sum, np.add, 0.0),
    "maximum": Reduction(np.max, np.maximum, LOWEST),
    "minimum": Reduction(np.min, np.minimum, -LOWEST),
}

SPELLINGS: Mapping[str, str] = {
    "identity": "copy",
    "max": "maximum",
    "min": "minimum",
    "mul": "multiply",
    "prod": "multiply",
    "sub": "subtract",
    "sum": "add",
}


def canonical_name(name: object, table: Mapping[str, Any], what: str) -> str:
    """Return the name that `table` has for a function.

    Raises:
        WorkloadError: it has none.
    """
    found = SPELLINGS.get(name, name) if isinstance(name, str) else name
    if not isinstance(found, str) or found not in table:
        raise WorkloadError(f"{what} {name!r} is unknown; known are {', '.join(sorted(table))}")
    return found
