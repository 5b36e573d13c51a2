"""As a tutorial writes it: one column after the other is added to the one before."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def cumsum(x):
    rows, cols = x.shape
    out = nl.ndarray((rows, cols), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(rows // 128):
        tile = nl.load(x[i * 128 : (i + 1) * 128, :])
        for j in nl.sequential_range(1, cols):
            nisa.tensor_tensor(
                dst=tile[:, j : j + 1], data1=tile[:, j : j + 1], data2=tile[:, j - 1 : j], op=nl.add
            )
        nl.store(out[i * 128 : (i + 1) * 128, :], tile)
    return out
