"""A port of older code: rows transposed in blocks, times a triangle of ones, offsets added block by block."""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np


@nki.jit
def cumsum_matmul(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    held = nl.shared_constant(np.tri(128, 128, dtype=np.float32).T)
    triangle = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=triangle, src=held)
    for i in range(m // 128):
        offset = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=offset, value=0.0)
        for k in range(n // 128):
            block = nl.load(x[i * 128 : (i + 1) * 128, k * 128 : (k + 1) * 128])
            turned = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=block)
            columns = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=columns, src=turned)
            sums = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=sums, stationary=columns, moving=triangle)
            done = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=done, data=sums, op0=nl.add, operand0=offset)
            nisa.tensor_copy(dst=offset, src=done[:, 127:128])
            nl.store(out[i * 128 : (i + 1) * 128, k * 128 : (k + 1) * 128], value=done)
    return out
