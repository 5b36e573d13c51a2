"""As a compiler engineer writes it: a class for tiles of an HBM tensor, a generator for its blocks."""

from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl


@dataclass(frozen=True)
class Block:
    row: int
    rows: int

    def window(self, tensor):
        return tensor[nl.ds(self.row, self.rows), :]


def blocks(total, size):
    for start in range(0, total, size):
        yield Block(start, min(size, total - start))


class RowKernel:
    def __init__(self, source, target):
        self.source, self.target = source, target
        self.cols = source.shape[1]

    def tile(self, rows, cols=None):
        return nl.ndarray((rows, cols or self.cols), dtype=nl.float32, buffer=nl.sbuf)

    def run(self, body, size):
        for block in blocks(self.source.shape[0], size):
            data = self.tile(block.rows)
            nisa.dma_copy(dst=data, src=block.window(self.source))
            nisa.dma_copy(dst=block.window(self.target), src=body(self, data, block.rows))


@nki.jit
def kernel(x, weight):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    runner = RowKernel(x, out)

    def normalise(self, data, rows):
        squares, total = self.tile(rows), self.tile(rows, 1)
        nisa.activation_reduce(dst=squares, op=nl.square, data=data, reduce_op=nl.add, reduce_res=total)
        scale = self.tile(rows, 1)
        nisa.tensor_scalar(
            dst=scale, data=total, op0=nl.multiply, operand0=1.0 / self.cols, op1=nl.add, operand1=1e-6
        )
        nisa.activation(dst=scale, op=nl.rsqrt, data=scale)
        gain = self.tile(rows)
        nisa.dma_copy(dst=gain, src=weight.broadcast(0, rows))
        done = self.tile(rows)
        nisa.scalar_tensor_tensor(
            dst=done, data=data, op0=nl.multiply, operand0=scale, op1=nl.multiply, operand1=gain
        )
        return done

    runner.run(normalise, 100)
    return out
