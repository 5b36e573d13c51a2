"""Instructions as the simulator's operator list describes them: what an operand or argument of a call means.

A call that the list does not describe, or that leaves something behind which no operand shows, is
`Unreadable`: rewrites then leave it where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from nki_sim.forms import Form, Operand, Params, ParamValue
from nki_sim.functions import ACTIVATIONS, ALIASES, ALU, REDUCE
from nki_sim.operators import OPERATORS, Argument, Operator
from targets.nki.rewrites.model import Access
from targets.nki.rewrites.values import Affine, Symbol, Tensor, Unreadable, Value, View

HINTS = frozenset({"name", "priority", "dge_mode", "keepdims", "dtype"})
"""Accepted by every instruction, without effect on what it computes."""

_OPEN = {"nc_matmul": "accumulate"}
"""Arguments that, left out, depend on what ran before."""


def operator_of(called: Value) -> Operator | None:
    """The operator that a function of `nki.isa` is; None for any other value."""
    if not isinstance(called, Symbol) or called.path != f"nisa.{called.leaf}":
        return None
    found = OPERATORS.get(called.leaf)
    return None if found is None or found.internal else found


def form_of(operator: Operator, views: Mapping[str, View], arguments: Mapping[str, Value]) -> Form:
    """A call as cost formulas and rules want it, with what was left out.

    Raises:
        Unreadable: an argument is none of the operator's, or not known, or tells of hidden state.
    """
    known = {argument.name for argument in operator.signature} | HINTS | {"engine"}
    strange = sorted((views.keys() | arguments.keys()) - known)
    if strange:
        raise Unreadable(f"the argument {strange[0]} of {operator.name}")
    operands: list[Operand] = []
    params: list[tuple[str, ParamValue]] = []
    for argument in operator.signature:
        if argument.name in views:
            operands.append(_operand(argument, views[argument.name]))
        else:
            value = _constant(operator, argument, arguments.get(argument.name), views.get("data"))
            params += [] if value is None else [(argument.name, value)]
    form = Form(
        operator.name, _engine(operator, arguments, tuple(params), operands), tuple(operands), tuple(params)
    )
    _check_effects(operator, form, arguments)
    return form


def accesses_of(
    operator: Operator, form: Form, views: Mapping[str, View], arguments: Mapping[str, Value]
) -> Iterator[Access]:
    """What a call reads and writes, in the order written."""
    for name, view in views.items():
        writes, reads = operator.effect(form, name)
        left_open = writes and operator.name in _OPEN and _OPEN[operator.name] not in arguments
        yield Access(name, view, writes=writes, reads=reads or left_open)


def _check_effects(operator: Operator, form: Form, arguments: Mapping[str, Value]) -> None:
    """Refuse what another instruction may see although no operand of this one shows it."""
    if not any(item.role in operator.outputs for item in form.operands):
        raise Unreadable(f"{operator.name}, which writes no tensor")
    stored = "reduce_res" not in operator.by_name or form.operand("reduce_res") is not None
    idle = form.param("reduce_cmd") == "idle" and not (stored and "reduce_res" in operator.by_name)
    if operator.state is None or idle:
        return
    _, reads = operator.effect(form, operator.state.name)
    if reads or ("reduce_cmd" in arguments and not stored):
        raise Unreadable(f"{operator.name} with {operator.state.name}, memory that outlives the instruction")


def _engine(
    operator: Operator, arguments: Mapping[str, Value], params: Params, operands: Sequence[Operand]
) -> str:
    chosen = arguments.get("engine")
    if not isinstance(chosen, Symbol) or chosen.leaf == "unknown" or operator.engines == ("dma",):
        return operator.default_engine(params, operands)
    if chosen.leaf not in operator.engines:
        raise Unreadable(f"{operator.name} on the engine {chosen.leaf}")
    return chosen.leaf


def _operand(argument: Argument, view: View) -> Operand:
    if not argument.is_tensor or argument.group:
        raise Unreadable(f"a tensor as {argument.name}")
    tensor = view.tensor
    dims = tuple((axis.step, axis.count) for axis in view.axes)
    start = view.box[0].start
    first = start.const if tensor.on_chip and start.is_const else 0
    return Operand(argument.name, dims, tensor.dtype, tensor.buffer, tensor.row, first)


def _constant(operator: Operator, argument: Argument, value: Value, data: View | None) -> ParamValue | None:
    if value is None:
        if argument.required:
            raise Unreadable(f"{operator.name} without {argument.name}")
        return argument.default
    found = None if _holds_tensors(value) else _KINDS.get(argument.kind, _nothing)(value)
    if found is None or (argument.kind == "choice" and found not in argument.choices):
        raise Unreadable(f"the argument {argument.name} of {operator.name}")
    if argument.kind == "axes" and isinstance(found, tuple) and data is not None:
        return tuple(axis + len(data.axes) if axis < 0 else axis for axis in found)
    return found


def _holds_tensors(value: Value) -> bool:
    if isinstance(value, tuple):
        return any(_holds_tensors(item) for item in value)
    return isinstance(value, View | Tensor)


def _nothing(value: Value) -> ParamValue | None:
    del value
    return None


def _function(allowed: frozenset[str]) -> Callable[[Value], ParamValue | None]:
    def named(value: Value) -> ParamValue | None:
        name = ALIASES.get(value.leaf, value.leaf) if isinstance(value, Symbol) else None
        return name if name in allowed else None

    return named


def _number(value: Value) -> ParamValue | None:
    if isinstance(value, Affine):
        return float(value.const) if value.is_const else None
    return value if isinstance(value, float) else None


def _integer(value: Value) -> ParamValue | None:
    return value.const if isinstance(value, Affine) and value.is_const else None


def _integers(value: Value) -> ParamValue | None:
    """An integer or a tuple of them; pairs, as patterns have them, in one row."""
    items = value if isinstance(value, tuple) else (value,)
    flat = [part for item in items for part in (item if isinstance(item, tuple) else (item,))]
    found = tuple(item.const for item in flat if isinstance(item, Affine) and item.is_const)
    return found if found and len(found) == len(flat) else None


def _boolean(value: Value) -> ParamValue | None:
    return value if isinstance(value, bool) else None


def _choice(value: Value) -> ParamValue | None:
    return value.leaf if isinstance(value, Symbol) else value if isinstance(value, str) else None


_KINDS: dict[str, Callable[[Value], ParamValue | None]] = {
    "alu": _function(ALU),
    "activation": _function(ACTIVATIONS),
    "reduce": _function(REDUCE),
    "float": _number,
    "tensor_or_float": _number,
    "int": _integer,
    "tensor_or_int": _integer,
    "axes": _integers,
    "ints": _integers,
    "pattern": _integers,
    "bool": _boolean,
    "choice": _choice,
}
