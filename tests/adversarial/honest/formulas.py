"""Honest kernels that spell the same formula in another way, with other functions and folded constants."""

from __future__ import annotations

from tests.adversarial.honest.silu import one
from tests.adversarial.model import Honest, body, edit

INVERSE = "nisa.reciprocal(dst=inverse, data=denominator)"
INVERSE_REFINED = """\
nisa.reciprocal(dst=inverse, data=denominator)
            rest = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=rest, data1=inverse, data2=denominator, op=nl.multiply)
            nisa.tensor_scalar(dst=rest, data=rest, op0=nl.subtract, operand0=2.0, reverse0=True)
            nisa.tensor_tensor(dst=inverse, data1=inverse, data2=rest, op=nl.multiply)"""
SIGMOID = one(128, 512, "a : a + 128, c : c + 512")
BY_TANGENT = (
    "nisa.activation(dst=t, op=nl.tanh, data=s, scale=0.5)",
    "nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=0.5)",
)
TILED = ("for a in range(0, 256, 128):", "    for c in range(0, 2048, 512):")


def silu(lines: tuple[str, ...]) -> str:
    """The function in tiles, its sigmoid from these lines: s to t."""
    first, last = SIGMOID[:3], SIGMOID[-2:]
    return body(*TILED, *(f"        {line}" for line in (*first, *lines, *last)))


KERNELS = (
    Honest("a sigmoid by its tangent", "silu", silu(BY_TANGENT)),
    Honest("a reciprocal refined by a step of Newton's", "adamw", edit("adamw", (INVERSE, INVERSE_REFINED))),
    Honest(
        "rates folded as they come",
        "adamw",
        edit("adamw", ("DECAY = 1.0 - 1e-5", "DECAY = 1.0 - 0.01 * 0.001"),
             ("1.0 - BETA_1", "0.1"), ("1.0 - BETA_2", "0.001")),
    ),
    Honest(
        "a scale split between both factors",
        "gqa_full",
        edit("gqa_full", ("operand0=d**-0.5", "operand0=d**-0.25"),
             ("nisa.tensor_copy(dst=k_t[:, i_k * TILE_K : (i_k + 1) * TILE_K], src=k_t_psum)",
              ("nisa.activation(dst=k_t[:, i_k * TILE_K : (i_k + 1) * TILE_K], op=nl.copy, data=k_t_psum,"
               " scale=d**-0.25)"))),
    ),
)  # fmt: skip
