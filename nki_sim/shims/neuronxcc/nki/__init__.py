"""Stands in for `neuronxcc.nki`: the simulator's front end under the name kernels import."""

from nki_sim.frontend.legacy.api import (
    baremetal,
    benchmark,
    jit,
    profile,
    simulate_kernel,
    trace,
)

from . import compiler, isa, language, typing

__all__ = [
    "baremetal", "benchmark", "compiler", "isa", "jit", "language", "profile", "simulate_kernel", "trace",
    "typing",
]  # fmt: skip
