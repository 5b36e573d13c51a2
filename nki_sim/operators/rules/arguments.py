"""The hardware's rules on arguments: which function runs on which engine, in which types, and with what else.

`shapes` holds the rules on shapes and places.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import frexp, log2

from nki_sim.dtypes import DTYPES, PACKED_DTYPES, TRN3_DTYPES, V4, integer_limits
from nki_sim.forms import Form, Operand, ParamValue
from nki_sim.functions import ALU_UNARY, BITWISE, REDUCE, V4_ALU
from nki_sim.operators.rules.shapes import Breach, is_per_partition
from nki_sim.targets import Target

_OPS = ("op", "op0", "op1")


def scalar_engine_copy(form: Form, target: Target) -> Iterator[Breach]:
    """Some generations copy on ScalarE only through `activation`."""
    if form.engine == "scalar" and not target.scalar_tensor_copy:
        yield Breach(
            "engine", f"tensor_copy does not run on the scalar engine of {target.name}", "dst",
            "vector|gpsimd", "scalar", "use nisa.activation(op=nl.copy)",
        )  # fmt: skip


# The tensor_scalar operators of the engines other than VectorE, which has all but one.
_SCALAR_PAIRS = frozenset({("multiply", None), ("add", None), ("multiply", "add")})
_GPSIMD_OPS = frozenset({"rsqrt", "add", "multiply", "power"})


def tensor_scalar_engine(form: Form, target: Target) -> Iterator[Breach]:
    """VectorE, and ScalarE from v4 on: all but rsqrt; ScalarE before: multiply, add, both; GpSimd: rsqrt."""
    ops = (form.param("op0"), form.param("op1"))
    given = {str(op) for op in ops if op}
    if form.engine == "scalar" and target.generation >= V4:
        allowed, wanted = "rsqrt" not in given, "any but rsqrt"
    elif form.engine == "scalar":
        plain = not (form.param("reverse0") or form.param("reverse1"))
        allowed = target.scalar_tensor_scalar and plain and ops in _SCALAR_PAIRS
        wanted = "multiply|add|multiply+add"
    elif form.engine == "gpsimd":
        allowed, wanted = "rsqrt" in given and given <= _GPSIMD_OPS, "rsqrt, with another function or alone"
    else:
        allowed, wanted = "rsqrt" not in given, "any but rsqrt"
    if not allowed:
        found = "+".join(str(op) for op in ops if op)
        other = "let GpSimd or nisa.activation compute rsqrt"
        hint = other if "rsqrt" in given else "use the vector engine"
        yield Breach(
            "engine", f"tensor_scalar({found}) does not run on the {form.engine} engine of {target.name}",
            "dst", wanted, found, hint,
        )  # fmt: skip


def activation_operands(form: Form, target: Target) -> Iterator[Breach]:
    """A bias without a tile, or for reciprocal, needs NeuronCore-v3; activations reduce by adding."""
    if form.param("bias") is not None and not target.activation_scalar_bias:
        yield Breach(
            "activation_bias_invalid_type", f"bias is a scalar, {target.name} takes a [P, 1] tile", "bias",
            "tile", "scalar", "memset a [P, 1] tile and pass it",
        )  # fmt: skip
    if form.param("op") == "reciprocal" and form.operand("bias") and not target.activation_scalar_bias:
        yield Breach(
            "activation_bias", f"reciprocal takes no bias on {target.name}", "bias", "none", "tile",
            "add the bias before, with nisa.tensor_scalar",
        )  # fmt: skip
    if form.param("reduce_op", "add") != "add":
        yield Breach(
            "reduce_op", f"activation reduces with add, not {form.param('reduce_op')}", "reduce_res", "add",
            str(form.param("reduce_op")), "use nisa.tensor_reduce",
        )  # fmt: skip


# Arguments that need another one; given alone they are an error, never ignored.
_OPTIONAL_OPERANDS = frozenset({"tensor_scalar", "tensor_scalar_reduce"})
_NEEDS = (("operand1", "op1"), ("reverse1", "op1"), ("reduce_res_negate", "reduce_res"))


def argument_pairs(form: Form, target: Target) -> Iterator[Breach]:
    """Arguments that belong together must be given together."""
    del target
    given = {item.role for item in form.operands} | {
        name for name, value in form.params if value is not False and not _is_neutral(form, name, value)
    }
    wanted = [*_NEEDS, *_command_pairs(form)]
    if form.op in _OPTIONAL_OPERANDS:
        wanted += [(op, f"operand{op[2]}") for op in _OPS[1:] if form.param(op) not in ALU_UNARY]
    for name, other in wanted:
        if name in given and other not in given:
            yield Breach(
                "argument_pair", f"{name} is given without {other}", name, other, "absent",
                f"give {other} too, or leave {name} out",
            )  # fmt: skip


def _is_neutral(form: Form, name: str, value: ParamValue) -> bool:
    """Whether an argument has the value that stands for none: `exponential` documents 0.0 as such."""
    loads = form.param("reduce_cmd") == "load_reduce"
    return form.op == "exponential" and name == "reduce_init" and value == 0.0 and not loads


def _command_pairs(form: Form) -> list[tuple[str, str]]:
    """A reduce operator needs a command that reduces, and a first value is what load_reduce loads."""
    idle = form.param("reduce_cmd") == "idle" and form.operand("reduce_res") is None
    start = "imm1" if form.op == "tensor_scalar_cumulative" else "reduce_init"
    loads = form.param("reduce_cmd") == "load_reduce"
    return [
        *([("reduce_op", "a reduce_cmd that reduces")] if idle else []),
        (("reduce_cmd", start) if loads else (start, "reduce_cmd=load_reduce")),
    ]


def unary_ops(form: Form, target: Target) -> Iterator[Breach]:
    """One-operand operators need an optional second operand that is left out or 0, and cannot be reversed."""
    del target
    for name in _OPS:
        op = form.param(name)
        if op not in ALU_UNARY or form.op.startswith("activation"):
            continue
        other = f"operand{name[2:]}"
        value = form.operand(other) or form.param(other, 0.0) or form.param(f"reverse{name[2:]}")
        if form.op not in _OPTIONAL_OPERANDS or value:
            yield Breach(
                "op", f"{name}={op} has one operand, {form.op} gives it two", name, "one operand", str(op),
                f"leave {other} out, in nisa.tensor_scalar or nisa.tensor_scalar_reduce",
            )  # fmt: skip


# Instructions that take bitwise operators, besides reductions across partitions.
_BITWISE_HOMES = frozenset({"tensor_tensor", "tensor_scalar", "tensor_reduce", "tensor_partition_reduce"})


def bitwise_ops(form: Form, target: Target) -> Iterator[Breach]:
    """Bitwise operators take only integers, run only on VectorE, and do not mix with arithmetic."""
    del target
    ops = [str(form.param(name)) for name in _OPS if form.param(name)]
    found = [op for op in ops if op in BITWISE]
    if not found:
        return
    if form.op not in _BITWISE_HOMES or len(found) != len(ops) or form.param("negate"):
        yield Breach(
            "op", f"{'+'.join(ops)} in {form.op}: bitwise operators do not mix with arithmetic", "dst",
            "|".join(sorted(_BITWISE_HOMES)), form.op, "use two instructions",
        )  # fmt: skip
    if form.engine != "vector" and form.op != "tensor_partition_reduce":
        yield Breach(
            "engine", f"{found[0]} does not run on the {form.engine} engine", "dst", "vector", form.engine,
            "bitwise operators run on the vector engine",
        )  # fmt: skip
    for item in form.tiles:
        if DTYPES[item.dtype].kind == "float":
            yield Breach(
                "bitvec_dtype", f"{item.role} is {item.dtype}, {found[0]} takes bit patterns of integers",
                item.role, "integer", item.dtype, "declare the tile with an integer type, or view it as one",
            )  # fmt: skip
    for name in ("operand0", "operand1"):
        value = form.param(name)
        if isinstance(value, float) and not value.is_integer():
            yield Breach(
                "bitvec_dtype", f"{name} is {value!r}, {found[0]} takes integers", name, "integer",
                repr(value), "pass an integer",
            )  # fmt: skip


_SUMS = frozenset({"add", "multiply", "maximum", "minimum"})
_REDUCTIONS = {
    "tensor_scalar_reduce": ("reduce_op", _SUMS),
    "tensor_scalar_cumulative": ("op1", _SUMS | {"subtract"}),
    "tensor_reduce": ("op", REDUCE - {"average"}),
    "tensor_partition_reduce": (
        "op", frozenset({"add", "average", "maximum", "bitwise_or", "bitwise_and", "bitwise_xor"}),
    ),
    "dma_compute": ("reduce_op", frozenset({"add"})),
}  # fmt: skip


def reduce_ops(form: Form, target: Target) -> Iterator[Breach]:
    """Each instruction has its own set of reduce operators."""
    del target
    name, allowed = _REDUCTIONS[form.op]
    if form.param(name) not in allowed:
        yield Breach(
            "reduce_op", f"{form.op} does not reduce with {form.param(name)}", "dst",
            "|".join(sorted(allowed)), str(form.param(name)), "use another instruction for that reduction",
        )  # fmt: skip


def not_reversed(form: Form, target: Target) -> Iterator[Breach]:
    """The documents say that the instruction does not support `reverse0` yet."""
    del target
    if form.param("reverse0"):
        yield Breach(
            "unsupported_argument", f"{form.op} does not turn its operands round", "reverse0", "False",
            "True", "use nisa.tensor_scalar with reverse0=True, and reduce its result",
        )  # fmt: skip


_SCALAR_CODES = {"bias": "activation_bias_invalid_type", "scale": "activation_scale_invalid_type"}
_SCALARS = frozenset({
    "bias", "scale", "operand0", "operand1", "imm0", "imm1", "reduce_init", "max_value", "min", "max",
})  # fmt: skip
_ANY_SCALARS = frozenset({"scalar_tensor_tensor", "activate2"})


def scalar_dtypes(form: Form, target: Target) -> Iterator[Breach]:
    """Tiles of per-partition scalars are float32, as engines compute; a bias may have any type but tfloat32.

    Beside a bitwise operator they are integers, which `bitwise_ops` checks; scalar_tensor_tensor and
    activate2 are documented to take any type.
    """
    del target
    if form.op in _ANY_SCALARS or {form.param("op0"), form.param("op1")} & BITWISE:
        return
    for item in form.operands:
        if item.role in _SCALARS and is_per_partition(form, item) and not _is_scalar_dtype(item):
            yield Breach(
                _SCALAR_CODES.get(item.role, "operand_invalid_type"),
                f"{item.role} is {item.dtype}, a tile of scalars is float32", item.role, "float32",
                item.dtype, f"copy {item.role} to a float32 tile first",
            )  # fmt: skip


def _is_scalar_dtype(item: Operand) -> bool:
    return item.dtype != "tfloat32" if item.role == "bias" else item.dtype == "float32"


def memset_value(form: Form, target: Target) -> Iterator[Breach]:
    """The value must be exact in the destination's type: nothing is rounded or truncated."""
    del target
    dst, value = form["dst"], form.param("value")
    dtype = DTYPES[dst.dtype]
    if not isinstance(value, float):
        return
    if dtype.name in TRN3_DTYPES and not _fills_exactly(value, dtype.name):
        yield Breach(
            "memset_value", f"{value!r} is not a value of {dtype.name}", "dst", dtype.name, repr(value),
            "fill packed types with 0, and scales with a power of two; .view(nl.uint8) sees their bytes",
        )  # fmt: skip
    if dtype.kind not in {"int", "uint"}:
        return
    least, most = integer_limits(dtype)
    if not (value.is_integer() and least <= value <= most):
        yield Breach(
            "memset_value", f"{value!r} is not a value of {dtype.name}", "dst", dtype.name, repr(value),
            "memset converts nothing: give an integer in range, or a tile of a float type",
        )  # fmt: skip


# Instructions that move elements as they are, and those that read and write MX operands.
_MOVES = frozenset({
    "dma_copy", "dma_transpose", "local_gather", "nc_n_gather", "nc_stream_shuffle", "nc_transpose",
    "sendrecv", "tensor_copy", "tensor_copy_predicated",
})  # fmt: skip
_MX_OPERATORS = frozenset({"memset", "nc_matmul_mx", "quantize_mx"})


def newer_types(form: Form, target: Target) -> Iterator[Breach]:
    """Types of NeuronCore-v4 are moved without a cast, filled, and read and written by MX instructions."""
    found = [item for item in form.tiles if item.dtype in TRN3_DTYPES]
    if not found or (form.op in _MX_OPERATORS and target.generation >= V4):
        return
    item = found[0]
    if target.generation < V4:
        yield Breach(
            "dtype", f"{item.role} is {item.dtype}, which is for NeuronCore-v4 (trn3), not for {target.name}",
            item.role, "NeuronCore-v4", target.name, "use a type that the target has",
        )  # fmt: skip
    moved = {tile.dtype for tile in form.tiles if tile.role not in {"predicate", "indices", "index"}}
    if form.op not in _MOVES or moved != {item.dtype}:
        yield Breach(
            "dtype", f"{item.role} is {item.dtype}, which {form.op} does not cast", item.role,
            "the same type", item.dtype,
            "nisa.quantize_mx makes MX operands; .view(dtype) sees the bytes as another type",
        )  # fmt: skip


# Where VectorE's functions of NeuronCore-v4 are documented; the language's own use of two tiles is inferred.
_V4_HOMES = frozenset({("tensor_scalar", "op0"), ("tensor_scalar_reduce", "op0"), ("tensor_tensor", "op")})


def newer_functions(form: Form, target: Target) -> Iterator[Breach]:
    """VectorE squares, rectifies and compares magnitudes from NeuronCore-v4 on, as a first operator."""
    if form.op.startswith("activat"):
        return
    for name in _OPS:
        op = form.param(name)
        if op not in V4_ALU:
            continue
        if target.generation < V4:
            yield Breach(
                "generation", f"{name}: nl.{op} is for NeuronCore-v4 (trn3), not for {target.name}", name,
                "NeuronCore-v4", target.name, "ScalarE squares and rectifies: nisa.activation",
            )  # fmt: skip
        elif (form.op, name) not in _V4_HOMES or form.engine != "vector":
            yield Breach(
                "op", f"{name}=nl.{op} in {form.op} on the {form.engine} engine", name,
                "op0 of tensor_scalar or tensor_scalar_reduce on the vector engine", str(op),
                "use two instructions",
            )  # fmt: skip


_STAGES = frozenset({
    ("multiply", "add"), ("multiply", "subtract"), ("multiply", "bypass"), ("add", "bypass"),
    ("subtract", "bypass"), ("bypass", "bypass"),
})  # fmt: skip


def activation_stages(form: Form, target: Target) -> Iterator[Breach]:
    """activate2: six pairs of operators before the function, reversed only where there is one."""
    del target
    pair = (str(form.param("op0")), str(form.param("op1")))
    if pair not in _STAGES:
        yield Breach(
            "op", f"op0=nl.{pair[0]} and op1=nl.{pair[1]} do not go together", "op0",
            "multiply with add or subtract; or one of multiply, add, subtract; or none", "+".join(pair),
            "use nisa.tensor_scalar before it",
        )  # fmt: skip
    for number, op in enumerate(pair):
        if op == "bypass" and form.param(f"reverse{number}"):
            yield Breach(
                "argument_pair", f"reverse{number} is given without op{number}", f"reverse{number}",
                f"op{number}", "bypass", f"leave reverse{number} out",
            )  # fmt: skip
    tiles = [item for item in (form.operand("imm0"), form.operand("imm1")) if item is not None]
    if len({item.dtype for item in tiles}) > 1:
        yield Breach(
            "operand_invalid_type", f"imm0 is {tiles[0].dtype}, imm1 is {tiles[1].dtype}", "imm1",
            tiles[0].dtype, tiles[1].dtype, "give both in one type",
        )  # fmt: skip


def activation_engine(form: Form, target: Target) -> Iterator[Breach]:
    """GpSimd applies functions without the registers that sum them up."""
    del target
    sums = form.param("reduce_cmd", "idle") != "idle" or form.operand("reduce_res") is not None
    if form.engine == "gpsimd" and sums:
        yield Breach(
            "engine", f"{form.op} reduces on the scalar engine alone", "dst", "scalar", "gpsimd",
            "leave engine out, or reduce with nisa.tensor_reduce",
        )  # fmt: skip


def narrow_types(form: Form, target: Target) -> Iterator[Breach]:
    """The instruction neither reads in full nor writes 32-bit integers."""
    del target
    for role in ("dst", "src"):
        item = form[role]
        if item.dtype in {"int32", "uint32", "tfloat32"}:
            yield Breach(
                "operand_invalid_type", f"{role} is {item.dtype}, which {form.op} does not take", role,
                "float32, or 8 or 16 bits", item.dtype, "convert with nisa.tensor_copy",
            )  # fmt: skip


def wide_integers(form: Form, target: Target) -> Iterator[Breach]:
    """Engines have no 64-bit integers, except in registers and instructions that move bytes."""
    del target
    for item in form.tiles:
        if item.dtype == "int64" and form.engine not in {"dma", "sync"}:
            yield Breach(
                "dtype", f"{item.role} is int64, which the {form.engine} engine does not know", item.role,
                "int32", "int64", "use int32; nisa.scalar_load reads 64-bit integers from memory",
            )  # fmt: skip


def _fills_exactly(value: float, dtype: str) -> bool:
    """Whether a constant is exact in a type of NeuronCore-v4: 0 in packed ones, a power of two in scales."""
    if dtype in PACKED_DTYPES:
        return value == 0.0
    return value > 0.0 and frexp(value)[0] == 0.5 and abs(log2(value)) <= 127


# VectorE instructions that may raise data to a power; the exponent is one constant per partition.
_POWER = frozenset({
    ("tensor_scalar", "op0"), ("tensor_scalar", "op1"), ("tensor_scalar_reduce", "op0"),
    ("scalar_tensor_tensor", "op0"), ("tensor_scalar_cumulative", "op0"),
})  # fmt: skip


def power_ops(form: Form, target: Target) -> Iterator[Breach]:
    """Data to a constant power on any engine; to the power of data only on GpSimd.

    With data as the exponent every engine could compute exponentials, which only ScalarE does.
    """
    del target
    for name in _OPS:
        constant = (form.op, name) in _POWER and not form.param(f"reverse{name[2:]}")
        if form.param(name) == "power" and not constant and form.engine != "gpsimd":
            yield Breach(
                "engine", f"{name}=power with data as the exponent does not run on the {form.engine} engine",
                "dst", "gpsimd", form.engine, "use nisa.activation(op=nl.exp), or GpSimd",
            )  # fmt: skip
