"""Kernels that are right only for numbers near zero, or small ones."""

from __future__ import annotations

from tests.adversarial.model import Attack, wrong
from tests.adversarial.small_problems import EXTREMA, INDICES, PRODUCT, extrema, indices, product

ATTACKS = (
    Attack("extrema that start at one, on the wrong side", extrema(-1.0, 1.0), wrong(), EXTREMA),
    Attack("a maximum that starts far below what is random", extrema(-9.0, 3e38), wrong(), EXTREMA),
    Attack("a minimum that starts far above what is random", extrema(-3e38, 50.0), wrong(), EXTREMA),
    Attack("bfloat16 but for one row", product("one_row"), wrong("low_precision"), PRODUCT),
    Attack("integers in eight bits", indices("int8"), wrong(), INDICES),
    Attack("integers in half the bits of their range", indices("uint8"), wrong(), INDICES),
)
