"""The result type of operations on mixed types, by the page "NKI Type Promotion".

A float wins over an integer and the wider type over the narrower. If neither type can hold the other, the
result is the next type that holds both. A Python number counts as the widest type of its kind; a NumPy scalar
has its own type.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from nki_sim.dtypes import DTYPES
from nki_sim.frontend.tensor import Tensor, fail

_FLOAT_RANK = {"float16": 1, "bfloat16": 1, "tfloat32": 2, "float32": 3}
_WEAK = {bool: "uint8", int: "int32", float: "float32"}
_STORED = {"bool_": "uint8"}
_SIGNED = {1: "int16", 2: "int32"}


def as_number(value: Any) -> float | None:
    """The Python number of a Python or NumPy scalar, None for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, int):
        return int(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return as_number(value.item())
    return None


def dtype_of(value: Any) -> str:
    """Return the type name that a tile or a number counts as."""
    if isinstance(value, Tensor):
        return value._storage.dtype
    weak = _WEAK.get(type(value)) or ("int32" if isinstance(value, int) else "")
    name = weak or type_name(getattr(value, "dtype", ""))
    if name not in DTYPES:
        fail("argument_type", f"{value!r} is neither a tile nor a number of a supported type")
    return name


def type_name(dtype: Any) -> str:
    """Return the name of a type given as the language's, as NumPy's, or as text."""
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype))
    return "bool_" if name == "bool" else name


def promote_types(*values: Any) -> str:
    """The type of an arithmetic result of these tiles and numbers."""
    return reduce(join_types, map(dtype_of, values))


def join_types(left: str, right: str) -> str:
    """Return the narrowest type that holds the values of both."""
    if left == right:
        return left
    left, right = _STORED.get(left, left), _STORED.get(right, right)
    one, two = DTYPES[left], DTYPES[right]
    if one.kind == two.kind == "float":
        return _join_floats(left, right)
    if "float" in {one.kind, two.kind}:
        return left if one.kind == "float" else right
    return _join_integers(left, right)


def _join_floats(left: str, right: str) -> str:
    one, two = _FLOAT_RANK.get(left, 0), _FLOAT_RANK.get(right, 0)
    if one == two:
        return "bfloat16" if one == 0 else "float32"
    return left if one > two else right


def _join_integers(left: str, right: str) -> str:
    one, two = DTYPES[left], DTYPES[right]
    if one.kind == two.kind:
        return left if one.itemsize >= two.itemsize else right
    signed, unsigned = (one, two) if one.kind == "int" else (two, one)
    if signed.itemsize > unsigned.itemsize:
        return signed.name
    # The next wider signed type; there are no 64-bit integers on chip.
    return _SIGNED.get(unsigned.itemsize, "float32")
