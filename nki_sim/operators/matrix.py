"""Instructions of the tensor engine."""

from __future__ import annotations

from collections.abc import Sequence

from nki_sim.dtypes import V4
from nki_sim.forms import Operand, Params
from nki_sim.operators import costs
from nki_sim.operators.model import PSUM, SBUF, Argument, Kind, Operator, choice, flag, out, tensor
from nki_sim.operators.rules import matrix as rules_matrix
from nki_sim.operators.rules import mx as rules_mx
from nki_sim.operators.rules import search as rules_search
from nki_sim.operators.rules import shapes as rules

_QUADRANTS = 4
"""Quadrants of the partitions, each with scales of its own."""


def _scales(name: str, kind: Kind) -> tuple[Argument, ...]:
    """The scales of an MX operand: one argument of kernels, an operand for each quadrant of the data."""
    return tuple(
        Argument(f"{name}{number}", kind, required=number == 0, buffers=SBUF, group=name)
        for number in range(_QUADRANTS)
    )


def _transpose_engine(params: Params, operands: Sequence[Operand]) -> str | None:
    """VectorE for transposes whose source the tensor engine cannot read or whose result it cannot write."""
    del params
    wanted = {"dst": "psum", "data": "sbuf"}
    return "vector" if any(wanted.get(item.role, item.buffer) != item.buffer for item in operands) else None


ENTRIES = (
    Operator(
        "nc_matmul", ("tensor",),
        (
            out(buffers=PSUM), tensor("stationary", SBUF), tensor("moving", SBUF),
            flag("is_stationary_onezero"), flag("is_moving_onezero"), flag("is_transpose"),
            flag("accumulate"), Argument("tile_position", "ints", required=False),
            Argument("tile_size", "ints", required=False), choice("perf_mode", "none", "double_row"),
        ),
        costs.matmul,
        (
            rules_matrix.double_row, rules_matrix.matmul_shapes, rules_matrix.operand_dtypes,
            rules_matrix.result_dtype, rules_matrix.array_tile, rules.one_bank,
        ),
        "dst[M, N] (+)= stationary[K, M].T @ moving[K, N]",
    ),
    Operator(
        "nc_matmul_mx", ("tensor",),
        (
            out(buffers=PSUM), tensor("stationary", SBUF), tensor("moving", SBUF),
            *_scales("stationary_scale", "tensor"), *_scales("moving_scale", "tensor"),
            Argument("tile_position", "ints", required=False), Argument("tile_size", "ints", required=False),
            flag("accumulate"),
        ),
        costs.matmul,
        (
            rules_search.since_generation(V4), rules_mx.product_types, rules_mx.product_shapes,
            rules_mx.row_tile, rules_matrix.array_tile, rules.one_bank,
        ),
        "dst[M, N] (+)= (stationary[K, M] * scales).T @ (moving[K, N] * scales), four numbers to an element",
    ),
    Operator(
        "quantize_mx", ("vector",),
        (
            out(buffers=SBUF), tensor("src", SBUF), *_scales("dst_scale", "out"),
        ),
        costs.quantize_mx,
        (rules_search.since_generation(V4), rules_mx.quantised_types, rules_mx.quantised_shapes),
        "round groups of 32 numbers to 8 bits, with a power of two as their scale",
    ),
    Operator(
        "nc_transpose", ("tensor", "vector"), (out(), tensor("data")), costs.transpose,
        (rules.transpose_shapes, rules.same_dtype, rules.one_bank), "transpose partitions and free elements",
        prefers=_transpose_engine,
    ),
)  # fmt: skip
