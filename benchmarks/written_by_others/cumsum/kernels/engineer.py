"""As a compiler engineer writes it: a scan in chunks, the carry held by a small class."""

import nki
import nki.isa as nisa
import nki.language as nl


class Carry:
    def __init__(self, rows):
        self.column = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=self.column, value=0.0)

    def take_last(self, tile, width):
        nisa.tensor_copy(dst=self.column, src=tile[:, width - 1 : width])


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    width = 128
    ones = nl.ndarray((128, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    for start in range(0, m, 128):
        carry = Carry(128)
        for column in range(0, n, width):
            window = (slice(start, start + 128), slice(column, column + width))
            data = nl.ndarray((128, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=data, src=x[window])
            sums = nl.ndarray((128, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor_scan(
                dst=sums, data0=ones, data1=data, initial=carry.column, op0=nl.multiply, op1=nl.add
            )
            carry.take_last(sums, width)
            nisa.dma_copy(dst=out[window], src=sums)
    return out
