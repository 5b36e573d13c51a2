"""Element-wise instructions, reductions and scans."""

from __future__ import annotations

from nki_sim import arguments, costs, rules
from nki_sim.operators.model import Argument, Operator, either, flag, function, out, tensor

ENTRIES = (
    Operator(
        "tensor_tensor", ("vector", "gpsimd"), (out(), tensor("data1"), tensor("data2"), function("op")),
        costs.tensor_tensor, (rules.same_shape, rules.not_both_psum("data1", "data2")),
        "data1 op data2",
    ),
    Operator(
        "tensor_scalar", ("vector", "scalar"),
        (
            out(), tensor("data"), function("op0"), either("operand0"), flag("reverse0"),
            function("op1", required=False), either("operand1", required=False), flag("reverse1"),
        ),
        costs.copy_like, (rules.same_shape, arguments.pairs, arguments.scalar_engine_ops),
        "(data op0 operand0) op1 operand1",
    ),
    Operator(
        "scalar_tensor_tensor", ("vector",),
        (
            out(), tensor("data"), function("op0"), either("operand0"), function("op1"), tensor("operand1"),
            flag("reverse0"), flag("reverse1"),
        ),
        costs.scalar_tensor_tensor, (rules.same_shape,),
        "(data op0 operand0) op1 operand1, operand1 a tensor",
    ),
    Operator(
        "tensor_scalar_reduce", ("vector",),
        (
            out(), tensor("data"), function("op0"), either("operand0"), function("reduce_op", "reduce"),
            out("reduce_res"), flag("reverse0"),
        ),
        costs.reducing, (rules.same_shape,),
        "tensor_scalar and its sum (or max...) over the free axis",
    ),
    Operator(
        "tensor_reduce", ("vector",),
        (out(), function("op", "reduce"), tensor("data"), Argument("axis", "axes"), flag("negate")),
        costs.reduce, (rules.reduce_axes,),
        "reduce the innermost free axes",
    ),
    Operator(
        "tensor_tensor_scan", ("vector",),
        (
            out(), tensor("data0"), tensor("data1"), either("initial"), function("op0"), function("op1"),
            flag("reverse0"), flag("reverse1"),
        ),
        costs.scan, (rules.same_shape, rules.not_both_psum("data0", "data1")),
        "res[i] = (data0[i] op0 res[i-1]) op1 data1[i]",
    ),
    Operator(
        "activation", ("scalar",),
        (
            out(), function("op", "activation"), tensor("data"), either("bias", required=False),
            either("scale", 1.0, required=False), function("reduce_op", "reduce", required=False),
            out("reduce_res", required=False),
        ),
        costs.activation, (rules.same_shape, arguments.pairs, arguments.activation_operands),
        "op(data * scale + bias), optionally with its sum",
    ),
    Operator(
        "activation_reduce", ("scalar",),
        (
            out(), function("op", "activation"), tensor("data"), function("reduce_op", "reduce"),
            out("reduce_res"), either("bias", required=False), either("scale", 1.0, required=False),
        ),
        costs.activation, (rules.same_shape, arguments.pairs, arguments.activation_operands),
        "activation and its sum over the free axis",
    ),
    Operator(
        "reciprocal", ("vector",), (out(), tensor("data")), costs.reciprocal, (rules.same_shape,), "1 / data",
    ),
)  # fmt: skip
