"""Kernels that misled by views: parts of tensors, permuted, reshaped or counted from the end."""

from __future__ import annotations

from tests.support.counterexamples.base import Counterexample

COUNTEREXAMPLES = {
    "a window has its size before its start": Counterexample(
        """
out = nl.ndarray((128, 768), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 768), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=a, value=1.0)
nisa.dma_transpose(dst=a[:, nl.ds(size=256, start=512)], src=x[nl.ds(size=256, start=512), :])
nisa.dma_copy(dst=out, src=a)
return out
""",
        ((768, 128),),
    ),
    "columns are counted from the end": Counterexample("""
out = nl.ndarray((256, 32), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = nl.ndarray((128, 192), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, 0:192])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, 0:192], src=a)
for j in nl.affine_range(2):
    b = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, -96:-64])
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
"""),
    "a load is permuted": Counterexample(
        """
out = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=a.permute((0, 2, 1)), src=x)
b = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=b, src=x)
c = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)
nisa.dma_copy(dst=out, src=c)
return out
""",
        ((128, 16, 16),),
    ),
    "a copy permutes": Counterexample(
        """
out = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=a, src=x)
c = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
b = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.activation(dst=b, op=nl.tanh, data=a)
nisa.tensor_copy(dst=c, src=b.permute((0, 2, 1)))
nisa.dma_copy(dst=out, src=c)
return out
""",
        ((128, 16, 16),),
    ),
    "the writer of what is copied permutes": Counterexample(
        """
out = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=a, src=x)
c = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
b = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.activation(dst=b.permute((0, 2, 1)), op=nl.tanh, data=a)
nisa.tensor_copy(dst=c, src=b)
nisa.dma_copy(dst=out, src=c)
return out
""",
        ((128, 16, 16),),
    ),
    "a copy reshapes": Counterexample(
        """
out = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=a, src=x)
c = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
b = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.activation(dst=b, op=nl.tanh, data=a)
nisa.tensor_copy(dst=c.reshape((128, 256)), src=b.reshape((128, 256)))
nisa.dma_copy(dst=out, src=c)
return out
""",
        ((128, 16, 16),),
    ),
    "a copy goes to a permuted view": Counterexample(
        """
out = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=a, src=x)
c = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
b = nl.ndarray((128, 16, 16), dtype=nl.float32, buffer=nl.sbuf)
nisa.activation(dst=b, op=nl.tanh, data=a)
nisa.tensor_copy(dst=c.permute((0, 2, 1)), src=b)
nisa.dma_copy(dst=out, src=c)
return out
""",
        ((128, 16, 16),),
    ),
    "a load reshapes": Counterexample("""
out = nl.ndarray((256, 2, 128), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
for j in nl.affine_range(2):
    b = nl.ndarray((128, 2, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :, :], src=b)
return out
"""),
    "a load reshapes partitions": Counterexample("""
out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
for j in nl.affine_range(2):
    b = nl.ndarray((64, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.dma_copy(dst=out[j * 64 : (j + 1) * 64, :], src=b)
return out
"""),
    "a load begins at an odd partition": Counterexample(
        """
out = nl.ndarray((160, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((160, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = nl.ndarray((80, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[i * 80 : (i + 1) * 80, :])
    nisa.dma_copy(dst=kept[i * 80 : (i + 1) * 80, :], src=a)
for j in nl.affine_range(2):
    b = TILE
    nisa.dma_copy(dst=b[32:112, :], src=kept[j * 80 : (j + 1) * 80, :])
    nisa.dma_copy(dst=out[j * 80 : (j + 1) * 80, :], src=b[32:112, :])
return out
""",
        ((160, 256),),
    ),
    "a row is in brackets": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
total = TILE
nisa.memset(dst=total, value=0.0)
for i in nl.sequential_range(2):
    row = TILE
    nisa.dma_copy(dst=row, src=(w[i : i + 1, :]).broadcast(0, 128))
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    part = TILE
    nisa.tensor_tensor(dst=part, data1=a, data2=row, op=nl.multiply)
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
nisa.dma_copy(dst=out, src=total)
return out
""",
        ((256, 256), (2, 256)),
    ),
    "a view is named outside the loop": Counterexample(
        """
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
v = x[256:512, :]
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=v[i * 128 : (i + 1) * 128, :])
    b = TILE
    nisa.activation(dst=b, op=nl.tanh, data=a)
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=b)
return out
""",
        ((512, 256),),
    ),
    "a view is named outside two loops": Counterexample(
        """
out = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.shared_hbm)
v = x[256:512, :]
for k in nl.affine_range(2):
    for i in nl.affine_range(2):
        a = TILE
        nisa.dma_copy(dst=a, src=v[i * 128 : (i + 1) * 128, :])
        b = TILE
        nisa.activation(dst=b, op=nl.tanh, data=a)
        nisa.dma_copy(dst=out[k * 256 + i * 128 : k * 256 + (i + 1) * 128, :], src=b)
return out
""",
        ((512, 256),),
    ),
    "what is written has a view with a name": Counterexample("""
out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
lo = out[:, 0:256]
hi = out[:, 256:512]
z = TILE
nisa.dma_copy(dst=z, src=x[128:256, :])
nisa.dma_copy(dst=lo, src=z)
for i in nl.affine_range(4):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:128, i * 64 : (i + 1) * 64])
    b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=b, op=nl.tanh, data=a)
    nisa.dma_copy(dst=hi[:, i * 64 : (i + 1) * 64], src=b)
return out
"""),
    "an index into a view is negative in one iteration": Counterexample(
        """
out = nl.ndarray((5, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((16, 256), dtype=nl.float32, buffer=nl.hbm)
z = nl.ndarray((16, 256), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=z, value=1.0)
nisa.dma_copy(dst=out, src=z[0:5, :])
nisa.dma_copy(dst=kept, src=z)
for i in nl.affine_range(3):
    a = nl.ndarray((1, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[i : i + 1, :])
    nisa.dma_copy(dst=kept[4 + 2 * i, :], src=a[0, :])
for j in nl.affine_range(3):
    b = nl.ndarray((1, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b[0, :], src=kept[4:9, :][2 * j - 1, :])
    nisa.dma_copy(dst=out[j : j + 1, :], src=b)
return out
""",
        ((16, 256),),
    ),
    "a list is counted from its end": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
tiles = [TILE for _ in range(2)]
nisa.dma_copy(dst=tiles[-1], src=x[0:128, :])
nisa.dma_copy(dst=tiles[0], src=x[128:256, :])
nisa.dma_copy(dst=out[0:128, :], src=tiles[1])
nisa.activation(dst=tiles[-1], op=nl.tanh, data=tiles[1])
nisa.tensor_tensor(dst=tiles[0], data1=tiles[0], data2=tiles[1], op=nl.add)
nisa.dma_copy(dst=out[128:256, :], src=tiles[0])
return out
"""),
    "a recurrence is carried in some partitions": Counterexample(
        """
out = nl.ndarray((256, 32), dtype=nl.float32, buffer=nl.shared_hbm)
s = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=s, src=x)
b = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=b, src=w)
o = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=o, value=0.0)
z = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=z, value=1.0)
h = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=h, value=0.5)
for t in nl.sequential_range(32):
    nisa.tensor_tensor(dst=h[0:64, :], data1=h[0:64, :], data2=s[0:64, t : t + 1], op=nl.multiply)
    nisa.tensor_tensor(dst=h[0:64, :], data1=h[0:64, :], data2=b[0:64, t : t + 1], op=nl.add)
nisa.tensor_copy(dst=z[:, 0:1], src=h)
nisa.dma_copy(dst=out[0:128, :], src=o)
nisa.dma_copy(dst=out[128:256, :], src=z)
return out
""",
        ((128, 32), (128, 32)),
    ),
}
