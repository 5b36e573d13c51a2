"""As a compiler engineer writes it: operators over a context object, blocks from a generator."""

import nki
import nki.isa as nisa
import nki.language as nl


class Context:
    def __init__(self, block):
        self.block = block

    def sbuf(self, cols):
        return nl.ndarray((self.block, cols), dtype=nl.float32, buffer=nl.sbuf)

    def psum(self, cols):
        return nl.ndarray((self.block, cols), dtype=nl.float32, buffer=nl.psum)

    def load(self, window):
        tile = nl.ndarray(window.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=window)
        return tile

    def turn(self, tile):
        turned, kept = self.psum(self.block), self.sbuf(self.block)
        nisa.nc_transpose(dst=turned, data=tile)
        nisa.tensor_copy(dst=kept, src=turned)
        return kept


def windows(length, block):
    yield from (slice(start, start + block) for start in range(0, length, block))


def attend(ctx, scores, mask):
    """Exponentials of the masked scores, and the inverse of their sums."""
    logits, weights = ctx.sbuf(scores.shape[1]), ctx.sbuf(scores.shape[1])
    peak, total = ctx.sbuf(1), ctx.sbuf(1)
    nisa.scalar_tensor_tensor(
        dst=logits, data=scores, op0=nl.multiply, operand0=0.125, op1=nl.add, operand1=ctx.load(mask)
    )
    nisa.tensor_reduce(dst=peak, op=nl.maximum, data=logits, axis=1, negate=True)
    nisa.activation(dst=weights, op=nl.exp, data=logits, bias=peak)
    nisa.tensor_reduce(dst=total, op=nl.add, data=weights, axis=1)
    nisa.reciprocal(dst=total, data=total)
    return weights, total


@nki.jit
def kernel(q_t, k_t, v, mask):
    depth, length = q_t.shape
    out = nl.ndarray((length, depth), dtype=nl.float32, buffer=nl.shared_hbm)
    ctx = Context(128)
    keys = ctx.load(k_t)
    values = [ctx.load(v[window, :]) for window in windows(length, ctx.block)]
    for rows in windows(length, ctx.block):
        scores = ctx.psum(length)
        nisa.nc_matmul(dst=scores, stationary=ctx.load(q_t[:, rows]), moving=keys)
        weights, inverse = attend(ctx, scores, mask[rows, :])
        acc = ctx.psum(depth)
        for columns, value in zip(windows(length, ctx.block), values):
            nisa.nc_matmul(dst=acc, stationary=ctx.turn(weights[:, columns]), moving=value)
        done = ctx.sbuf(depth)
        nisa.tensor_scalar(dst=done, data=acc, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[rows, :], src=done)
    return out
