"""By hand for speed: a quarter of the image at a time, first the rows, then half as many columns."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    C, H, W = x.shape
    out = nl.ndarray((C, H // 2, W // 2), dtype=nl.float32, buffer=nl.shared_hbm)
    n = H // 4
    for q in range(4):
        t = nl.ndarray((C, n, W), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[:, q * n : (q + 1) * n, :])
        r = nl.ndarray((C, n // 2, W), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=r, data1=t[:, 0:n:2, :], data2=t[:, 1:n:2, :], op=nl.maximum)
        y = nl.ndarray((C, n // 2, W // 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=y, data1=r[:, :, 0:W:2], data2=r[:, :, 1:W:2], op=nl.maximum)
        nisa.dma_copy(dst=out[:, q * n // 2 : (q + 1) * n // 2, :], src=y)
    return out
