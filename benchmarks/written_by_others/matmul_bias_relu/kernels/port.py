"""A port of older code: depth and columns in ragged blocks, all of an operand in one 3-d tile."""

import nki
import nki.isa as nisa
import nki.language as nl

COLUMNS = [(start, min(start + 160, 768)) for start in range(0, 768, 160)]


@nki.jit
def mm_fwd(a_t, b, bias):
    out = nl.ndarray((256, 768), dtype=nl.float32, buffer=nl.shared_hbm)
    lhs = nl.ndarray((96, 4, 256), dtype=nl.float32, buffer=nl.sbuf)
    rhs = nl.ndarray((96, 4, 768), dtype=nl.float32, buffer=nl.sbuf)
    for k in range(4):
        nisa.dma_copy(dst=lhs[:, k, :], src=a_t[k * 96 : (k + 1) * 96, :])
        nisa.dma_copy(dst=rhs[:, k, :], src=b[k * 96 : (k + 1) * 96, :])
    for m in range(2):
        for first, last in COLUMNS:
            acc = nl.ndarray((128, last - first), dtype=nl.float32, buffer=nl.psum)
            for k in range(4):
                nisa.nc_matmul(acc, lhs[:, k, m * 128 : (m + 1) * 128], rhs[:, k, first:last])
            shift = nl.ndarray((128, last - first), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=shift, src=bias[:, first:last].broadcast(0, 128))
            nisa.tensor_tensor(dst=shift, data1=acc, data2=shift, op=nl.add)
            nisa.tensor_scalar(dst=shift, data=shift, op0=nl.maximum, operand0=0.0)
            nisa.dma_copy(dst=out[m * 128 : (m + 1) * 128, first:last], src=shift)
    return out
