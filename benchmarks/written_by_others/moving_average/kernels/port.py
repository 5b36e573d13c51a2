"""A port of older code: 64 columns at a time, the state kept in HBM between them."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def ema_fwd(x, a):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    state = nl.ndarray((m, 1), dtype=nl.float32, buffer=nl.private_hbm)
    nl.store(state, value=nl.zeros((m, 1), dtype=nl.float32, buffer=nl.sbuf))
    for k in nl.sequential_range(n // 64):
        columns = nl.load(x[:, k * 64 : (k + 1) * 64])
        decays = nl.load(a[:, k * 64 : (k + 1) * 64])
        h = nl.load(state)
        for t in nl.sequential_range(64):
            kept = nl.multiply(h, decays[:, t : t + 1])
            rest = nl.subtract(1.0, decays[:, t : t + 1])
            h = nl.add(kept, nl.multiply(rest, columns[:, t : t + 1]))
            nisa.tensor_copy(dst=columns[:, t : t + 1], src=h)
        nl.store(state, value=h)
        nl.store(out[:, k * 64 : (k + 1) * 64], value=columns)
    return out
