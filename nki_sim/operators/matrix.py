"""Instructions of the tensor engine."""

from __future__ import annotations

from collections.abc import Sequence

from nki_sim.forms import Operand, Params
from nki_sim.operators import costs
from nki_sim.operators.model import PSUM, SBUF, Argument, Operator, choice, flag, out, tensor
from nki_sim.operators.rules import matrix as rules_matrix
from nki_sim.operators.rules import shapes as rules


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
        "nc_transpose", ("tensor", "vector"), (out(), tensor("data")), costs.transpose,
        (rules.transpose_shapes, rules.same_dtype, rules.one_bank), "transpose partitions and free elements",
        prefers=_transpose_engine,
    ),
)  # fmt: skip
