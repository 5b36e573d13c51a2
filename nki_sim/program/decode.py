"""Decodes sites and forms from untrusted JSON: checks every field's type and range, raises `IRError`."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from nki_sim.dtypes import DTYPES
from nki_sim.errors import IRError, escape_surrogates
from nki_sim.forms import (
    BUFFERS,
    HBM_BUFFERS,
    MAX_NAME,
    Dims,
    Form,
    Operand,
    Params,
    ParamValue,
    Site,
    chooses_columns,
    index_role,
)
from nki_sim.functions import ACTIVATIONS, ACTIVATIONS2, ALU, REDUCE, REGISTER_ALU
from nki_sim.operators import OPERATORS, Argument, Operator
from nki_sim.operators.state import lacks_state

MAX_SIZE = 1 << 40
MAX_RANK = 32

_FUNCTIONS = {
    "alu": ALU,
    "activation": ACTIVATIONS,
    "activation2": ACTIVATIONS2,
    "reduce": REDUCE,
    "register_alu": REGISTER_ALU,
}


def decode_text_field(header: dict[str, Any], name: str) -> str:
    """Read a short text field of the header."""
    return _require_text(header.get(name), name)


def decode_site(item: Any) -> Site:
    """Decode [name, shape, dtype, buffer, line, address or null]."""
    name, shape, dtype, buffer, line, address = _require_fields(item, 6, "site")
    sizes = tuple(_require_number(size, "size", 1) for size in _require_list(shape, "shape"))
    if not sizes or prod(sizes) > MAX_SIZE:
        raise IRError(f"a tensor of shape {sizes}")
    kind = (_require_choice(dtype, DTYPES, "type"), _require_choice(buffer, BUFFERS, "buffer"))
    place = None if address is None else _decode_pair(address, least=0)
    site = Site(_require_text(name, "name"), sizes, *kind, _require_number(line, "line", 0), place)
    if site.buffer not in HBM_BUFFERS and len(sizes) < 2:
        raise IRError(f"tile {site.name} is one-dimensional")
    return site


def decode_form(item: Any) -> Form:
    """Decode [op, engine, operands, params, hints]; roles and parameters are the operator's, in its order."""
    name, engine, operands, params, hints = _require_fields(item, 5, "form")
    operator = OPERATORS[_require_choice(name, OPERATORS, "operator")]
    form = Form(
        operator.name,
        _require_choice(engine, (*operator.engines, *operator.v4_engines), "engine"),
        tuple(_decode_operand(operator, entry) for entry in _require_list(operands, "operands")),
        _decode_params(operator, params),
        tuple(_decode_hint(entry) for entry in _require_list(hints, "hints")),
    )
    _check_arguments(operator, form)
    return form


def _decode_hint(item: Any) -> tuple[str, str | int]:
    name, value = _require_fields(item, 2, "hint")
    if _require_choice(name, ("engine", "moving"), "hint") == "engine":
        return "engine", _require_choice(value, ("open",), "engine")
    return "moving", _require_number(value, "moving elements", 1)


def _check_arguments(operator: Operator, form: Form) -> None:
    given = _roles_without_indices(form)
    named = {name for name, _ in form.params}
    order = [argument.name for argument in operator.arguments if argument.name in set(given)]
    if given != order or named & set(given):
        raise IRError(f"{operator.name}: operands {given} are not in order or doubled")
    missing = [a.name for a in operator.arguments if a.required and a.name not in named | set(given)]
    if missing:
        raise IRError(f"{operator.name}: no {', '.join(missing)}")
    if lacks_state(operator, form):
        raise IRError(f"{operator.name} lacks the memory of its engine")


def _decode_operand(operator: Operator, item: Any) -> Operand:
    role, dims, dtype, buffer, row, start, column, index_step = _require_fields(item, 8, "operand")
    if isinstance(role, str) and role in _index_roles(operator):
        return _decode_index(role, item)
    argument = operator.arguments_by_name[_require_choice(role, operator.arguments_by_name, "role")]
    if not argument.is_tensor:
        raise IRError(f"{operator.name}: {argument.name} is not a tensor")
    operand = Operand(
        argument.name, _decode_dims(dims), _require_choice(dtype, DTYPES, "type"),
        _require_choice(buffer, argument.buffers, "buffer"), _require_number(row, "row", 1),
        _require_number(start, "start", 0), _require_number(column, "column", 0),
        _require_number(index_step, "index step", 0),
    )  # fmt: skip
    step, count = operand.dims[0]
    if step < 0 or (operand.in_hbm and operand.reach_below):
        raise IRError(f"{operator.name}: {argument.name} walks partitions or memory off chip backwards")
    if not operand.in_hbm and count > 1 and step != operand.row:
        raise IRError(f"{operator.name}: {argument.name} walks partitions by {step}, not {operand.row}")
    return operand


@cache
def _index_roles(operator: Operator) -> frozenset[str]:
    return frozenset(index_role(argument.name) for argument in operator.arguments if argument.is_tensor)


def _decode_index(role: str, item: list[Any]) -> Operand:
    """Decode the integers that address the operand before them."""
    _, dims, dtype, buffer, row, start, column, index_step = item
    if index_step != 0 or DTYPES[_require_choice(dtype, DTYPES, "type")].kind == "float":
        raise IRError(f"{role} is not a tile of integers")
    made = Operand(
        role, _decode_dims(dims), dtype, _require_choice(buffer, BUFFERS, "buffer"),
        _require_number(row, "row", 1), _require_number(start, "start", 0),
        _require_number(column, "column", 0),
    )  # fmt: skip
    if made.reach_below:
        raise IRError(f"{role} is walked backwards")
    return made


def _roles_without_indices(form: Form) -> list[str]:
    """Roles in order without indices; an index must follow directly after the operand that it addresses."""
    roles: list[str] = []
    waiting: Operand | None = None
    for item in form.operands:
        if waiting is None:
            roles.append(item.role)
            waiting = item if item.index_step else None
            continue
        count = waiting.dims[0][1]
        by_row = item.elements == count and waiting.dims[0][0] == 0
        fits = item.elements == 1 or by_row or chooses_columns(waiting, item)
        if item.role != index_role(waiting.role) or not fits:
            raise IRError(f"{form.op}: {item.role} of {item.elements} does not index {waiting.role}")
        waiting = None
    if waiting is not None:
        raise IRError(f"{form.op}: {waiting.role} has no index")
    return roles


def _decode_dims(value: Any) -> Dims:
    dims = tuple(_decode_pair(pair, step=-MAX_SIZE) for pair in _require_list(value, "access pattern"))
    if not 0 < len(dims) <= MAX_RANK:
        raise IRError(f"an access pattern of {len(dims)} dimensions")
    if prod(count for _, count in dims) > MAX_SIZE or sum(abs(s) * (c - 1) for s, c in dims) > MAX_SIZE:
        raise IRError("an access pattern that is too large")
    return dims


def _decode_pair(value: Any, *, step: int = 0, least: int = 1) -> tuple[int, int]:
    first, count = _require_fields(value, 2, "pair")
    return _require_number(first, "step", step), _require_number(count, "count", least)


def _decode_params(operator: Operator, value: Any) -> Params:
    pairs = [_require_fields(pair, 2, "parameter") for pair in _require_list(value, "parameters")]
    names = [_require_choice(name, operator.arguments_by_name, "parameter") for name, _ in pairs]
    if len(set(names)) != len(names):
        raise IRError(f"{operator.name}: a parameter is given twice")
    return tuple(
        (name, _decode_param(operator.arguments_by_name[name], entry))
        for name, (_, entry) in zip(names, pairs, strict=True)
    )


def _decode_param(argument: Argument, value: Any) -> ParamValue:
    kind = argument.kind
    if kind in _FUNCTIONS:
        return _require_choice(value, _FUNCTIONS[kind], argument.name)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "choice":
        return _require_choice(value, argument.choices, argument.name)
    if kind in {"axes", "ints"}:
        return tuple(_require_number(axis, "axis", 0) for axis in _require_list(value, "axes"))
    if kind == "pattern":
        return _decode_pattern(_require_list(value, argument.name))
    if kind in {"float", "tensor_or_float"}:
        return _require_real(value, argument.name)
    if kind in {"int", "tensor_or_int"}:
        return _require_integer(value, argument.name)
    raise IRError(f"{argument.name} cannot be {str(value)[:80]!r}")


def _decode_pattern(value: list[Any]) -> tuple[int, ...]:
    """Alternating steps (of any sign) and counts."""
    if not value or len(value) % 2:
        raise IRError("a pattern is not made of steps and counts")
    steps = [_require_integer(step, "step") for step in value[::2]]
    counts = [_require_number(count, "count", 1) for count in value[1::2]]
    return tuple(number for pair in zip(steps, counts, strict=True) for number in pair)


def _require_integer(value: Any, what: str) -> int:
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    raise IRError(f"{what} is not an integer of 64 bits")


def _require_real(value: Any, what: str) -> float:
    if value in {"inf", "-inf", "nan"} if isinstance(value, str) else type(value) is float:
        return float(value)
    raise IRError(f"{what} is not a number")


def _require_fields(value: Any, count: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != count:
        raise IRError(f"a {what} needs {count} fields")
    return value


def _require_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise IRError(f"{what} is not a list")
    return value


def _require_text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME or value != escape_surrogates(value):
        raise IRError(f"{what} is not a short text")
    return value


def _require_number(value: Any, what: str, least: int) -> int:
    if type(value) is not int or not least <= value <= MAX_SIZE:
        raise IRError(f"{what} is not an integer from {least} to {MAX_SIZE}")
    return value


def _require_choice(value: Any, allowed: Any, what: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise IRError(f"unknown {what}: {str(value)[:80]!r}")
    return value
