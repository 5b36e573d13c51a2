"""A port of older code: columns in four pieces that are kept in a list, partial sums beside one another."""

import nki
import nki.isa as nisa
import nki.language as nl

PIECE = 256


@nki.jit
def rmsnorm_fwd(x, weight):
    n_rows, n_cols = x.shape
    y = nl.ndarray((n_rows, n_cols), dtype=nl.float32, buffer=nl.shared_hbm)
    pieces = n_cols // PIECE
    for i_row in nl.sequential_range(0, n_rows, 64):
        loaded = [nl.load(x[i_row : i_row + 64, k * PIECE : (k + 1) * PIECE]) for k in range(pieces)]
        sums = nl.ndarray((64, pieces), dtype=nl.float32, buffer=nl.sbuf)
        for k, part in enumerate(loaded):
            square = nl.ndarray((64, PIECE), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=square, op=nl.square, data=part)
            nisa.tensor_reduce(dst=sums[:, k : k + 1], op=nl.add, data=square, axis=1)
        scale = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=scale, op=nl.add, data=sums, axis=1)
        nisa.tensor_scalar(
            dst=scale, data=scale, op0=nl.multiply, operand0=1.0 / n_cols, op1=nl.add, operand1=1e-6
        )
        nisa.activation(dst=scale, op=nl.rsqrt, data=scale)
        for k, part in enumerate(loaded):
            gain = nl.load(weight[:, k * PIECE : (k + 1) * PIECE].broadcast(0, 64))
            nisa.tensor_scalar(dst=part, data=part, op0=nl.multiply, operand0=scale)
            nisa.tensor_tensor(dst=part, data1=part, data2=gain, op=nl.multiply)
            nl.store(y[i_row : i_row + 64, k * PIECE : (k + 1) * PIECE], value=part)
    return y
