"""A selective scan, step by step: h = exp(delta[t] * a) * h + delta[t] * u[t] * b[t], out[t] = sum of c[t] * h."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_C = 128  # channels of a tile: partitions


@nki.jit
def mamba(delta, u, a, b, c):
    channels, steps = delta.shape
    states = a.shape[1]
    out = nl.ndarray((channels, steps), dtype=delta.dtype, buffer=nl.shared_hbm)

    for i_c in nl.affine_range(channels // TILE_C):
        a_tile = nl.ndarray((TILE_C, states), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a_tile, src=a[i_c * TILE_C : (i_c + 1) * TILE_C, 0:states])
        delta_tile = nl.ndarray((TILE_C, steps), dtype=delta.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=delta_tile, src=delta[i_c * TILE_C : (i_c + 1) * TILE_C, 0:steps])
        u_tile = nl.ndarray((TILE_C, steps), dtype=u.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=u_tile, src=u[i_c * TILE_C : (i_c + 1) * TILE_C, 0:steps])
        delta_u = nl.ndarray((TILE_C, steps), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=delta_u, data1=delta_tile, data2=u_tile, op=nl.multiply)

        out_tile = nl.ndarray((TILE_C, steps), dtype=out.dtype, buffer=nl.sbuf)
        nisa.memset(dst=out_tile, value=0.0)
        for i_s in nl.sequential_range(states):
            b_tile = nl.ndarray((TILE_C, steps), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=b_tile, src=b[i_s : i_s + 1, 0:steps].broadcast(0, TILE_C))
            c_tile = nl.ndarray((TILE_C, steps), dtype=c.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=c_tile, src=c[i_s : i_s + 1, 0:steps].broadcast(0, TILE_C))
            decay = nl.ndarray((TILE_C, steps), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=decay, op=nl.exp, data=delta_tile, scale=a_tile[:, i_s : i_s + 1])
            gain = nl.ndarray((TILE_C, steps), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=gain, data1=delta_u, data2=b_tile, op=nl.multiply)

            state = nl.ndarray((TILE_C, steps), dtype=nl.float32, buffer=nl.sbuf)
            h = nl.ndarray((TILE_C, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=h, value=0.0)
            for t in nl.sequential_range(steps):
                nisa.tensor_tensor(dst=h, data1=h, data2=decay[:, t : t + 1], op=nl.multiply)
                nisa.tensor_tensor(dst=h, data1=h, data2=gain[:, t : t + 1], op=nl.add)
                nisa.tensor_copy(dst=state[:, t : t + 1], src=h)

            seen = nl.ndarray((TILE_C, steps), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=seen, data1=state, data2=c_tile, op=nl.multiply)
            nisa.tensor_tensor(dst=out_tile, data1=out_tile, data2=seen, op=nl.add)
        nisa.dma_copy(dst=out[i_c * TILE_C : (i_c + 1) * TILE_C, 0:steps], src=out_tile)
    return out
