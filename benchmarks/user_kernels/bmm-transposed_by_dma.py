"""out[b] = lhs[b] @ rhs[b]: DMA transposes the rows of lhs on their way to SBUF."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of the output tile: partitions of the accumulator
TILE_N = 512  # columns of the output tile: one PSUM bank of float32


@nki.jit
def bmm(lhs, rhs):
    b, m, k = lhs.shape
    n = rhs.shape[2]
    out = nl.ndarray((b, m, n), dtype=lhs.dtype, buffer=nl.shared_hbm)

    for i_b in nl.affine_range(b):
        # The tensor engine contracts over partitions, so the rows of lhs are needed transposed.
        lhs_t = nl.ndarray((k, m), dtype=lhs.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(dst=lhs_t, src=lhs[i_b, :, :])
        rhs_tile = nl.ndarray((k, n), dtype=rhs.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rhs_tile, src=rhs[i_b, :, :])

        for i_m in nl.affine_range(m // TILE_M):
            for i_n in nl.affine_range(n // TILE_N):
                acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(
                    dst=acc,
                    stationary=lhs_t[:, i_m * TILE_M : (i_m + 1) * TILE_M],
                    moving=rhs_tile[:, i_n * TILE_N : (i_n + 1) * TILE_N],
                )
                out_tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=out_tile, src=acc)
                nisa.dma_copy(
                    dst=out[i_b, i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N],
                    src=out_tile,
                )
    return out
