"""Instructions that move data and fill tensors."""

from __future__ import annotations

from nki_sim.operators import costs
from nki_sim.operators.model import DMA, SBUF, Argument, Operator, choice, function, out, tensor
from nki_sim.operators.rules import arguments
from nki_sim.operators.rules import dma as rules_dma
from nki_sim.operators.rules import shapes as rules

_SOURCES = 16
_MODE = choice("dge_mode", "unknown", "swdge", "hwdge", "none")
_PRIORITY = Argument("priority", "int", required=False)
_OUT_OF_BOUNDS = choice("oob_mode", "error", "skip")

ENTRIES = (
    Operator(
        "dma_copy", ("dma",), (out(buffers=DMA), tensor("src", DMA), _PRIORITY, _OUT_OF_BOUNDS, _MODE),
        costs.dma,
        (rules.same_elements, rules_dma.priority_range, rules_dma.dge_mode, rules_dma.hwdge_dtypes),
        "move between HBM and SBUF, converting types",
    ),
    Operator(
        "dma_transpose", ("dma",),
        (
            out(buffers=SBUF), tensor("src", DMA), Argument("axes", "axes", required=False), _PRIORITY, _MODE,
            _OUT_OF_BOUNDS,
        ),
        costs.dma_transpose,
        (
            rules_dma.transpose_axes, rules.same_dtype, rules_dma.gather_transpose, rules_dma.priority_range,
            rules_dma.dge_mode, rules_dma.transpose_descriptors, rules_dma.skip_mode,
        ),
        "reverse two or three dimensions on the way, or swap the outer two of four",
    ),
    Operator(
        "dma_compute", ("dma",),
        (
            out(buffers=DMA),
            *(
                Argument(f"srcs{i}", "tensor", required=i == 0, buffers=DMA, group="srcs")
                for i in range(_SOURCES)
            ),
            function("reduce_op", "reduce"), Argument("scales", "ones", required=False),
            Argument("unique_indices", "bool", required=False, default=True),
            _OUT_OF_BOUNDS,
        ),
        costs.dma_compute, (rules_dma.sum_sources, rules_dma.skip_mode, arguments.reduce_ops),
        "add up to 16 tensors on the way, in float32",
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
