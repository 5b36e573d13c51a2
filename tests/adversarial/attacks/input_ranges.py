"""Kernels that are right only for numbers near zero, or small ones."""

from __future__ import annotations

from tests.adversarial.model import Attack, broken, edit, wrong
from tests.adversarial.small_problems import (
    EXTREMA,
    INDICES,
    LAYERNORM,
    PRODUCT,
    extrema,
    indices,
    layernorm,
    product,
)

LOADED = "        nisa.dma_copy(dst=t, src=x[r : r + 128, :])\n"
WITHIN_SIX = """\
        nisa.tensor_scalar(dst=t, data=t, op0=nl.minimum, operand0=6.0, op1=nl.maximum, operand1=-6.0)
"""
MAXIMUM = "            nisa.tensor_reduce(dst=found, op=op, data=t, axis=1)\n"
BY_LOGARITHM = """\
            sign = 64.0 if op is nl.maximum else -64.0
            powers = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=powers, op=nl.exp, data=t, scale=sign)
            nisa.tensor_reduce(dst=found, op=nl.add, data=powers, axis=1)
            nisa.activation(dst=found, op=nl.log, data=found)
            nisa.tensor_scalar(dst=found, data=found, op0=nl.multiply, operand0=1.0 / sign)
"""
SIGMOID = "nisa.reciprocal(dst=sigmoid, data=denominator)"
AT_LEAST = f"{SIGMOID}; nisa.tensor_scalar(dst=sigmoid, data=sigmoid, op0=nl.maximum, operand0=1e-5)"
STORED = "            nisa.dma_copy(\n                dst=out["
MEMORY = """\
            before = nl.ndarray((TILE_M, TILE_N), dtype=x.dtype, buffer=nl.sbuf)
            rows, columns = slice(i_m * TILE_M, (i_m + 1) * TILE_M), slice(i_n * TILE_N, (i_n + 1) * TILE_N)
            nisa.dma_copy(dst=before, src=out[rows, columns])
            nisa.tensor_scalar(dst=before, data=before, op0=nl.multiply, operand0=0.0)
            nisa.tensor_tensor(dst=out_tile, data1=out_tile, data2=before, op=nl.add)
"""
HIDDEN_ROW = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    m, n = x.shape
    rows, columns = nl.arange(128)[:, None], nl.arange(1024)[None, :]
    for r in nl.affine_range(m // 128):
        for c in nl.affine_range(n // 1024):
            tile = nl.zeros((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
            tile[rows, columns] = nl.load(x[r * 128 + rows, c * 1024 + columns], mask=MASK)
            nl.store(out[r * 128 + rows, c * 1024 + columns], value=nl.silu(tile))
    return out
"""


def _changed(kernel: str, old: str, new: str) -> str:
    assert old in kernel
    return kernel.replace(old, new)


ATTACKS = (
    Attack("extrema that start at one, on the wrong side", extrema(-1.0, 1.0), wrong(), EXTREMA),
    Attack("a maximum that starts far below what is random", extrema(-9.0, 3e38), wrong(), EXTREMA),
    Attack("a minimum that starts far above what is random", extrema(-3e38, 50.0), wrong(), EXTREMA),
    Attack("bfloat16 but for one row", product("one_row"), wrong("low_precision"), PRODUCT),
    Attack("integers in eight bits", indices("int8"), wrong(), INDICES),
    Attack("integers in half the bits of their range", indices("uint8"), wrong(), INDICES),
    Attack(
        "values clipped where random ones hardly ever are",
        _changed(layernorm(naive=False), LOADED, LOADED + WITHIN_SIX),
        wrong(),
        LAYERNORM,
    ),
    Attack(
        "a variance over one element less",
        _changed(
            layernorm(naive=False), "operand0=1.0 / N, op1=nl.add", "operand0=1.0 / (N - 1), op1=nl.add"
        ),
        wrong(),
        LAYERNORM,
    ),
    Attack(
        "an epsilon beside the root",
        _changed(
            layernorm(naive=False),
            "op1=nl.add, operand1=1e-5\n        )",
            "op1=nl.add, operand1=0.0\n        )\n"
            "        nisa.activation(dst=spread, op=nl.sqrt, data=spread)\n"
            "        nisa.tensor_scalar(dst=spread, data=spread, op0=nl.add, operand0=5e-6)\n"
            "        nisa.tensor_tensor(dst=spread, data1=spread, data2=spread, op=nl.multiply)",
        ),
        wrong(),
        LAYERNORM,
    ),
    Attack(
        "extrema by the logarithm of a sum",
        _changed(extrema(-3e38, 3e38), MAXIMUM, BY_LOGARITHM),
        wrong("not_finite"),
        EXTREMA,
    ),
    Attack(
        "memory of the output, times zero",
        edit("silu", (STORED, MEMORY + STORED)),
        broken("uninitialised_read", "rules"),
    ),
    Attack("the last row of each tile behind a mask", HIDDEN_ROW.replace("MASK", "rows < 127"), wrong()),
    Attack(
        "the last column behind a mask of the whole input",
        HIDDEN_ROW.replace("MASK", "(rows < 128) & (c * 1024 + columns < n - 1)"),
        wrong(),
    ),
    Attack("a sigmoid that never gets to zero", edit("silu", (SIGMOID, AT_LEAST)), wrong()),
)
