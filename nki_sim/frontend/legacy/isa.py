"""The legacy `nki.isa`: the operator table, called as SDK 2.20 to 2.26 document it.

Instructions return the tile they fill. Its shape and type follow from the operands unless `RESULTS` says
otherwise. They take `mask=`, `dtype=` and `engine=`, and `op=` as functions of the language or of NumPy. The
few calls with other differences are in `isa_special`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nki_sim.frontend.argument_values import (
    LanguageFunction,
    dge_mode,
    engine,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from nki_sim.frontend.legacy.call_arguments import function_name, mask_result, to_operand_value
from nki_sim.frontend.legacy.isa_special import SPECIAL
from nki_sim.frontend.legacy.tiles import mask_boxes
from nki_sim.frontend.lowering.elementwise import op_value
from nki_sim.frontend.lowering.emit import (
    broadcast_tiles,
    broadcast_to_shape,
    copy_tile,
    declare_tile,
    is_column,
    issue_instruction,
)
from nki_sim.frontend.lowering.promotion import promote_types
from nki_sim.frontend.namespace import TRN3, Namespace
from nki_sim.frontend.recorder import current_recorder
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.functions import BITWISE
from nki_sim.operators import OPERATORS, V4_INSTRUCTIONS, Operator

__all__ = [
    "dge_mode", "dma_engine", "engine", "fp32", "get_nc_version", "gpsimd_engine", "nc_version", "oob_mode",
    "reduce_cmd", "scalar_engine", "tensor_copy_dynamic_dst", "tensor_copy_dynamic_src", "tensor_engine",
    "unknown_engine", "vector_engine",
]  # fmt: skip

tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine, dma_engine = engine.gpsimd, engine.unknown, engine.dma

Values = dict[str, Any]
ResultType = tuple[Sequence[int], Any]
"""Shape and type of a returned tile."""

# Positional parameters where they differ from the table's without `dst`.
ORDER: dict[str, tuple[str, ...]] = {
    "nc_stream_shuffle": ("src", "dst", "shuffle_mask"),
    "dma_copy": ("src", "dst"),
    "memset": ("shape", "value", "dtype"),
    "iota": ("expr", "dtype"),
    "affine_select": ("pred", "on_true_tile", "on_false_value"),
}

# Hints to the vendor's compiler, and arguments that name the tile.
_HINTS = frozenset({"name", "buffer", "dge_mode"})
_FUNCTIONS = frozenset({"alu", "activation", "reduce", "choice"})


def _lead_result(given: Values) -> ResultType:
    lead = _lead_tile(given)
    return lead.shape, lead.dtype


def _result_of_width(given: Values, count: int) -> ResultType:
    """A result with `count` elements in each partition of the first operand."""
    lead = _lead_tile(given)
    return (lead.shape[0], count), lead.dtype


def _gather_result(given: Values) -> ResultType:
    """A result with what 16 indices of each element of `index` gather."""
    source, index, width = given["src_buffer"], given["index"], given.get("num_elem_per_idx", 1)
    valid = given.get("num_valid_indices")
    whole = index._size // index.shape[0] * 16
    places = (*index.shape[1:], 16) if valid in {None, whole} else (valid,)
    return (source.shape[0], *places, width), source.dtype


def _promoted_result(given: Values) -> ResultType:
    names = ("data1", "data2") if "data2" in given else ("data0", "data1")
    left, right = (given[name] for name in names)
    return left.shape, promote_types(left, right)


RESULTS: dict[str, Callable[[Values], ResultType]] = {
    "tensor_tensor": _promoted_result,
    "tensor_tensor_scan": _promoted_result,
    "bn_stats": lambda given: _result_of_width(given, 6),
    "bn_aggr": lambda given: _result_of_width(given, 2),
    "max8": lambda given: _result_of_width(given, 8),
    "nc_find_index8": lambda given: (_result_of_width(given, 8)[0], "uint32"),
    "local_gather": _gather_result,
    "sequence_bounds": lambda given: ((1, 2, _lead_tile(given)._size), _lead_tile(given).dtype),
    "tensor_partition_reduce": lambda given: ((1, *_lead_tile(given).shape[1:]), _lead_tile(given).dtype),
}

# Operands that a mask clips along the partitions only, because they have no axis of the data.
_ROWS = frozenset({"vals", "dst_idx"})


def alu(op: Any) -> LanguageFunction:
    """Return a function of the language or of NumPy in the form that instructions take."""
    return op_value(function_name(op))


def _lead_tile(given: Values) -> Tensor:
    """The operand whose axes the mask is over: the first tile."""
    tiles = [value for value in given.values() if isinstance(value, Tensor)]
    if not tiles:
        fail("missing_argument", "the instruction is given no tile")
    return tiles[0]


def _build_instruction(operator: Operator) -> Callable[..., Any]:
    names = ORDER.get(operator.name) or tuple(
        argument.name for argument in operator.signature if argument.name != "dst"
    )
    kinds = {argument.name: argument.kind for argument in operator.signature}
    special = SPECIAL.get(operator.name)

    def call(*args: Any, mask: Any = None, dtype: Any = None, engine: Any = None, **given: Any) -> Any:
        given = _bind_positional(operator.name, names, args, given)
        if special is not None:
            return special(given, mask=mask, dtype=dtype, engine=engine)
        values = {
            name: alu(value) if kinds.get(name) in _FUNCTIONS else to_operand_value(value)
            for name, value in given.items()
            if value is not None and name in kinds
        }
        _refuse_unknown(operator, given)
        _match_call(operator, values)
        return _issue_masked(operator, values, mask, dtype, engine)

    call.__name__ = call.__qualname__ = operator.name
    call.__doc__ = operator.doc
    return call


def _bind_positional(name: str, names: Sequence[str], args: Sequence[Any], given: Values) -> Values:
    if len(args) > len(names):
        fail("too_many_arguments", f"nisa.{name} takes {len(names)} positional arguments, not {len(args)}")
    for key, value in zip(names, args, strict=False):
        if key in given:
            fail("argument_twice", f"nisa.{name}: {key} given twice")
        given[key] = value
    return given


def _refuse_unknown(operator: Operator, given: Values) -> None:
    for name in given.keys() - operator.arguments_by_name.keys() - _HINTS:
        if given[name] not in {None, (), oob_mode.error}:
            fail("unsupported_argument", f"not supported: nisa.{operator.name}({name}={given[name]!r})")


def _match_call(operator: Operator, values: Values) -> None:
    """Accept what this namespace does: columns beside tiles, and `reverse1` without a second function."""
    if operator.name == "tensor_tensor":
        _broadcast_columns(values)
    if "op1" not in values and "op1" in operator.arguments_by_name:
        values.pop("reverse1", None)


def _broadcast_columns(values: Values) -> None:
    """Repeat a column [P, 1] along the free axes of the other operand."""
    tiles = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    pair = {name: tiles[name] for name in ("data1", "data2") if name in tiles}
    if len(pair) < 2:
        return
    shape, matched = broadcast_tiles(*pair.values(), strict=False)
    for (name, tile), view in zip(pair.items(), matched, strict=True):
        if is_column(tile) and tile.shape[0] == shape[0] and view.shape != shape:
            values[name] = broadcast_to_shape(view, shape)


def _issue_masked(operator: Operator, given: Values, mask: Any, dtype: Any, runs_on: Any) -> Any:
    """Issue the instruction on what the mask leaves; return its tile unless the kernel named one."""
    named = given.pop("dst", None)
    # In the order of the table, which begins with the data.
    given = {item.name: given[item.name] for item in operator.signature if item.name in given}
    lead = _lead_tile({name: given[name] for name in given if operator.arguments_by_name[name].kind != "out"})
    shape, default = RESULTS.get(operator.name, _lead_result)(given)
    result = declare_tile(shape, dtype or default) if named is None else named
    boxes = mask_boxes(mask, lead.shape)
    rows = _ROWS if operator.name not in RESULTS or result.shape == lead.shape else _ROWS | {"dst"}
    _widen_scalars(operator, given)
    issue_instruction(operator.name, boxes, rows=rows, **{**given, "dst": result, "engine": runs_on})
    return mask_result(result, boxes, lead.shape) if named is None else None


# Columns of scalars, which this namespace takes in any type; engines compute with them in float32.
_SCALARS = ("bias", "operand0", "operand1", "initial", "prob")
_BIAS = frozenset({"float32", "float16", "bfloat16"})


def _widen_scalars(operator: Operator, given: Values) -> None:
    if any(str(getattr(given.get(name), "_name", "")) in BITWISE for name in ("op0", "op1")):
        return
    bias = given.get("bias")
    if isinstance(bias, Tensor) and bias._storage.dtype not in _BIAS:
        fail(
            "activation_bias_invalid_type",
            f"nisa.{operator.name}: bias ({bias.name}) is {bias._storage.dtype}, one of {sorted(_BIAS)} goes",
            "make the bias with dtype=nl.float32",
        )  # fmt: skip
    for name in _SCALARS:
        value = given.get(name)
        argument = operator.arguments_by_name.get(name)
        either = argument is not None and argument.kind == "tensor_or_float"
        if either and isinstance(value, Tensor) and value._storage.dtype != "float32":
            given[name] = copy_tile(value, "float32")


_INSTRUCTIONS = {
    name: _build_instruction(operator)
    for name, operator in OPERATORS.items()
    if not operator.internal and name not in V4_INSTRUCTIONS
}


def tensor_copy_dynamic_src(src: Any, **options: Any) -> Any:
    """Copy a tile from an address that depends on data."""
    return _INSTRUCTIONS["tensor_copy"](src, **options)


def tensor_copy_dynamic_dst(*, dst: Any, src: Any, **options: Any) -> None:
    """Copy into a tile at an address that depends on data."""
    _INSTRUCTIONS["tensor_copy"](src, dst=dst, **options)


def get_nc_version() -> nc_version:
    """Return the generation of the target being traced; generations compare by age."""
    return nc_version(current_recorder().target.generation)


class fp32:  # noqa: N801
    """`nki.isa.fp32`: the smallest value of float32."""

    min = -3.4028234663852886e38


globals().update(_INSTRUCTIONS)
__all__ += list(_INSTRUCTIONS)

_namespace = Namespace(
    "nisa",
    __all__,
    {
        **dict.fromkeys(V4_INSTRUCTIONS, TRN3),
        "builtin_custom_op": "use the instructions that nki-sim ops lists",
    },
)


def __getattr__(name: str) -> Any:
    return _namespace.refuse_name(name)
