"""As a compiler engineer writes it: nested functions that close over the tensors, tiles with a last small one."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, g, rows=128):
    return _build(x, g, rows)


def _build(x, g, rows):
    total, cols = x.shape
    out = nl.ndarray((total, cols), dtype=x.dtype, buffer=nl.shared_hbm)

    def fetch(tensor, start, count):
        tile = nl.ndarray((count, cols), dtype=tensor.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=tensor[nl.ds(start, count), :])
        return tile

    def emit(start, count):
        gates = fetch(g, start, count)
        nisa.activation(dst=gates, op=nl.sigmoid, data=gates)
        gated = fetch(x, start, count)
        nisa.tensor_tensor(dst=gated, data1=gated, data2=gates, op=nl.multiply)
        mean = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=mean, op=nl.add, data=gated, axis=1, negate=True)
        nisa.tensor_scalar(dst=mean, data=mean, op0=nl.multiply, operand0=1.0 / cols)
        nisa.activation(dst=gated, op=nl.copy, data=gated, bias=mean)
        nisa.dma_copy(dst=out[nl.ds(start, count), :], src=gated)

    for start in range(0, total, rows):
        emit(start, min(rows, total - start))
    return out
