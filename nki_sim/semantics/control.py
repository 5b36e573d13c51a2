"""Register arithmetic: integers that wrap at their width. Loop markers compute nothing.

Moves between memory and registers carry integers by value and floating-point elements by their bits, as a
sequencer without a floating-point unit does. A value wider than its destination loses its upper bits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from nki_sim.semantics.arrays import Array
from nki_sim.semantics.common import Semantics, Values, Views

_OPS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "maximum": max,
    "minimum": min,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}


def _read_integer(view: Array) -> int:
    """The element as an integer; a floating-point number gives its bits."""
    flat = view.reshape(-1)
    return int(flat[0] if flat.dtype.kind in "iub" else flat.view(f"u{flat.itemsize}")[0])


def _write_integer(view: Array, value: int) -> None:
    """Store the low bits of an integer, as many as the element has."""
    size = view.dtype.itemsize
    low = value & ((1 << 8 * size) - 1)
    np.copyto(view, np.array(low, f"u{size}").view(view.dtype).reshape((1,) * view.ndim))


def _operand_value(views: Views, values: Values, role: str) -> int:
    if role in views:
        return _read_integer(views[role])
    value = values[role]
    assert isinstance(value, int)
    return value


def _register_move(views: Views, values: Values) -> None:
    _write_integer(views["dst"], _operand_value(views, values, "src"))


def _register_alu(views: Views, values: Values) -> None:
    left, right = _operand_value(views, values, "left"), _operand_value(views, values, "right")
    _write_integer(views["dst"], int(_OPS[str(values["op"])](left, right)))


def _loop_marker(views: Views, values: Values) -> None:
    """Do nothing; the machine that runs the program handles the jump."""
    del views, values


SEMANTICS: dict[str, Semantics] = {
    "register_move": _register_move,
    "register_load": _register_move,
    "register_store": _register_move,
    "register_alu": _register_alu,
    "loop_begin": _loop_marker,
    "loop_end": _loop_marker,
}
