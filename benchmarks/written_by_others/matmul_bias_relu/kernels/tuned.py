"""By hand for speed: every element of the operands is loaded once, the rest follows each product."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(a_t, b, bias):
    out = nl.ndarray((256, 768), dtype=nl.float32, buffer=nl.shared_hbm)
    shift = nl.ndarray((128, 768), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=shift, src=bias.broadcast(0, 128))
    lhs = nl.ndarray((128, 3, 256), dtype=nl.float32, buffer=nl.sbuf)
    rhs = nl.ndarray((128, 3, 768), dtype=nl.float32, buffer=nl.sbuf)
    for k in nl.affine_range(3):
        nisa.dma_copy(dst=lhs[:, k, :], src=a_t[k * 128 : (k + 1) * 128, :])
        nisa.dma_copy(dst=rhs[:, k, :], src=b[k * 128 : (k + 1) * 128, :])
    for m in nl.affine_range(2):
        row = nl.ndarray((128, 768), dtype=nl.float32, buffer=nl.sbuf)
        for n in nl.affine_range(2):
            acc = nl.ndarray((128, 384), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(3):
                nisa.nc_matmul(
                    dst=acc,
                    stationary=lhs[:, k, m * 128 : (m + 1) * 128],
                    moving=rhs[:, k, n * 384 : (n + 1) * 384],
                )
            part = nl.ndarray((128, 384), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=part, data1=acc, data2=shift[:, n * 384 : (n + 1) * 384], op=nl.add)
            nisa.activation(dst=row[:, n * 384 : (n + 1) * 384], op=nl.relu, data=part)
        nisa.dma_copy(dst=out[m * 128 : (m + 1) * 128, :], src=row)
    return out
