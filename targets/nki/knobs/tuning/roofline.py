"""The roofline from a target's own table: the time for bytes and matrix products at its best rates."""

from __future__ import annotations

from nki_sim import targets
from seeds import ProblemWork


def peak_flops_per_ms(dtype: str, target: str) -> float:
    """Multiplications and additions per ms of the tensor engine at its peak, for products in a type."""
    table = targets.load(target)
    passes = table.tensor_fp32_passes if dtype == "float32" else 1
    cells = table.matmul_contract_max * table.matmul_stationary_max
    return 2 * cells * table.tensor_clock_ghz * 1e6 / passes


def roofline_ms(work: ProblemWork, target: str) -> float:
    """The longer of the time for the bytes at HBM bandwidth, and for the matrix products at the peak rate."""
    moved_ms = work.total_bytes / targets.load(target).hbm_bytes_per_ns / 1e6
    return max(moved_ms, work.matmul_flops / peak_flops_per_ms(work.matmul_dtype, target))
