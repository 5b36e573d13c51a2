"""One AdamW step: out = theta * (1 - 1e-5) - 0.01 * m2 / (sqrt(1000 * v2) + 1e-8), element by element."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of a tile: partitions
TILE_N = 1024  # columns of a tile

LEARNING_RATE = 1e-2
DECAY = 1.0 - 1e-5  # what a step leaves of the weights
BETA_1 = 0.9  # m2 = BETA_1 * m + (1 - BETA_1) * g
BETA_2 = 0.999  # v2 = BETA_2 * v + (1 - BETA_2) * g^2
CORRECTION = 1000.0  # 1 / (1 - BETA_2)
EPSILON = 1e-8


@nki.jit
def adamw(theta, g, m, v):
    rows, cols = theta.shape
    out = nl.ndarray((rows, cols), dtype=theta.dtype, buffer=nl.shared_hbm)

    for i_m in nl.affine_range((rows + TILE_M - 1) // TILE_M):
        start = i_m * TILE_M
        end = min(start + TILE_M, rows)  # the last tile may have fewer rows
        size = end - start
        for i_n in nl.affine_range(cols // TILE_N):
            theta_tile = nl.ndarray((size, TILE_N), dtype=theta.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=theta_tile, src=theta[start:end, i_n * TILE_N : (i_n + 1) * TILE_N])
            g_tile = nl.ndarray((size, TILE_N), dtype=g.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=g_tile, src=g[start:end, i_n * TILE_N : (i_n + 1) * TILE_N])
            m_tile = nl.ndarray((size, TILE_N), dtype=m.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=m_tile, src=m[start:end, i_n * TILE_N : (i_n + 1) * TILE_N])
            v_tile = nl.ndarray((size, TILE_N), dtype=v.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=v_tile, src=v[start:end, i_n * TILE_N : (i_n + 1) * TILE_N])

            m_part = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=m_part, data=m_tile, op0=nl.multiply, operand0=BETA_1)
            m2 = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.scalar_tensor_tensor(
                dst=m2, data=g_tile, op0=nl.multiply, operand0=1.0 - BETA_1, op1=nl.add, operand1=m_part
            )

            v_part = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=v_part, data=v_tile, op0=nl.multiply, operand0=BETA_2)
            squares = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=squares, data1=g_tile, data2=g_tile, op=nl.multiply)
            v2 = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.scalar_tensor_tensor(
                dst=v2, data=squares, op0=nl.multiply, operand0=1.0 - BETA_2, op1=nl.add, operand1=v_part
            )

            root = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=root, op=nl.sqrt, data=v2, scale=CORRECTION)
            denominator = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=denominator, data=root, op0=nl.add, operand0=EPSILON)
            inverse = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.reciprocal(dst=inverse, data=denominator)
            ratio = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=ratio, data1=m2, data2=inverse, op=nl.multiply)

            decayed = nl.ndarray((size, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=decayed, data=theta_tile, op0=nl.multiply, operand0=DECAY)
            out_tile = nl.ndarray((size, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
            nisa.scalar_tensor_tensor(
                dst=out_tile,
                data=ratio,
                op0=nl.multiply,
                operand0=-LEARNING_RATE,
                op1=nl.add,
                operand1=decayed,
            )

            nisa.dma_copy(dst=out[start:end, i_n * TILE_N : (i_n + 1) * TILE_N], src=out_tile)
    return out
