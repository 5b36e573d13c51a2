"""`nl.tile_size`: the limits of a target as kernels ask for them."""

from __future__ import annotations

from nki_sim.frontend.context import current_target
from nki_sim.frontend.kernel_values import KernelValue


class TileSize(KernelValue):
    """Limits of the target being traced for, in elements unless the name says bytes."""

    # No document gives these two: a PSUM element is one word, SBUF is addressed by bytes [I].
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def pmax(self) -> int:
        return current_target().partitions

    @property
    def gemm_stationary_fmax(self) -> int:
        return current_target().matmul_stationary_max

    @property
    def gemm_moving_fmax(self) -> int:
        return current_target().matmul_moving_max

    @property
    def bn_stats_fmax(self) -> int:
        return current_target().psum_bank_bytes // 4

    @property
    def psum_bank_fmax(self) -> int:
        """Float32 elements of a bank."""
        return current_target().psum_bank_bytes // 4

    psum_fmax = psum_bank_fmax

    @property
    def psum_bank_fmax_bytes(self) -> int:
        return current_target().psum_bank_bytes

    psum_fmax_bytes = psum_bank_fmax_bytes

    @property
    def psum_num_banks(self) -> int:
        return current_target().psum_banks

    @property
    def sbuf_size_bytes(self) -> int:
        return current_target().partitions * current_target().sbuf_usable_bytes

    @property
    def sbuf_fmax(self) -> int:
        """Float32 elements of a partition."""
        return current_target().sbuf_usable_bytes // 4

    @property
    def sbuf_fmax_bytes(self) -> int:
        return current_target().sbuf_usable_bytes

    total_available_sbuf_size = sbuf_fmax_bytes


tile_size = TileSize()
