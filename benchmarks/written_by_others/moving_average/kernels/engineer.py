"""As a compiler engineer writes it: a scan for each 128 columns, the carries in a list."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, a):
    M, N = x.shape
    F = 128
    out = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.shared_hbm)
    zero = nl.ndarray((M, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    carry = [zero]
    for lo in range(0, N, F):
        xt, at = nl.load(x[:, lo : lo + F]), nl.load(a[:, lo : lo + F])
        b = nl.subtract(xt, nl.multiply(at, xt))
        h = nl.ndarray((M, F), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(dst=h, data0=at, data1=b, initial=carry[-1], op0=nl.multiply, op1=nl.add)
        carry.append(h[:, F - 1 : F])
        nl.store(out[:, lo : lo + F], h)
    return out
