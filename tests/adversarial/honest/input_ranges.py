"""Honest kernels for the small problems: extrema from afar, both variances, integers that fit their types."""

from __future__ import annotations

from tests.adversarial.model import Honest, edit
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

STORE = "            nisa.dma_copy(\n                dst=out["
HALVES = (
    STORE,
    "            moved = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)\n"
    "            nisa.tensor_copy(dst=moved.view(nl.bfloat16), src=out_tile.view(nl.bfloat16))\n"
    "            nisa.tensor_copy(dst=out_tile, src=moved)\n" + STORE,
)

KERNELS = (
    Honest("extrema that start at the ends of float32", EXTREMA, extrema(-3e38, 3e38)),
    Honest("extrema that start where no number is", EXTREMA, extrema(-1e6, 1e6)),
    Honest("a variance of what is left of the mean", LAYERNORM, layernorm(naive=False)),
    Honest("a variance as a difference of means", LAYERNORM, layernorm(naive=True)),
    Honest("three products of narrow parts", PRODUCT, product("in_parts")),
    Honest("a result moved in halves of its bits", "silu", edit("silu", HALVES)),
    Honest("integers as they are", INDICES, indices("int32")),
    Honest("integers in sixteen bits", INDICES, indices("int16")),
)
