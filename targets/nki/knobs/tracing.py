"""Traces a workload's function to its graph: the function is called once, on symbols.

Each operator ties the axes of its operands together; tied axes are one dimension. Values are named after the
function's own variables where possible, so that people recognise them in the kernel.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from keyword import iskeyword
from types import FrameType
from typing import Any

from nki_sim import targets
from targets.nki.knobs.errors import WorkloadError
from targets.nki.knobs.graph import Call, Dim, Graph, Value
from targets.nki.knobs.operators import PARTIAL, SCRATCH, Operator, Settings

_TAKEN = frozenset({"nki", "nl", "nisa", "range", PARTIAL, SCRATCH})
_BUFFER = re.compile("^(sbuf|psum|hbm)_")
_PREFIXES = ("sbuf_", "psum_", "i_block_", "i_tile_")
"""Prefixes that kernels use for their own names."""

TYPES = ("float32", "bfloat16", "float16")
"""The types that inputs may have."""

MOST_DIMENSIONS = 5
"""Limit for an input: rows, and a batch of them."""

Specs = Mapping[str, tuple[tuple[int, ...], str]]

NOTHING_TO_DO = frozenset({"NKILoad", "NKIStore", "NKITensorCopy"})
"""Operators that a graph does not record: plans load, store and copy by themselves."""


@dataclass(eq=False, slots=True)
class Axis:
    """An axis of a value, tied to others of the same dimension."""

    size: int
    same: Axis | None = None

    @property
    def root(self) -> Axis:
        return self if self.same is None else self.same.root


@dataclass(eq=False)
class Symbol:
    """A tensor without data: its axes and type, and the call that would compute it.

    The first `lead` axes are those of a batch; operators see only the others.
    """

    axes: tuple[Axis, ...]
    dtype: str
    lead: int = field(default=0, kw_only=True)
    entry: Operator | None = None
    operands: Mapping[str, Symbol] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)

    @property
    def core_axes(self) -> tuple[Axis, ...]:
        """The axes that operators see."""
        return self.axes[self.lead :]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return tuple(axis.size for axis in self.axes)


def record_call(entry: Operator, tensors: Mapping[str, Symbol], settings: Settings) -> Symbol:
    """Return an operator's result on symbols.

    Raises:
        WorkloadError: the shapes or types of the operands do not fit each other.
    """
    if entry.name in NOTHING_TO_DO:
        return tensors["data"]
    bound = _bind_axes(entry, tensors)
    if entry.reduces is not None and entry.reduces not in bound:
        raise WorkloadError(f"{entry.name} reduces rows, and {entry.like} is a column")
    core = tuple(bound[axis] for axis in entry.result if axis in bound)
    lead = _batch_axes(entry, tensors)
    if entry.name == "NKIMatmul" and len({item.dtype == "float32" for item in tensors.values()}) > 1:
        pair = " and ".join(item.dtype for item in tensors.values())
        raise WorkloadError(f"NKIMatmul of {pair}: float32 goes with float32 alone")
    dtype = tensors[entry.like].dtype if len(core) > 1 else "float32"
    return Symbol((*lead, *core), dtype, entry, dict(tensors), dict(settings), lead=len(lead))


def _batch_axes(entry: Operator, tensors: Mapping[str, Symbol]) -> tuple[Axis, ...]:
    """The axes of a batch, tied together; an operand with fewer of them is repeated along the rest."""
    longest = max((item.axes[: item.lead] for item in tensors.values()), key=len)
    for slot, item in tensors.items():
        for one, other in zip(longest, item.axes[: item.lead], strict=False):
            _tie_axes(entry, tensors, "a dimension of the batch", slot=slot, axes=(one.root, other.root))
    return longest


def _tie_axes(
    entry: Operator, tensors: Mapping[str, Symbol], what: str, *, slot: str, axes: tuple[Axis, Axis]
) -> None:
    one, other = axes
    if one.size != other.size:
        shapes = ", ".join(f"{name} is {item.shape}" for name, item in tensors.items())
        raise WorkloadError(f"{entry.name}: {what} is {one.size}, but {other.size} in {slot} ({shapes})")
    if one is not other:
        other.same = one


def _bind_axes(entry: Operator, tensors: Mapping[str, Symbol]) -> dict[str, Axis]:
    """The axes of an entry's letters, tied together; rows that are columns have no second axis."""
    bound: dict[str, Axis] = {}
    for slot, item in tensors.items():
        letters = entry.operands[slot]
        if len(item.core_axes) > len(letters) or (
            len(item.core_axes) < len(letters) and entry.memory == "psum"
        ):
            over = ", ".join(letters)
            raise WorkloadError(f"{entry.name}'s {slot} has shape {item.shape}, and lies over ({over})")
        for letter, axis in zip(letters, item.core_axes, strict=False):
            _tie_axes(
                entry, tensors, letter, slot=slot, axes=(bound.setdefault(letter, axis).root, axis.root)
            )
    if any(len(tensors[s].core_axes) < len(entry.operands[s]) and "F" in bound for s in tensors):
        raise WorkloadError(
            f"{entry.name} takes a column beside rows; use NKITensorScalar for that, NKITensorRow for a row"
        )
    return bound


def trace_workload(
    function: Callable[..., Any], specs: Specs, *, target: str = "trn2", name: str | None = None
) -> Graph:
    """Return the graph of a workload's function on inputs of these shapes and types, in argument order.

    Raises:
        WorkloadError: the function takes other inputs, returns no operator's result, or calls one wrongly.
    """
    check_specs(specs, tuple(signature(function).parameters))
    inputs = {key: input_symbol(*specs[key]) for key in signature(function).parameters}
    result, variables = _call_with_variables(function, inputs)
    if not isinstance(result, Symbol) or result.entry is None:
        raise WorkloadError(f"{function.__name__} returns {result!r}; it ends in the result of an operator")
    names = name_symbols(inputs, result, variables)
    return build_graph(name or function.__name__, target, inputs, result, names)


def build_graph(
    title: str, target: str, inputs: Mapping[str, Symbol], result: Symbol, names: Mapping[Symbol, str]
) -> Graph:
    """Return the graph of the calls recorded on inputs; `names` has all symbols.

    Raises:
        WorkloadError: a name is invalid, an input is not used, or two axes of a tensor are one dimension.
    """
    order = _calls_in_order(result)
    _check_axes(order)
    _check_target(order, target)
    _check_names((*inputs, names[result], title))
    for key, symbol in inputs.items():
        if symbol not in _read_symbols(order):
            raise WorkloadError(f"input {key!r} reaches no result; leave it out")
    symbols = [*inputs.values(), *order]
    spread = _spread_rows(order)
    dims = _make_dims(symbols, target, set(spread))
    named = {axis: dim.name for axis, dim in dims.items()}
    values = tuple(
        Value(
            names[symbol],
            tuple(named[axis.root] for axis in symbol.axes),
            symbol.dtype,
            lead=symbol.lead,
            spread=named[spread[symbol]] if symbol in spread else None,
        )
        for symbol in symbols
    )
    return Graph(
        name=title,
        target=target,
        dims=tuple(dims.values()),
        inputs=tuple(inputs),
        values=values,
        calls=tuple(_make_call(symbol, names) for symbol in order),
        output=names[result],
    )


def input_symbol(shape: tuple[int, ...], dtype: str) -> Symbol:
    """An input of this shape and type; with more than two dimensions the last two are rows of a batch."""
    return Symbol(tuple(Axis(size) for size in shape), dtype, lead=max(0, len(shape) - 2))


def check_specs(specs: Specs, parameters: tuple[str, ...]) -> None:
    """Refuse shapes and types that inputs of these names cannot have.

    Raises:
        WorkloadError: one is not possible; the message names the first.
    """
    if set(specs) != set(parameters):
        raise WorkloadError(
            f"shapes are given for {', '.join(specs)}; the inputs are {', '.join(parameters)}"
        )
    for name, (shape, dtype) in specs.items():
        if dtype not in TYPES:
            raise WorkloadError(f"input {name!r} has the type {dtype!r}; known are {', '.join(TYPES)}")
        if not 1 <= len(shape) <= MOST_DIMENSIONS or min(shape) < 1:
            raise WorkloadError(
                f"input {name!r} has shape {shape}; inputs have one to {MOST_DIMENSIONS} dimensions"
            )


def _check_axes(order: list[Symbol]) -> None:
    """Refuse a tensor with one dimension on two axes; equal lengths are fine, as each is walked alone."""
    for symbol in order:
        for item in (*symbol.operands.values(), symbol):
            if symbol.entry is not None and len({axis.root for axis in item.axes}) < len(item.axes):
                raise WorkloadError(
                    f"{symbol.entry.name} makes both axes of a tensor of shape {item.shape} one dimension; "
                    "give what is used twice as two inputs"
                )


def _check_target(order: list[Symbol], target: str) -> None:
    """Refuse what a target's ScalarE does not accept."""
    for symbol in order:
        bias = symbol.settings.get("bias", 0.0)
        if bias and symbol.entry is not None and not targets.load(target).activation_scalar_bias:
            raise WorkloadError(
                f"{symbol.entry.name}'s bias is {bias}; on {target} it is a column. Add a number with "
                'NKITensorScalar(op0="add") first'
            )


def _check_names(names: tuple[str, ...]) -> None:
    """Check names: the kernel, its arguments and its result are named as in the function."""
    for name in names:
        mine = name in _TAKEN or name.startswith(_PREFIXES)
        if mine or not name.isidentifier() or iskeyword(name) or names.count(name) > 1:
            raise WorkloadError(f"{name!r} cannot be a name in a kernel; choose another identifier")


def _call_with_variables(
    function: Callable[..., Any], inputs: Mapping[str, Symbol]
) -> tuple[Any, dict[str, Any]]:
    """Return a function's result, and its local variables at its return."""
    variables: dict[str, Any] = {}
    before = sys.getprofile()

    def watch(frame: FrameType, event: str, found: object) -> None:
        if event == "return" and frame.f_code is getattr(function, "__code__", None):
            variables.update(frame.f_locals)

    sys.setprofile(watch)
    try:
        result = function(*inputs.values())
    finally:
        sys.setprofile(before)
    return result, variables


def _calls_in_order(result: Symbol) -> list[Symbol]:
    """The calls that the result needs, operands first."""
    found: dict[Symbol, None] = {}

    def visit(symbol: Symbol) -> None:
        if symbol.entry is not None and symbol not in found:
            for item in symbol.operands.values():
                visit(item)
            found[symbol] = None

    visit(result)
    return list(found)


def _read_symbols(order: list[Symbol]) -> set[Symbol]:
    return {item for symbol in order for item in symbol.operands.values()}


def name_symbols(
    inputs: Mapping[str, Symbol], result: Symbol, variables: Mapping[str, Any]
) -> dict[Symbol, str]:
    """The variables' names; a value without one is named after its operator, with a number.

    The result takes its last name, the one that is returned; all others take their first. The prefixes
    `sbuf_` and `psum_` are reserved for the kernel's buffers.
    """
    order = _calls_in_order(result)
    names: dict[Symbol, str] = {symbol: name for name, symbol in inputs.items()}
    taken = set(names.values())
    backwards = [(name, item) for name, item in reversed([*variables.items()]) if item is order[-1]]
    for variable, item in (*backwards, *variables.items()):
        name = _BUFFER.sub("", variable)
        if isinstance(item, Symbol) and name.isidentifier() and name not in taken and item not in names:
            names[item] = name
            taken.add(name)
    for symbol in order:
        if symbol not in names and symbol.entry is not None:
            stem = symbol.entry.name.removeprefix("NKI").lower()
            names[symbol] = next(n for n in (f"{stem}_{i}" for i in range(len(order) + 1)) if n not in taken)
            taken.add(names[symbol])
    return names


def _spread_rows(order: list[Symbol]) -> dict[Symbol, Axis]:
    """Rows that are repeated in every partition, each with the axis of those partitions."""
    found: dict[Symbol, Axis] = {}
    for symbol in order:
        entry = symbol.entry
        assert entry is not None
        for slot in entry.rows:
            row, over = symbol.operands[slot], symbol.operands[entry.like].core_axes[0].root
            if row.entry is not None or len(row.axes) != 1 or found.setdefault(row, over) is not over:
                raise WorkloadError(
                    f"{entry.name}'s {slot} is an input of one dimension, beside rows of one dimension; give "
                    "what is used twice as two inputs"
                )
    for symbol in order:
        assert symbol.entry is not None
        for slot, item in symbol.operands.items():
            if item in found and slot not in symbol.entry.rows:
                raise WorkloadError(f"{symbol.entry.name}'s {slot} is a row elsewhere; give it as two inputs")
    return found


def _make_dims(symbols: list[Symbol], target: str, rows: set[Symbol]) -> dict[Axis, Dim]:
    limits = targets.load(target)
    wide = limits.psum_bank_bytes // 4
    found: dict[Axis, None] = {axis.root: None for symbol in symbols for axis in symbol.axes}
    most = dict.fromkeys(found, wide)
    most |= {symbol.core_axes[0].root: limits.partitions for symbol in symbols if symbol not in rows}
    most |= {axis.root: 1 for symbol in symbols for axis in symbol.axes[: symbol.lead]}
    return {
        axis: Dim(f"d{number}", axis.size, _largest_divisor(axis.size, most[axis]))
        for number, axis in enumerate(found)
    }


def _largest_divisor(size: int, limit: int) -> int:
    """The largest divisor of a size up to a limit."""
    return next(tile for tile in range(min(size, limit), 0, -1) if size % tile == 0)


def _make_call(symbol: Symbol, names: Mapping[Symbol, str]) -> Call:
    assert symbol.entry is not None
    return Call(
        operator=symbol.entry.name,
        operands=tuple((slot, names[item]) for slot, item in symbol.operands.items()),
        settings=tuple(sorted(symbol.settings.items())),
        result=names[symbol],
    )
