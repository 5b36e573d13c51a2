"""Element-wise instructions, reductions and scans."""

from __future__ import annotations

from collections.abc import Sequence

from nki_sim.dtypes import V4
from nki_sim.forms import Operand, Params
from nki_sim.functions import INTEGER_ALU
from nki_sim.operators import costs
from nki_sim.operators.model import (
    SBUF,
    Argument,
    Operator,
    choice,
    flag,
    function,
    out,
    scalar,
    tensor,
)
from nki_sim.operators.rules import arguments, search
from nki_sim.operators.rules import shapes as rules
from nki_sim.operators.state import fits_state, reduce_regs

_WIDE = frozenset({"int32", "uint32"})
_ALU = (arguments.unary_ops, arguments.bitwise_ops)


def _exact_engine(params: Params, operands: Sequence[Operand]) -> str | None:
    """GpSimd for powers of tensors and for 32-bit integers that it can reach, because it is exact there."""
    op = dict(params).get("op")
    exact = op in INTEGER_ALU and operands and all(o.dtype in _WIDE and o.buffer == "sbuf" for o in operands)
    return "gpsimd" if exact or op == "power" else None


def _rsqrt_engine(params: Params, operands: Sequence[Operand]) -> str | None:
    del operands
    return "gpsimd" if {("op0", "rsqrt"), ("op1", "rsqrt")} & set(params) else None


ENTRIES = (
    Operator(
        "tensor_tensor", ("vector", "gpsimd"), (out(), tensor("data1"), tensor("data2"), function("op")),
        costs.tensor_tensor, (rules.same_shape, rules.not_both_psum("data1", "data2"), *_ALU),
        "data1 op data2", prefers=_exact_engine,
    ),
    Operator(
        "tensor_scalar", ("vector", "scalar", "gpsimd"),
        (
            out(), tensor("data"), function("op0"), scalar("operand0", required=False), flag("reverse0"),
            function("op1", required=False), scalar("operand1", required=False), flag("reverse1"),
        ),
        costs.copy_like, (rules.same_shape, arguments.argument_pairs, arguments.tensor_scalar_engine, *_ALU),
        "(data op0 operand0) op1 operand1", prefers=_rsqrt_engine,
    ),
    Operator(
        "scalar_tensor_tensor", ("vector",),
        (
            out(), tensor("data"), function("op0"), scalar("operand0"), function("op1"), tensor("operand1"),
            flag("reverse0"), flag("reverse1"),
        ),
        costs.scalar_tensor_tensor,
        (rules.same_shape, rules.not_both_psum("data", "operand1"), *_ALU),
        "(data op0 operand0) op1 operand1, operand1 a tensor",
    ),
    Operator(
        "tensor_scalar_reduce", ("vector",),
        (
            out(), tensor("data"), function("op0"), scalar("operand0", required=False),
            function("reduce_op", "reduce"), out("reduce_res", required=False), flag("reverse0"),
            choice("reduce_cmd", "reset_reduce", "reduce", "load_reduce", default="reset_reduce"),
            scalar("reduce_init", required=False), flag("reduce_res_negate"), reduce_regs(),
        ),
        costs.tensor_scalar_reduce,
        (
            rules.same_shape, arguments.argument_pairs, arguments.reduce_ops, arguments.not_reversed,
            search.max_rank("data", 4), search.max_rank("dst", 4), fits_state, *_ALU,
        ),
        "tensor_scalar and its sum (or max...) over the free axis",
    ),
    Operator(
        "tensor_scalar_cumulative", ("vector",),
        (
            out(), tensor("src"), function("op0"), function("op1"), scalar("imm0"),
            scalar("imm1", required=False),
            choice("reduce_cmd", "reset_reduce", "reduce", "load_reduce", default="reset_reduce"),
            reduce_regs(),
        ),
        costs.scan,
        (
            rules.same_shape, arguments.argument_pairs, arguments.reduce_ops, arguments.narrow_types,
            fits_state, *_ALU,
        ),
        "reg = (src op0 imm0) op1 reg along the free axis, every reg kept",
    ),
    Operator(
        "tensor_reduce", ("vector",),
        (out(), function("op", "reduce"), tensor("data"), Argument("axis", "axes"), flag("negate")),
        costs.tensor_reduce, (rules.reduce_axes, arguments.reduce_ops, arguments.bitwise_ops),
        "reduce the innermost free axes",
    ),
    Operator(
        "tensor_partition_reduce", ("gpsimd",),
        (out(buffers=SBUF), function("op", "reduce"), tensor("data", SBUF)), costs.partition_reduce,
        (rules.one_row, arguments.reduce_ops, arguments.bitwise_ops), "reduce over the partitions into one",
    ),
    Operator(
        "tensor_tensor_scan", ("vector",),
        (
            out(), tensor("data0"), tensor("data1"), scalar("initial"), function("op0"), function("op1"),
            flag("reverse0"), flag("reverse1"),
        ),
        costs.scan, (rules.same_shape, rules.not_both_psum("data0", "data1"), *_ALU),
        "res[i] = (data0[i] op0 res[i-1]) op1 data1[i]",
    ),
    Operator(
        "activation", ("scalar",),
        (
            out(), function("op", "activation"), tensor("data"), scalar("bias", required=False),
            scalar("scale", 1.0, required=False), function("reduce_op", "reduce", required=False),
            out("reduce_res", required=False),
            choice("reduce_cmd", "idle", "reset", "reduce", "reset_reduce", default="idle"), reduce_regs(),
        ),
        costs.activation,
        (
            arguments.activation_engine, rules.same_shape, arguments.argument_pairs,
            arguments.activation_operands, fits_state,
        ),
        "op(data * scale + bias), optionally with its sum", v4_engines=("gpsimd",),
    ),
    Operator(
        "activate2", ("scalar",),
        (
            out(), function("op", "activation2"), tensor("data"), scalar("imm0"), scalar("imm1"),
            choice("op0", "multiply", "add", "subtract", "bypass", required=True),
            choice("op1", "add", "subtract", "bypass", required=True),
            scalar("relu_param", 0.0, required=False), flag("reverse0"), flag("reverse1"),
            choice("reduce_op", "add", "maximum", "minimum", "abs_max", "abs_min"),
            out("reduce_res", required=False),
            choice("reduce_cmd", "idle", "reset", "reduce", "reset_reduce", default="idle"), reduce_regs(),
        ),
        costs.activation,
        (
            search.since_generation(V4), arguments.activation_engine, rules.same_shape,
            arguments.activation_stages, arguments.argument_pairs, fits_state,
        ),
        "op((data op0 imm0) op1 imm1), optionally reduced", v4_engines=("gpsimd",),
    ),
    Operator(
        "exponential", ("vector",),
        (
            out(), tensor("src"), scalar("max_value", 0.0, required=False), out("reduce_res", required=False),
            choice("reduce_cmd", "idle", "reset_reduce", "reduce", "load_reduce", default="idle"),
            scalar("reduce_init", required=False), reduce_regs(),
        ),
        costs.exponential,
        (
            search.since_generation(V4), rules.same_shape, arguments.argument_pairs,
            search.max_rank("src", 4), search.max_rank("dst", 4), fits_state,
        ),
        "exp(src - max_value), optionally with its sum",
    ),
    Operator(
        "activation_reduce", ("scalar",),
        (
            out(), function("op", "activation"), tensor("data"), function("reduce_op", "reduce"),
            out("reduce_res", required=False), scalar("bias", required=False),
            scalar("scale", 1.0, required=False), reduce_regs(),
        ),
        costs.activation,
        (rules.same_shape, arguments.argument_pairs, arguments.activation_operands, fits_state),
        "activation and its sum over the free axis",
    ),
    Operator(
        "reciprocal", ("vector",), (out(), tensor("data")), costs.reciprocal, (rules.same_shape,), "1 / data",
    ),
)  # fmt: skip
