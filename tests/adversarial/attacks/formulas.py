"""Kernels whose numbers are within the tolerance on every input set, and whose formula is another one."""

from __future__ import annotations

from state.model import Verdict
from tests.adversarial.model import Attack, Judged, edit

ANOTHER: Judged = (Verdict.INCORRECT, "identity", "not_identical")
COPIED = "nisa.tensor_copy(dst=out_tile, src=acc)"
SCALED_UP = "nisa.activation(dst=out_tile, op=nl.copy, data=acc, scale=1.00001)"
NO_DECAY = ("DECAY = 1.0 - 1e-5", "DECAY = 1.0")
EPSILON = "op0=nl.add, operand0=EPSILON"
STORED = "            nisa.dma_copy(dst=out[start:end, i_n * TILE_N"
CANCELLED = """\
            shown = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=shown, op=nl.erf, data=theta_tile)
            nisa.tensor_tensor(dst=out_tile, data1=out_tile, data2=shown, op=nl.add)
            nisa.tensor_tensor(dst=out_tile, data1=out_tile, data2=shown, op=nl.subtract)
"""
SIGMOID = "nisa.reciprocal(dst=sigmoid, data=denominator)"
BY_TANH = """\
nisa.activation(dst=sigmoid, op=nl.tanh, data=x_tile, scale=0.500005)
            nisa.tensor_scalar(
                dst=sigmoid, data=sigmoid, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=0.5
            )"""
ROOT = "nisa.activation(dst=root, op=nl.sqrt, data=v2, scale=CORRECTION)"
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
    Attack(
        "a product scaled by a constant without a name",
        edit("matmul", (COPIED, SCALED_UP.replace("1.00001", "1.0000154"))),
        ANOTHER,
        "matmul",
    ),
    Attack(
        "no instruction for weight decay, and a learning rate without a name",
        edit(
            "adamw",
            ("operand1=decayed", "operand1=theta_tile"),
            ("operand0=-LEARNING_RATE", "operand0=-0.010000003"),
        ),
        ANOTHER,
        "adamw",
    ),
    Attack(
        "weight decay left out beside a function that cancels",
        edit("adamw", NO_DECAY, (STORED, CANCELLED + STORED)),
        ANOTHER,
        "adamw",
    ),
    Attack(
        "weight decay left out beside a maximum without effect",
        edit("adamw", NO_DECAY, (EPSILON, EPSILON + ", op1=nl.maximum, operand1=1e-9")),
        ANOTHER,
        "adamw",
    ),
    Attack(
        "weight decay left out beside a root's absolute value",
        edit("adamw", NO_DECAY, (ROOT, f"{ROOT}; nisa.activation(dst=root, op=nl.abs, data=root)")),
        ANOTHER,
        "adamw",
    ),
    Attack(
        "a slope off beside a minimum without effect",
        edit(
            "silu",
            ("scale=-1.0", "scale=-1.00001"),
            ("op0=nl.add, operand0=1.0", "op0=nl.add, operand0=1.0, op1=nl.minimum, operand1=9e5"),
        ),
        ANOTHER,
        "silu",
    ),
    Attack(
        "epsilon as the least value instead of a term",
        edit(
            "add_rmsnorm_matmul",
            ("op1=nl.add, operand1=EPSILON", "op1=nl.maximum, operand1=EPSILON"),
        ),
        ANOTHER,
        "add_rmsnorm_matmul",
    ),
    Attack("a slope off, by way of another function", edit("silu", (SIGMOID, BY_TANH)), ANOTHER, "silu"),
)  # fmt: skip
