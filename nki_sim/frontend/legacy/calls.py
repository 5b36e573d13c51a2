"""What legacy calls are given: tiles, numbers and functions, as the operators take them."""

from __future__ import annotations

from typing import Any

from nki_sim.frontend.legacy.tiles import Tile, operand
from nki_sim.frontend.lowering.promotion import number
from nki_sim.frontend.tensor import fail
from nki_sim.functions import ALIASES

# NumPy's names for functions of the language.
_NUMPY = {
    "amax": "maximum", "amin": "minimum", "absolute": "abs", "true_divide": "divide", "remainder": "mod",
    "float_power": "power", "bitwise_not": "invert", "mean": "average",
}  # fmt: skip


def function_name(op: Any) -> str:
    """The language's name of a function given as `nl.add`, `np.add`, `np.max`...

    Raises:
        KernelError: what is given is no function.
    """
    name = getattr(op, "name", None) or getattr(op, "__name__", None)
    if not isinstance(name, str):
        fail("op", f"{op!r} is no function", "pass one of the language or of NumPy: nl.add, np.add, nl.exp")
    name = _NUMPY.get(name, name)
    return ALIASES.get(name, name)


def value_of(value: Any) -> Any:
    """A tile for a tensor, a Python number for a NumPy one, anything else as it is."""
    if type(value) is Tile:
        return value
    found = number(value)
    return operand(value) if found is None else found
