"""The data types a tensor may have: names, sizes, kinds and NumPy equivalents."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from nki_sim.refusals import DocumentedNames


class DType(DocumentedNames):
    """A data type by its NKI name; `itemsize` in bytes. `bool_` is an unsigned integer of 0 and 1.

    An element of a `packed` type holds `PACKED_ELEMENTS` numbers. A type equals its name and the types of
    that name of NumPy, ml_dtypes and torch. It is not a dataclass, so `dataclasses.asdict` of an object that
    holds one does not take it apart.
    """

    __slots__ = ("itemsize", "kind", "name")

    def __init__(self, name: str, itemsize: int, kind: Literal["float", "int", "uint", "packed"]) -> None:
        self.name = name
        self.itemsize = itemsize
        self.kind = kind

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return self is other or nki_dtype_name(other) == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def dtype(self) -> Any:
        """The NumPy type; NumPy reads this attribute, so `x.astype(nl.bfloat16)` works."""
        return _numpy_dtype(self.name)


def integer_limits(dtype: DType) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    bits = 1 if dtype.name == "bool_" else 8 * dtype.itemsize
    return (0, (1 << bits) - 1) if dtype.kind == "uint" else (-(1 << bits - 1), (1 << bits - 1) - 1)


@cache
def _numpy_dtype(name: str) -> Any:
    """Return the NumPy type of a name; imports NumPy late because the jailed tracer starts without it."""
    import ml_dtypes
    import numpy as np

    if name == "tfloat32":
        # Only the metadata distinguishes it from float32, and comparisons of types ignore metadata.
        return np.dtype(np.float32, metadata={"fraction_bits": 10})
    if name in PACKED_DTYPES:
        # Its one field distinguishes it from other types of its size; ml_dtypes gives a 4-bit number a byte.
        element = "u1" if name.startswith("float4") else getattr(ml_dtypes, PACKED_DTYPES[name])
        return np.dtype([(name, element, (DTYPES[name].itemsize // np.dtype(element).itemsize,))])
    return np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))


def nki_dtype_name(dtype: object) -> str:
    """Return the NKI name of a data type given as a `DType`, as text, or as another package's type."""
    if isinstance(dtype, DType):
        return dtype.name
    found = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    fields = getattr(dtype, "names", None)
    if isinstance(fields, tuple) and len(fields) == 1 and fields[0] in PACKED_DTYPES:
        return str(fields[0])
    if not isinstance(found, str):
        found = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    plain = found.removeprefix("torch.")
    return "bool_" if plain == "bool" else plain


PACKED_ELEMENTS = 4
"""Numbers in one element of a packed type: the first one in the lowest bits."""

PACKED_DTYPES = {
    "float8_e4m3fn_x4": "float8_e4m3fn",
    "float8_e5m2_x4": "float8_e5m2",
    "float4_e2m1fn_x4": "float4_e2m1fn",
}
"""The types that operands of MX products have, and the type of the numbers in each."""

_ALL_DTYPES = (
    DType("tfloat32", 4, "float"),
    DType("float32", 4, "float"),
    DType("bfloat16", 2, "float"),
    DType("float16", 2, "float"),
    DType("float8_e4m3", 1, "float"),
    DType("float8_e4m3fn", 1, "float"),
    DType("float8_e5m2", 1, "float"),
    DType("int64", 8, "int"),
    DType("int32", 4, "int"),
    DType("int16", 2, "int"),
    DType("int8", 1, "int"),
    DType("uint32", 4, "uint"),
    DType("uint16", 2, "uint"),
    DType("uint8", 1, "uint"),
    DType("bool_", 1, "uint"),
    DType("float8_e4m3fn_x4", 4, "packed"),
    DType("float8_e5m2_x4", 4, "packed"),
    DType("float4_e2m1fn_x4", 2, "packed"),
    DType("float8_e8m0fnu", 1, "float"),
)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in _ALL_DTYPES}

MX_DTYPES = frozenset(PACKED_DTYPES)
TRN3_DTYPES = MX_DTYPES | {"float8_e8m0fnu"}
"""Types of NeuronCore-v4 and later only. Nothing casts to or from them; scales and MX operands have them."""

V4 = 4
"""The generation of NeuronCores that these types begin with."""
