"""As a tutorial writes it: nl.load and nl.store, one operation of nl.* a line."""

import nki
import nki.language as nl


@nki.jit
def rmsnorm(x, weight):
    rows, cols = x.shape
    out = nl.ndarray((rows, cols), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(rows // 128):
        tile = nl.load(x[i * 128 : (i + 1) * 128, :])
        squares = nl.multiply(tile, tile)
        total = nl.sum(squares, axis=1)
        mean = nl.multiply(total, 1.0 / cols)
        scale = nl.rsqrt(nl.add(mean, 1e-6))
        normed = nl.multiply(tile, scale)
        gain = nl.load(weight.broadcast(0, 128))
        nl.store(out[i * 128 : (i + 1) * 128, :], nl.multiply(normed, gain))
    return out
