"""Rotary embedding: out = [x0 * cos - x1 * sin; x0 * sin + x1 * cos], x0 and x1 the upper and lower rows."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_N = 2048  # columns of a tile


@nki.jit
def rope_single_freq_apply(x, freqs_cos, freqs_sin):
    d, n = x.shape
    half = d // 2
    out = nl.ndarray((d, n), dtype=x.dtype, buffer=nl.shared_hbm)

    for i_n in nl.affine_range(n // TILE_N):
        # The halves meet element by element, so each gets a tile that begins at partition 0.
        x0 = nl.ndarray((half, TILE_N), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x0, src=x[0:half, i_n * TILE_N : (i_n + 1) * TILE_N])
        x1 = nl.ndarray((half, TILE_N), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x1, src=x[half:d, i_n * TILE_N : (i_n + 1) * TILE_N])
        cos = nl.ndarray((half, TILE_N), dtype=freqs_cos.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=cos, src=freqs_cos[0:half, i_n * TILE_N : (i_n + 1) * TILE_N])
        sin = nl.ndarray((half, TILE_N), dtype=freqs_sin.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=sin, src=freqs_sin[0:half, i_n * TILE_N : (i_n + 1) * TILE_N])

        x0_cos = nl.ndarray((half, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=x0_cos, data1=x0, data2=cos, op=nl.multiply)
        x1_sin = nl.ndarray((half, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=x1_sin, data1=x1, data2=sin, op=nl.multiply)
        out0 = nl.ndarray((half, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out0, data1=x0_cos, data2=x1_sin, op=nl.subtract)
        nisa.dma_copy(dst=out[0:half, i_n * TILE_N : (i_n + 1) * TILE_N], src=out0)

        x0_sin = nl.ndarray((half, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=x0_sin, data1=x0, data2=sin, op=nl.multiply)
        x1_cos = nl.ndarray((half, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=x1_cos, data1=x1, data2=cos, op=nl.multiply)
        out1 = nl.ndarray((half, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out1, data1=x0_sin, data2=x1_cos, op=nl.add)
        nisa.dma_copy(dst=out[half:d, i_n * TILE_N : (i_n + 1) * TILE_N], src=out1)
    return out
