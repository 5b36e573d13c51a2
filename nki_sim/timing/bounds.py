"""Lower bounds on the time of any legal kernel for some work: the plain roofline and the model bound.

The model bound assumes that each engine runs at its best rate in the target table, in the longest
instructions that there are, and that all engines run at the same time. It adds what no kernel avoids: the
fixed time of a kernel; the time until the first byte has arrived and, after the last result, until its store
reaches the DMA engines; the low clock with which the tensor engine begins. The problem defines the minimal
work and the type of its products. Loads and stores pass the DMA engines. A copy from HBM to HBM passes the
DMA engines once and HBM twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from nki_sim.dtypes import DTYPES, MX_DTYPES
from nki_sim.operators.rules.matrix import V3
from nki_sim.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimalWork:
    """The least work that every kernel of a problem must do.

    `matmul_flops` counts multiplications and additions of products made in `matmul_dtype` on the tensor
    engine. `activation_elements` go through a function that only ScalarE has, or that GpSimd computes at four
    cycles per element as a power of two tensors or a root, or VectorE as an exponential where it has that.
    `elementwise_elements` go through any of VectorE,
    ScalarE and GpSimd (activations included), all held in `elementwise_dtype`. `copied_bytes` are bytes of
    the output that may be copied from the input without a computation.
    """

    read_bytes: int
    write_bytes: int
    matmul_flops: int = 0
    matmul_dtype: str = "float32"
    activation_elements: int = 0
    elementwise_elements: int = 0
    elementwise_dtype: str = "float32"
    copied_bytes: int = 0


def peak_flops_per_ns(dtype: str, target: Target) -> float:
    """Peak rate of the tensor engine for products in a type, in multiplications and additions per ns.

    8-bit types use double rows on targets that have them, MX types four elements per partition.

    Raises:
        ValueError: the target has no products of MX types.
    """
    if dtype in MX_DTYPES:
        if not target.mx_contract_max:
            raise ValueError(f"{target.name} has no products of {dtype}")
        return 2 * target.mx_contract_max * target.matmul_stationary_max * target.tensor_clock_ghz
    passes = target.tensor_fp32_passes if dtype == "float32" else 1
    rows = target.matmul_contract_max * (2 if DTYPES[dtype].itemsize == 1 and target.generation >= V3 else 1)
    return 2 * rows * target.matmul_stationary_max * target.tensor_clock_ghz / passes


def plain_bound(work: MinimalWork, target: Target) -> float:
    """The roofline in ms: the longer of bytes at HBM bandwidth and products at the peak rate."""
    moved_ns = (work.read_bytes + work.write_bytes) / target.hbm_bytes_per_ns
    return max(moved_ns, work.matmul_flops / peak_flops_per_ns(work.matmul_dtype, target)) / 1e6


def bound_parts_ms(work: MinimalWork, target: Target) -> dict[str, float]:
    """Lower bounds per kind of work in ms, without the fixed time of a kernel.

    The part of an engine begins when the first load has arrived, and ends with the trigger of a store.
    """
    lanes, moved = target.partitions, work.read_bytes + work.write_bytes
    narrow = DTYPES[work.elementwise_dtype].itemsize < 4
    fast = 4 if narrow and target.vector_fast_modes else 1
    scalar = lanes * target.scalar_clock_ghz
    vector = lanes * target.vector_clock_ghz
    gpsimd = lanes * target.gpsimd_clock_ghz
    copying = scalar * (2 if narrow and target.scalar_fast_modes else 1)
    # An activation takes VectorE less than another element where it has the fast exponential.
    saved = 1 - fast / max(fast, target.exponential_speed)
    elements = max(0.0, work.elementwise_elements - saved * work.activation_elements)
    transferred = moved - min(work.copied_bytes, work.read_bytes, work.write_bytes)
    transfers_ns = {"dma": _dma_ns(transferred, target), "hbm": moved / target.hbm_bytes_per_ns}
    loaded_ns = target.dma_trigger_ns + target.dma_completion_ns if work.read_bytes else 0.0
    stored_ns = target.semaphore_ns + target.dma_trigger_ns if work.write_bytes else 0.0
    engines_ns = {
        "tensor": _products_ns(work, target, loaded_ns),
        "activation": work.activation_elements / (scalar + gpsimd / 4 + vector * target.exponential_speed),
        "elementwise": elements / (copying + vector * fast + gpsimd),
    }
    ns = {name: value + target.dma_trigger_ns if value else 0.0 for name, value in transfers_ns.items()}
    ns |= {name: loaded_ns + value + stored_ns if value else 0.0 for name, value in engines_ns.items()}
    return {name: value / 1e6 for name, value in ns.items()}


def tight_bound(work: MinimalWork, target: Target) -> float:
    """The bound in ms: the part that takes longest, plus the fixed time of a kernel."""
    return max(bound_parts_ms(work, target).values()) + target.kernel_overhead_ns / 1e6


def _dma_ns(nbytes: float, target: Target) -> float:
    """Time of all DMA engines for some bytes in descriptors that are as long as possible."""
    per_descriptor_ns = target.dma_descriptor_overhead_ns / target.dma_engines
    return nbytes / target.dma_bytes_per_ns + nbytes / target.dma_descriptor_bytes * per_descriptor_ns


def _products_ns(work: MinimalWork, target: Target, loaded_ns: float) -> float:
    """Time of the tensor engine for products whose first operand arrives at `loaded_ns`.

    Each instruction moves the most columns. Other work may have raised the clock since the kernel began, but
    no sooner than it can.
    """
    columns = target.matmul_moving_max
    ns = work.matmul_flops / peak_flops_per_ns(work.matmul_dtype, target)
    ns *= (columns + target.tensor_overhead_cycles) / columns
    low_ns = min(max(0.0, target.tensor_ramp_ns - loaded_ns), ns / target.tensor_ramp_ratio)
    return ns + low_ns * (1.0 - target.tensor_ramp_ratio)
