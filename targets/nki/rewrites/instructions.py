"""Interprets calls by the simulator's operator list: the meaning of each operand and argument.

A call that the list does not describe, or with side effects that no operand shows, raises `UnreadableSyntax`:
rewrites then leave it where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from nki_sim.forms import Form, Operand, Params, ParamValue
from nki_sim.functions import ACTIVATIONS, ALIASES, ALU, REDUCE
from nki_sim.operators import OPERATORS, Argument, Operator
from nki_sim.operators.rules.mx import QUADRANT, SCALE_ROWS
from targets.nki.rewrites.kernel_ir import Access
from targets.nki.rewrites.values import (
    Affine,
    LibrarySymbol,
    Slice,
    Tensor,
    TensorView,
    UnreadableSyntax,
    Value,
    index_view,
)

HINTS = frozenset({"name", "priority", "dge_mode", "keepdims", "dtype"})
"""Accepted by every instruction, without effect on the result."""

_STATE_DEPENDENT = {"nc_matmul": "accumulate", "nc_matmul_mx": "accumulate"}
"""Arguments whose default depends on what ran before."""

MOVING = frozenset({"offset", "index_offset"})
"""Integer arguments that may differ between iterations; neither time nor rules depend on them."""

_SCALED = {"stationary_scale": "stationary", "moving_scale": "moving", "dst_scale": "src"}
"""By a tile of MX scales: the operand that it scales. An operand of each quadrant's scales stands for it."""


def find_operator(called: Value) -> Operator | None:
    """Return the operator of an `nki.isa` function; None for any other value."""
    if not isinstance(called, LibrarySymbol) or called.path != f"nisa.{called.leaf}":
        return None
    found = OPERATORS.get(called.leaf)
    return None if found is None or found.internal else found


def make_form(operator: Operator, views: Mapping[str, TensorView], arguments: Mapping[str, Value]) -> Form:
    """Return a call's form for cost formulas and rules, with defaults filled in.

    Raises:
        UnreadableSyntax: an argument is unknown to the operator, has no known value, or reveals hidden state.
    """
    known = {argument.name for argument in operator.signature} | HINTS | {"engine"}
    strange = sorted((views.keys() | arguments.keys()) - known)
    if strange:
        raise UnreadableSyntax(f"the argument {strange[0]} of {operator.name}")
    operands: list[Operand] = []
    params: list[tuple[str, ParamValue]] = []
    for argument in operator.signature:
        if argument.name in _SCALED and argument.name in views:
            operands += _scale_operands(operator, argument.name, views)
        elif argument.name in views:
            operands.append(_make_operand(argument, views[argument.name]))
        else:
            value = _read_parameter(operator, argument, arguments.get(argument.name), data=views.get("data"))
            params += [] if value is None else [(argument.name, value)]
    form = Form(
        operator.name,
        _select_engine(operator, arguments, tuple(params), operands=operands),
        tuple(operands),
        tuple(params),
    )
    _check_effects(operator, form, arguments)
    return form


def list_accesses(
    operator: Operator, form: Form, views: Mapping[str, TensorView], arguments: Mapping[str, Value]
) -> Iterator[Access]:
    """What a call reads and writes, in the order written.

    A tile of MX scales keeps what lies between the rows that are written.
    """
    for name, view in views.items():
        if name in _SCALED:
            yield Access(name, view, writes=operator.signature_by_name[name].kind == "out", reads=True)
            continue
        writes, reads = operator.effect(form, name)
        left_open = (
            writes and operator.name in _STATE_DEPENDENT and _STATE_DEPENDENT[operator.name] not in arguments
        )
        yield Access(name, view, writes=writes, reads=reads or left_open)


def _check_effects(operator: Operator, form: Form, arguments: Mapping[str, Value]) -> None:
    """Refuse effects that another instruction may see although no operand of this one shows them."""
    if not any(item.role in operator.outputs for item in form.operands):
        raise UnreadableSyntax(f"{operator.name}, which writes no tensor")
    stored = "reduce_res" not in operator.arguments_by_name or form.operand("reduce_res") is not None
    idle = form.param("reduce_cmd") == "idle" and not (stored and "reduce_res" in operator.arguments_by_name)
    if operator.state is None or idle:
        return
    _, reads = operator.effect(form, operator.state.name)
    if reads or ("reduce_cmd" in arguments and not stored):
        raise UnreadableSyntax(
            f"{operator.name} with {operator.state.name}, memory that outlives the instruction"
        )


def _select_engine(
    operator: Operator, arguments: Mapping[str, Value], params: Params, *, operands: Sequence[Operand]
) -> str:
    chosen = arguments.get("engine")
    if not isinstance(chosen, LibrarySymbol) or chosen.leaf == "unknown" or operator.engines == ("dma",):
        return operator.default_engine(params, operands)
    if chosen.leaf not in operator.engines:
        raise UnreadableSyntax(f"{operator.name} on the engine {chosen.leaf}")
    return chosen.leaf


def _scale_operands(operator: Operator, name: str, views: Mapping[str, TensorView]) -> list[Operand]:
    """The operands that a tile of MX scales stands for: the rows of each quadrant of what it scales."""
    data, view = views.get(_SCALED[name]), views[name]
    if data is None:
        raise UnreadableSyntax(f"{name} without what it scales")
    quadrants = -(-data.shape[0] // QUADRANT)
    if view.shape[0] < QUADRANT * (quadrants - 1) + SCALE_ROWS:
        raise UnreadableSyntax(f"{name} of {view.shape[0]} partitions")
    parts = [
        index_view(view, (Slice(Affine(QUADRANT * number), SCALE_ROWS),), {}) for number in range(quadrants)
    ]
    return [
        _make_operand(operator.arguments_by_name[role], part)
        for role, part in zip(operator.groups[name], parts, strict=False)
    ]


def _make_operand(argument: Argument, view: TensorView) -> Operand:
    if not argument.is_tensor or (argument.group and argument.group not in _SCALED):
        raise UnreadableSyntax(f"a tensor as {argument.name}")
    tensor = view.tensor
    dims = tuple((axis.step, axis.count) for axis in view.axes)
    start = view.box[0].start
    first = start.const if tensor.is_on_chip and start.is_const else 0
    return Operand(argument.name, dims, tensor.dtype, tensor.buffer, tensor.row_elements, first)


def _read_parameter(
    operator: Operator, argument: Argument, value: Value, *, data: TensorView | None
) -> ParamValue | None:
    if value is None:
        if argument.required:
            raise UnreadableSyntax(f"{operator.name} without {argument.name}")
        return argument.default
    if argument.name in MOVING and isinstance(value, Affine):
        return value.const
    found = None if _holds_tensors(value) else _PARAMETER_READERS.get(argument.kind, _read_nothing)(value)
    if found is None or (argument.kind == "choice" and found not in argument.choices):
        raise UnreadableSyntax(f"the argument {argument.name} of {operator.name}")
    if argument.kind == "axes" and isinstance(found, tuple) and data is not None:
        return tuple(axis + len(data.axes) if axis < 0 else axis for axis in found)
    return found


def _holds_tensors(value: Value) -> bool:
    if isinstance(value, tuple):
        return any(_holds_tensors(item) for item in value)
    return isinstance(value, TensorView | Tensor)


def _read_nothing(value: Value) -> ParamValue | None:
    del value
    return None


def _function_reader(allowed: frozenset[str]) -> Callable[[Value], ParamValue | None]:
    def named(value: Value) -> ParamValue | None:
        name = ALIASES.get(value.leaf, value.leaf) if isinstance(value, LibrarySymbol) else None
        return name if name in allowed else None

    return named


def _read_float(value: Value) -> ParamValue | None:
    if isinstance(value, Affine):
        return float(value.const) if value.is_const else None
    return value if isinstance(value, float) else None


def _read_integer(value: Value) -> ParamValue | None:
    return value.const if isinstance(value, Affine) and value.is_const else None


def _read_integers(value: Value) -> ParamValue | None:
    """An integer or a tuple of them; pairs, as in patterns, are flattened."""
    items = value if isinstance(value, tuple) else (value,)
    flat = [part for item in items for part in (item if isinstance(item, tuple) else (item,))]
    found = tuple(item.const for item in flat if isinstance(item, Affine) and item.is_const)
    return found if found and len(found) == len(flat) else None


def _read_boolean(value: Value) -> ParamValue | None:
    return value if isinstance(value, bool) else None


def _read_choice(value: Value) -> ParamValue | None:
    return value.leaf if isinstance(value, LibrarySymbol) else value if isinstance(value, str) else None


_PARAMETER_READERS: dict[str, Callable[[Value], ParamValue | None]] = {
    "alu": _function_reader(ALU),
    "activation": _function_reader(ACTIVATIONS),
    "reduce": _function_reader(REDUCE),
    "float": _read_float,
    "tensor_or_float": _read_float,
    "int": _read_integer,
    "tensor_or_int": _read_integer,
    "axes": _read_integers,
    "ints": _read_integers,
    "pattern": _read_integers,
    "bool": _read_boolean,
    "choice": _read_choice,
}
