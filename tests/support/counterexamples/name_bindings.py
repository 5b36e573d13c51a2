"""Kernels that misled by names that are bound again, and by second names."""

from __future__ import annotations

from tests.support.counterexamples.base import Counterexample

COUNTEREXAMPLES = {
    "half of a tile has a name, and is turned by DMA": Counterexample(
        """
out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=a, value=0.5)
half = a[:, 0:256]
nisa.dma_transpose(dst=half, src=x[0:256, :])
nisa.dma_copy(dst=out, src=a)
return out
""",
        ((512, 128),),
    ),
    "the source of a copy has another name": Counterexample("""
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
nisa.dma_copy(dst=a, src=x[0:128, :])
v = a
a = TILE
nisa.dma_copy(dst=a, src=x[128:256, :])
b = TILE
nisa.tensor_copy(dst=b, src=v)
c = TILE
nisa.tensor_tensor(dst=c, data1=b, data2=a, op=nl.subtract)
nisa.tensor_scalar(dst=c, data=c, op0=nl.add, operand0=1.0)
nisa.dma_copy(dst=out, src=c)
return out
"""),
    "tiles are in a tuple": Counterexample("""
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
nisa.dma_copy(dst=a, src=x[0:128, :])
b = TILE
nisa.dma_copy(dst=b, src=x[128:256, :])
nisa.dma_copy(dst=out, src=b)
b = TILE
nisa.tensor_copy(dst=b, src=a)
pair = (b, a)
nisa.dma_copy(dst=out, src=pair[0])
return out
"""),
    "tiles change names": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
nisa.dma_copy(dst=a, src=x[0:128, :])
b = TILE
nisa.tensor_copy(dst=b, src=a)
c = TILE
nisa.dma_copy(dst=c, src=x[128:256, :])
b, c = c, b
nisa.dma_copy(dst=out[0:128, :], src=b)
nisa.dma_copy(dst=out[128:256, :], src=c)
return out
"""),
    "a tile that an iteration keeps loses its name in it": Counterexample(
        """
out = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.affine_range(4):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    shared = TILE
    nisa.dma_copy(dst=shared, src=w)
    b = TILE
    nisa.tensor_copy(dst=b, src=a)
    a = TILE
    nisa.tensor_tensor(dst=a, data1=b, data2=shared, op=nl.add)
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=a)
return out
""",
        ((512, 256), (128, 256)),
    ),
    "the name of a factor is bound again": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
total = TILE
nisa.memset(dst=total, value=0.0)
for i in nl.sequential_range(2):
    row = TILE
    nisa.dma_copy(dst=row, src=w[i : i + 1, :].broadcast(0, 128))
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    part = TILE
    nisa.tensor_tensor(dst=part, data1=a, data2=row, op=nl.multiply)
    a = TILE
    nisa.memset(dst=a, value=3.0)
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
nisa.dma_copy(dst=out, src=total)
return out
""",
        ((256, 256), (2, 256)),
    ),
    "the name of a row is bound again": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
total = TILE
nisa.memset(dst=total, value=0.0)
for i in nl.sequential_range(2):
    row = TILE
    nisa.dma_copy(dst=row, src=w[2 * i : 2 * i + 1, :].broadcast(0, 128))
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    part = TILE
    nisa.tensor_tensor(dst=part, data1=a, data2=row, op=nl.multiply)
    row = TILE
    nisa.memset(dst=row, value=3.0)
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
nisa.dma_copy(dst=out, src=total)
return out
""",
        ((256, 256), (4, 256)),
    ),
    "tiles of a product change names": Counterexample(
        """
out = nl.ndarray((512, 512), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.affine_range(4):
    a = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    b = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=2.0)
    r = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=r, src=x[0:128, :])
    r, b = b, r
    for j in nl.sequential_range(8):
        c = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=c, data1=b, data2=r, op=nl.subtract)
        nisa.tensor_scalar(dst=c, data=c, op0=nl.maximum, operand0=0.1)
        nisa.tensor_scalar(dst=a, data=c, op0=nl.minimum, operand0=1.0)
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=a)
return out
""",
        ((512, 512),),
    ),
    "a factor has another name": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
total = TILE
nisa.memset(dst=total, value=0.0)
for i in nl.sequential_range(2):
    row = TILE
    nisa.dma_copy(dst=row, src=w[i : i + 1, :].broadcast(0, 128))
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    v = a
    a = TILE
    nisa.memset(dst=a, value=2.0)
    part = TILE
    nisa.tensor_tensor(dst=part, data1=v, data2=row, op=nl.multiply)
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
nisa.dma_copy(dst=out, src=total)
return out
""",
        ((256, 256), (2, 256)),
    ),
    "a summand has another name": Counterexample("""
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
total = TILE
nisa.memset(dst=total, value=0.0)
for i in nl.sequential_range(2):
    part = TILE
    nisa.dma_copy(dst=part, src=x[i * 128 : (i + 1) * 128, :])
    v = part
    part = TILE
    nisa.memset(dst=part, value=2.0)
    nisa.tensor_tensor(dst=total, data1=total, data2=v, op=nl.add)
nisa.dma_copy(dst=out, src=total)
return out
"""),
    "a range is bound again": Counterexample(
        """
out = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.hbm)
z = TILE
nisa.memset(dst=z, value=1.0)
for q in nl.affine_range(4):
    nisa.dma_copy(dst=out[q * 128 : (q + 1) * 128, :], src=z)
if_ = 0
k = 2
for i in nl.affine_range(k):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
k = 4
for j in nl.affine_range(k // 2):
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
""",
        ((512, 256),),
    ),
    "a range that sums is bound again": Counterexample(
        """
out = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.hbm)
total = TILE
nisa.memset(dst=total, value=0.0)
k = 2
for i in nl.sequential_range(k):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.tensor_tensor(dst=total, data1=total, data2=a, op=nl.add)
k = 4
for j in nl.affine_range(k // 2):
    b = TILE
    nisa.dma_copy(dst=b, src=x[j * 128 : (j + 1) * 128, :])
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
nisa.dma_copy(dst=out[256:384, :], src=total)
nisa.dma_copy(dst=out[384:512, :], src=total)
return out
""",
        ((512, 256),),
    ),
    "the destination of a copy was another tile": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
nisa.dma_copy(dst=a, src=x[0:128, :])
b = TILE
t = TILE
nisa.activation(dst=t, op=nl.tanh, data=a)
nisa.activation(dst=b, op=nl.exp, data=t)
a = TILE
nisa.tensor_copy(dst=a, src=b)
nisa.dma_copy(dst=out[0:128, :], src=a)
nisa.dma_copy(dst=out[128:256, :], src=a)
return out
"""),
    "the size of a copy's destination was another": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
v = TILE
nisa.dma_copy(dst=v, src=x[0:128, :])
n = 128
b = TILE
n = 256
nisa.activation(dst=b, op=nl.exp, data=v)
a = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_copy(dst=a, src=b)
nisa.dma_copy(dst=out[0:128, :], src=a)
nisa.dma_copy(dst=out[128:256, :], src=a)
return out
"""),
    "a tile of two loops is used later": Counterexample("""
out = nl.ndarray((384, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
for j in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.activation(dst=a, op=nl.tanh, data=a)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=a)
nisa.dma_copy(dst=out[256:384, :], src=a)
return out
"""),
    "a tile of two loops is used in the next iteration around them": Counterexample("""
out = nl.ndarray((384, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
nisa.memset(dst=a, value=1.0)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for o in nl.sequential_range(2):
    nisa.dma_copy(dst=out[256:384, :], src=a)
    for i in nl.affine_range(2):
        a = TILE
        nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
        nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
    for j in nl.affine_range(2):
        a = TILE
        nisa.dma_copy(dst=a, src=kept[j * 128 : (j + 1) * 128, :])
        nisa.activation(dst=a, op=nl.tanh, data=a)
        nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=a)
return out
"""),
    "the size of what can move is that of a tile of the loop": Counterexample("""
out = nl.ndarray((384, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=a, value=1.0)
nisa.dma_copy(dst=out[256:384, 0:128], src=a)
nisa.dma_copy(dst=out[256:384, 128:256], src=a)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    b = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=b, value=2.0)
    nisa.activation(dst=a[:, 0 : b.shape[1]], op=nl.tanh, data=b)
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=a)
return out
"""),
}
