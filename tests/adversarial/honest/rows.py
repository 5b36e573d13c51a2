"""Honest kernels for softmax, attention, scans and element-wise steps: other formulas of the same value."""

from __future__ import annotations

from tests.adversarial.model import Honest, edit

SCALED = "nisa.tensor_scalar(dst=out_tile, data=exps, op0=nl.multiply, operand0=inv_total)"
MAXIMUM = "nisa.tensor_reduce(dst=neg_max, op=nl.maximum, data=scores, axis=1, negate=True)"
SPLIT_MAXIMUM = """\
peaks = nl.ndarray((TILE_M, n // 256), dtype=nl.float32, buffer=nl.sbuf)
            for i in reversed(range(n // 256)):
                nisa.tensor_reduce(
                    dst=peaks[:, i : i + 1], op=nl.maximum, data=scores[:, i * 256 : (i + 1) * 256], axis=1
                )
            nisa.tensor_reduce(dst=neg_max, op=nl.maximum, data=peaks, axis=1, negate=True)"""
SUM = "nisa.tensor_reduce(dst=total, op=nl.add, data=exps, axis=1)"
SPLIT_SUM = (
    SPLIT_MAXIMUM.replace("maximum", "add")
    .replace("scores", "exps")
    .replace("neg_max", "total")
    .replace(", negate=True", "")
)
EXPS = "nisa.activation(dst=exps, op=nl.exp, data=scores, bias=neg_max)"
APART = """\
nisa.tensor_scalar(dst=exps, data=scores, op0=nl.add, operand0=neg_max)
            nisa.activation(dst=exps, op=nl.exp, data=exps)"""

# The online softmax: the maximum and the sum so far, corrected with every block of columns.
ONLINE_START = "            neg_max = nl.ndarray("
ONLINE_END = "            inv_total = nl.ndarray("
ONLINE = """\
            neg_max = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            exps = nl.ndarray((TILE_M, n), dtype=nl.float32, buffer=nl.sbuf)
            for i in range(n // 256):
                block = scores[:, i * 256 : (i + 1) * 256]
                peak = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(dst=peak, op=nl.maximum, data=block, axis=1, negate=True)
                if i:
                    nisa.tensor_tensor(dst=peak, data1=peak, data2=neg_max, op=nl.minimum)
                    change = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_tensor(dst=change, data1=peak, data2=neg_max, op=nl.subtract)
                    nisa.activation(dst=change, op=nl.exp, data=change)
                    nisa.tensor_tensor(dst=total, data1=total, data2=change, op=nl.multiply)
                    nisa.tensor_scalar(
                        dst=exps[:, 0 : i * 256], data=exps[:, 0 : i * 256], op0=nl.multiply, operand0=change
                    )
                nisa.tensor_copy(dst=neg_max, src=peak)
                nisa.activation(dst=exps[:, i * 256 : (i + 1) * 256], op=nl.exp, data=block, bias=neg_max)
                part = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(dst=part, op=nl.add, data=exps[:, i * 256 : (i + 1) * 256], axis=1)
                if i:
                    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
                else:
                    nisa.tensor_copy(dst=total, src=part)
"""


def online() -> str:
    kernel = edit("bmm_softmax")
    return kernel[: kernel.index(ONLINE_START)] + ONLINE + kernel[kernel.index(ONLINE_END) :]


RATIO = "nisa.activation(dst=root, op=nl.sqrt, data=v2, scale=CORRECTION)"
ROOT_APART = """\
nisa.activation(dst=root, op=nl.sqrt, data=v2)
            nisa.tensor_scalar(dst=root, data=root, op0=nl.multiply, operand0=CORRECTION**0.5)"""
INVERSE = "nisa.reciprocal(dst=inverse, data=denominator)"
INVERSE_POWER = "nisa.tensor_scalar(dst=inverse, data=denominator, op0=nl.power, operand0=-1.0)"
CARRY = "nisa.tensor_copy(dst=last[:, i_s : i_s + 1], src=state[:, TILE_M - 1 : TILE_M])"

KERNELS = (
    Honest("online softmax", "bmm_softmax", online()),
    Honest("a split maximum", "bmm_softmax", edit("bmm_softmax", (MAXIMUM, SPLIT_MAXIMUM))),
    Honest("a split sum", "bmm_softmax", edit("bmm_softmax", (SUM, SPLIT_SUM))),
    Honest("subtraction and exponential apart", "bmm_softmax", edit("bmm_softmax", (EXPS, APART))),
    Honest(
        "scaled by the engine of functions",
        "bmm_softmax",
        edit(
            "bmm_softmax", (SCALED, "nisa.activation(dst=out_tile, op=nl.copy, data=exps, scale=inv_total)")
        ),
    ),
    Honest(
        "a larger shift than the maximum",
        "bmm_softmax",
        edit(
            "bmm_softmax",
            (
                MAXIMUM,
                MAXIMUM + "\n            nisa.tensor_scalar(dst=neg_max, data=neg_max,"
                " op0=nl.subtract, operand0=1.0)",
            ),
        ),
    ),
    Honest("narrow scores", "gqa_full", edit("gqa_full", ("TILE_S = 512", "TILE_S = 256"))),
    Honest(
        "probabilities before the second product",
        "gqa_full",
        edit(
            "gqa_full",
            (
                "nisa.reciprocal(dst=inv_total, data=total)",
                (
                    "nisa.reciprocal(dst=inv_total, data=total)\n"
                    "                    nisa.tensor_scalar(dst=exps, data=exps,"
                    " op0=nl.multiply, operand0=inv_total)"
                ),
            ),
            (
                "nisa.tensor_scalar(dst=out_tile, data=acc, op0=nl.multiply, operand0=inv_total)",
                "nisa.tensor_copy(dst=out_tile, src=acc)",
            ),
        ),
    ),
    Honest("root and factor apart", "adamw", edit("adamw", (RATIO, ROOT_APART))),
    Honest("a power for the reciprocal", "adamw", edit("adamw", (INVERSE, INVERSE_POWER))),
    Honest("other rows", "adamw", edit("adamw", ("TILE_M = 128", "TILE_M = 96"))),
    Honest("many small steps", "mamba", edit("mamba", ("TILE_M = 1024", "TILE_M = 256"))),
    Honest(
        "states backwards", "mamba", edit("mamba", ("nl.sequential_range(states)", "reversed(range(states))"))
    ),
    Honest(
        "small columns",
        "rope_single_freq_apply",
        edit("rope_single_freq_apply", ("TILE_N = 2048", "TILE_N = 512")),
    ),
    Honest(
        "a difference as a sum",
        "rope_single_freq_apply",
        edit(
            "rope_single_freq_apply",
            (
                "nisa.tensor_tensor(dst=out0, data1=x0_cos, data2=x1_sin, op=nl.subtract)",
                (
                    "nisa.tensor_scalar(dst=x1_sin, data=x1_sin, op0=nl.multiply, operand0=-1.0)\n"
                    "        nisa.tensor_tensor(dst=out0, data1=x0_cos, data2=x1_sin, op=nl.add)"
                ),
            ),
        ),
    ),
    *(
        Honest(f"few rows: {problem}", problem, edit(problem, ("TILE_M = 128", "TILE_M = 64")))
        for problem in ("add_rmsnorm_matmul", "matmul_add_rmsnorm", "bmm_softmax")
    ),
)
