"""Instructions of the tensor engine."""

from __future__ import annotations

from nki_sim import costs, rules
from nki_sim.operators.model import PSUM, SBUF, Operator, flag, out, tensor

ENTRIES = (
    Operator(
        "nc_matmul", ("tensor",),
        (
            out(buffers=PSUM), tensor("stationary", SBUF), tensor("moving", SBUF),
            flag("is_stationary_onezero"), flag("is_moving_onezero"), flag("is_transpose"),
            flag("accumulate"),
        ),
        costs.matmul, (rules.matmul_shapes, rules.matmul_dtypes, rules.one_bank),
        "dst[M, N] (+)= stationary[K, M].T @ moving[K, N]",
    ),
    Operator(
        "nc_transpose", ("tensor", "vector"), (out(), tensor("data")), costs.transpose,
        (rules.transpose_shapes, rules.same_dtype, rules.one_bank), "transpose partitions and free elements",
    ),
)  # fmt: skip
