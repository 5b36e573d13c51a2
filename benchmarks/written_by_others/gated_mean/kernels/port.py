"""A port of older code: two passes with the products in HBM between them."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def two_pass(x, g):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    between = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.private_hbm)
    means = nl.ndarray((75, m // 75), dtype=nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(m // 75):
        window = nl.ds(i * 75, 75)
        values, gates = nl.load(x[window, :]), nl.load(g[window, :])
        nisa.activation(dst=gates, op=nl.sigmoid, data=gates)
        nisa.tensor_tensor(dst=values, data1=values, data2=gates, op=nl.multiply)
        nisa.tensor_reduce(dst=means[:, i : i + 1], op=nl.add, data=values, axis=1)
        nl.store(between[window, :], value=values)
    nisa.tensor_scalar(dst=means, data=means, op0=nl.multiply, operand0=1.0 / n)
    for i in nl.affine_range(m // 75):
        window = nl.ds(i * 75, 75)
        values = nl.load(between[window, :])
        nisa.tensor_scalar(dst=values, data=values, op0=nl.subtract, operand0=means[:, i : i + 1])
        nl.store(out[window, :], value=values)
    return out
