"""Honest kernels for the small problems: extrema from afar, both variances, integers that fit their types."""

from __future__ import annotations

from tests.adversarial.model import Honest
from tests.adversarial.small_problems import EXTREMA, INDICES, LAYERNORM, extrema, indices, layernorm

KERNELS = (
    Honest("extrema that start at the ends of float32", EXTREMA, extrema(-3e38, 3e38)),
    Honest("extrema that start where no number is", EXTREMA, extrema(-1e6, 1e6)),
    Honest("a variance of what is left of the mean", LAYERNORM, layernorm(naive=False)),
    Honest("a variance as a difference of means", LAYERNORM, layernorm(naive=True)),
    Honest("integers as they are", INDICES, indices("int32")),
    Honest("integers in sixteen bits", INDICES, indices("int16")),
)
