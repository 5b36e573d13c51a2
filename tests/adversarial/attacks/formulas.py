"""Kernels whose numbers are within the tolerance on every input set, and whose formula is another one."""

from __future__ import annotations

from state.model import Verdict
from tests.adversarial.model import Attack, Judged, edit

ANOTHER: Judged = (Verdict.INCORRECT, "identity", "not_identical")
COPIED = "nisa.tensor_copy(dst=out_tile, src=acc)"
SCALED_UP = "nisa.activation(dst=out_tile, op=nl.copy, data=acc, scale=1.00001)"
ATTACKS = (
    Attack(
        "weight decay left out, half as large as the problem's tolerance",
        edit("adamw", ("DECAY = 1.0 - 1e-5", "DECAY = 1.0")),
        ANOTHER,
        "adamw",
    ),
    Attack(
        "a slope off by a hundred-thousandth", edit("silu", ("scale=-1.0", "scale=-1.00001")), ANOTHER, "silu"
    ),
    Attack("a product scaled up by as much", edit("matmul", (COPIED, SCALED_UP)), ANOTHER, "matmul"),
    Attack(
        "a root mean square off by half as much",
        edit("rmsnorm_matmul", ("op=nl.rsqrt, data=mean", "op=nl.rsqrt, data=mean, scale=0.99999")),
        ANOTHER,
        "rmsnorm_matmul",
    ),
    Attack(
        "a gate that opens a little further",
        edit("swiglu", ("op=nl.silu, data=gate", "op=nl.silu, data=gate, scale=1.00001")),
        ANOTHER,
        "swiglu",
    ),
    Attack(
        "probabilities that add up to a little less",
        edit("bmm_softmax", ("operand0=inv_total", "operand0=inv_total, op1=nl.multiply, operand1=0.99999")),
        ANOTHER,
        "bmm_softmax",
    ),
)  # fmt: skip
