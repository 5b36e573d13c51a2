"""As a tutorial writes it: four small instructions for each column."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def ema(x, a):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    xt = nl.load(x)
    at = nl.load(a)
    h = nl.zeros((M, 1), dtype=nl.float32, buffer=nl.sbuf)
    y = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.sbuf)
    for t in nl.sequential_range(N):
        d = nl.ndarray((M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=d, data1=h, data2=xt[:, t : t + 1], op=nl.subtract)
        nisa.tensor_tensor(dst=d, data1=d, data2=at[:, t : t + 1], op=nl.multiply)
        nisa.tensor_tensor(dst=h, data1=d, data2=xt[:, t : t + 1], op=nl.add)
        nisa.tensor_copy(dst=y[:, t : t + 1], src=h)
    nl.store(out, y)
    return out
