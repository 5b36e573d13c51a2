"""The data types a tensor may have: names, sizes and kinds; NumPy equivalents are made elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DType:
    """A data type by its NKI name; `itemsize` in bytes."""

    name: str
    itemsize: int
    kind: Literal["float", "int", "uint"]

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __str__(self) -> str:
        return self.name


_ALL = (
    DType("float32", 4, "float"),
    DType("bfloat16", 2, "float"),
    DType("float16", 2, "float"),
    DType("float8_e4m3", 1, "float"),
    DType("float8_e5m2", 1, "float"),
    DType("int32", 4, "int"),
    DType("int16", 2, "int"),
    DType("int8", 1, "int"),
    DType("uint32", 4, "uint"),
    DType("uint16", 2, "uint"),
    DType("uint8", 1, "uint"),
)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in _ALL}
