"""Divisions of the legacy namespace, which the current one has no operator for.

Its documents say what to do instead: multiply by the reciprocal of the divisor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from targets.nki.raising.instruction_rows import NotRaised, Parameter, RowKey, TileClass

_DIVISORS = {"op": ("data2", ""), "op0": ("operand0", "reverse0"), "op1": ("operand1", "reverse1")}
"""For each operator argument, the role of its second operand, and the flag that swaps the two."""


@dataclass(frozen=True, slots=True)
class Reciprocal:
    """A tile to declare before a call, which holds the reciprocal of the operand in a role."""

    role: str
    home: TileClass


def find_divisions(key: RowKey) -> tuple[RowKey, tuple[Reciprocal, ...]]:
    """Return a call with products in place of divisions, and the reciprocals that it then takes.

    Raises:
        NotRaised: a division has its dividend second.
    """
    params = dict(key.params)
    if not any(params[name].value == "divide" for name in _DIVISORS if name in params):
        return key, ()
    needed = tuple(_replace_divisions(key, params))
    return replace(key, params=tuple(params.items())), needed


def _replace_divisions(key: RowKey, params: dict[str, Parameter]) -> Iterator[Reciprocal]:
    tensors = {item.role: item for item in key.operands}
    for name, (role, swap) in _DIVISORS.items():
        if name not in params or params[name].value != "divide":
            continue
        if swap in params and params[swap].value:
            raise NotRaised(f"{key.op} that divides {role} by the data")
        params[name] = Parameter("multiply", repr("multiply"))
        if role in tensors:
            shape = tuple(count for _, count in tensors[role].dims)
            yield Reciprocal(role, TileClass(shape, "float32", "sbuf", None))
        else:
            inverse = 1.0 / float(str(params[role].value))
            params[role] = Parameter(inverse, repr(inverse))
