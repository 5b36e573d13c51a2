"""Instructions by which the two cores of a launch wait for each other and exchange tiles."""

from __future__ import annotations

from collections.abc import Iterator

from nki_sim.forms import Form
from nki_sim.operators import costs
from nki_sim.operators.model import SBUF, Operator, out, tensor
from nki_sim.operators.rules import shapes as rules
from nki_sim.operators.rules.shapes import Breach
from nki_sim.targets import Target

_TWO_CORES_GENERATION = 3

GPSIMD_ELEMENTS = 256
"""Elements of each partition that GpSimd's own DMA moves at once, of any type."""


def _gpsimd_size(form: Form, target: Target) -> Iterator[Breach]:
    """GpSimd's own DMA takes 1024 bytes of 32-bit types, 512 of 16-bit and 256 of 8-bit ones."""
    del target
    dst = form["dst"]
    if form.engine == "gpsimd" and dst.free > GPSIMD_ELEMENTS:
        yield Breach(
            "sendrecv_size", f"{dst.free} elements per partition by gpsimd_dma", "dst", GPSIMD_ELEMENTS,
            dst.free, "split the tile, or use nisa.dma_engine.dma",
        )  # fmt: skip


def _needs_two_cores(form: Form, target: Target) -> Iterator[Breach]:
    """Launches on two cores need NeuronCore-v3."""
    if target.generation < _TWO_CORES_GENERATION:
        yield Breach(
            "generation", f"{form.op} needs NeuronCore-v3 (trn2)", "dst", "trn2", target.name,
            "launch on one core",
        )  # fmt: skip


def _barrier_cost(form: Form, target: Target) -> costs.Cost:
    """The latency of one semaphore between cores, assumed equal to that between engines."""
    del form
    return costs.Cost(target.semaphore_ns)


ENTRIES = (
    Operator(
        "sendrecv", ("dma", "gpsimd"), (out(buffers=SBUF), tensor("src", SBUF)), costs.dma,
        (rules.same_shape, rules.same_dtype, _gpsimd_size, _needs_two_cores),
        "take a tile of the other core's SBUF", internal=True,
    ),
    Operator(
        "core_barrier", ("gpsimd", "vector", "scalar", "tensor", "sync"), (), _barrier_cost,
        (_needs_two_cores,),
        "go on when the other core is here too", internal=True,
    ),
)  # fmt: skip
