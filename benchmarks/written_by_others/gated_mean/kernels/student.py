"""As a student writes it: the sigmoid step by step, 60 rows at a time, every tile reused."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, g):
    out = nl.ndarray((300, 640), dtype=nl.float32, buffer=nl.shared_hbm)
    for r in range(0, 300, 60):
        a = nl.ndarray((60, 640), dtype=nl.float32, buffer=nl.sbuf)
        b = nl.ndarray((60, 640), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[r : r + 60, :])
        nisa.dma_copy(dst=b, src=g[r : r + 60, :])
        nisa.activation(dst=b, op=nl.exp, data=b, scale=-1.0)
        nisa.tensor_scalar(dst=b, data=b, op0=nl.add, operand0=1.0)
        nisa.reciprocal(dst=b, data=b)
        nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.multiply)
        s = nl.ndarray((60, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=s, op=nl.add, data=a, axis=1)
        nisa.tensor_scalar(dst=s, data=s, op0=nl.multiply, operand0=1.0 / 640)
        nisa.tensor_scalar(dst=a, data=a, op0=nl.subtract, operand0=s)
        nisa.dma_copy(dst=out[r : r + 60, :], src=a)
    return out
