"""Instructions that move and fill."""

from __future__ import annotations

from nki_sim import arguments, costs, rules
from nki_sim.operators.model import DMA, Argument, Operator, out, tensor

ENTRIES = (
    Operator(
        "dma_copy", ("dma",), (out(buffers=DMA), tensor("src", DMA)), costs.dma, (rules.same_elements,),
        "move between HBM and SBUF, converting types",
    ),
    Operator(
        "dma_transpose", ("dma",),
        (out(buffers=DMA), tensor("src", DMA), Argument("axes", "axes", required=False)),
        costs.dma_transpose, (rules.dma_transpose_axes, rules.same_dtype),
        "two-dimensional transpose on the way",
    ),
    Operator(
        "tensor_copy", ("vector", "scalar", "gpsimd"), (out(), tensor("src")), costs.copy_like,
        (rules.same_shape, arguments.scalar_engine_copy), "copy on chip, converting types",
    ),
    Operator(
        "memset", ("vector", "gpsimd"), (out(), Argument("value", "float")), costs.memset,
        (arguments.memset_value,),
        "fill with a constant",
    ),
)  # fmt: skip
