"""By hand for speed: whole rows, the maximum negated where it is found, the sum beside the exponential."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        t = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, :])
        peak = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=peak, op=nl.maximum, data=t, axis=1, negate=True)
        exps = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=exps, op=nl.exp, data=t, bias=peak, reduce_op=nl.add, reduce_res=total)
        inverse = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=total)
        y = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=y, data=exps, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=y)
    return out
