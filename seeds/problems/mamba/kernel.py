"""A selective scan: h[t] = exp(delta[t] * a) * h[t - 1] + delta[t] * u[t] * b[t], out[t] = sum of c[t] * h[t].

Channels are on partitions and the sequence is in the free dimension, cut into tiles because whole rows of all
operands do not fit on chip. Each state of a channel is scanned on its own and carried from tile to tile.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_C = 128  # channels of a tile: partitions
TILE_M = 1024  # steps of a tile


@nki.jit
def mamba(delta, u, a, b, c):
    channels, steps = delta.shape
    states = a.shape[1]
    out = nl.ndarray((channels, steps), dtype=delta.dtype, buffer=nl.shared_hbm)

    for i_c in nl.affine_range(channels // TILE_C):
        a_tile = nl.ndarray((TILE_C, states), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a_tile, src=a[i_c * TILE_C : (i_c + 1) * TILE_C, 0:states])
        last = nl.ndarray((TILE_C, states), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=last, value=0.0)

        for i_m in nl.sequential_range(steps // TILE_M):
            delta_tile = nl.ndarray((TILE_C, TILE_M), dtype=delta.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=delta_tile,
                src=delta[i_c * TILE_C : (i_c + 1) * TILE_C, i_m * TILE_M : (i_m + 1) * TILE_M],
            )
            u_tile = nl.ndarray((TILE_C, TILE_M), dtype=u.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=u_tile, src=u[i_c * TILE_C : (i_c + 1) * TILE_C, i_m * TILE_M : (i_m + 1) * TILE_M]
            )
            delta_u = nl.ndarray((TILE_C, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=delta_u, data1=delta_tile, data2=u_tile, op=nl.multiply)

            out_tile = nl.ndarray((TILE_C, TILE_M), dtype=out.dtype, buffer=nl.sbuf)
            nisa.memset(dst=out_tile, value=0.0)
            for i_s in nl.sequential_range(states):
                # b and c belong to states and steps, so every channel needs the same row of them.
                b_tile = nl.ndarray((TILE_C, TILE_M), dtype=b.dtype, buffer=nl.sbuf)
                b_row = b[i_s : i_s + 1, i_m * TILE_M : (i_m + 1) * TILE_M]
                nisa.dma_copy(dst=b_tile, src=b_row.broadcast(0, TILE_C))
                c_tile = nl.ndarray((TILE_C, TILE_M), dtype=c.dtype, buffer=nl.sbuf)
                c_row = c[i_s : i_s + 1, i_m * TILE_M : (i_m + 1) * TILE_M]
                nisa.dma_copy(dst=c_tile, src=c_row.broadcast(0, TILE_C))

                decay = nl.ndarray((TILE_C, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=decay, op=nl.exp, data=delta_tile, scale=a_tile[:, i_s : i_s + 1])
                gain = nl.ndarray((TILE_C, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=gain, data1=delta_u, data2=b_tile, op=nl.multiply)
                state = nl.ndarray((TILE_C, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor_scan(
                    dst=state,
                    data0=decay,
                    data1=gain,
                    initial=last[:, i_s : i_s + 1],
                    op0=nl.multiply,
                    op1=nl.add,
                )
                nisa.tensor_copy(dst=last[:, i_s : i_s + 1], src=state[:, TILE_M - 1 : TILE_M])

                seen = nl.ndarray((TILE_C, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=seen, data1=state, data2=c_tile, op=nl.multiply)
                nisa.tensor_tensor(dst=out_tile, data1=out_tile, data2=seen, op=nl.add)

            nisa.dma_copy(
                dst=out[i_c * TILE_C : (i_c + 1) * TILE_C, i_m * TILE_M : (i_m + 1) * TILE_M], src=out_tile
            )
    return out
