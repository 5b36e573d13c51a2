"""As a student writes it: blocks of 64, sums in SBUF, sizes as numbers."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def my_matmul(a_t, b, bias):
    out = nl.ndarray((256, 768), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in range(4):
        for n in range(12):
            total = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=total, src=bias[:, 64 * n : 64 * n + 64].broadcast(0, 64))
            for k in range(6):
                left = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=a_t[64 * k : 64 * k + 64, 64 * m : 64 * m + 64])
                right = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=right, src=b[64 * k : 64 * k + 64, 64 * n : 64 * n + 64])
                part = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=part, stationary=left, moving=right)
                nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
            nisa.tensor_scalar(dst=total, data=total, op0=nl.maximum, operand0=0.0)
            nisa.dma_copy(dst=out[64 * m : 64 * m + 64, 64 * n : 64 * n + 64], src=total)
    return out
