"""As a compiler engineer writes it: eight image rows as a pattern of five dimensions, reduced over two."""

import nki
import nki.isa as nisa
import nki.language as nl


def blocks(n, size):
    for k in range(n // size):
        yield k * size, (k + 1) * size


@nki.jit
def kernel(x):
    C, H, W = x.shape
    out = nl.ndarray((C, H // 2, W // 2), dtype=nl.float32, buffer=nl.shared_hbm)
    for lo, hi in blocks(H, 8):
        n = hi - lo
        t = nl.ndarray((C, n * W), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t.reshape((C, n, W)), src=x[:, lo:hi, :])
        y = nl.ndarray((C, n // 2, W // 2), dtype=nl.float32, buffer=nl.sbuf)
        view = t.ap(pattern=[[n * W, C], [2 * W, n // 2], [2, W // 2], [W, 2], [1, 2]], offset=0)
        nisa.tensor_reduce(dst=y, op=nl.maximum, data=view, axis=(3, 4))
        nisa.dma_copy(dst=out[:, lo // 2 : hi // 2, :], src=y)
    return out
