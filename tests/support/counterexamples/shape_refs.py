"""Kernels that misled by what is said beside operands: assertions, sizes, how arguments are given."""

from __future__ import annotations

from tests.support.counterexamples.base import Counterexample

COUNTEREXAMPLES = {
    "a tile that an iteration keeps is asserted to have its size": Counterexample(
        """
out = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.affine_range(4):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    shared = TILE
    nisa.dma_copy(dst=shared, src=w)
    assert a.shape == (128, 256)
    nisa.tensor_tensor(dst=a, data1=a, data2=shared, op=nl.add)
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=a)
return out
""",
        ((512, 256), (128, 256)),
    ),
    "a data type is bound again": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
dt = nl.float32
b = nl.ndarray((128, 256), dtype=dt, buffer=nl.sbuf)
dt = nl.bfloat16
for k in nl.sequential_range(2):
    nisa.dma_copy(dst=b, src=x[k * 128 : (k + 1) * 128, :])
    nisa.dma_copy(dst=out[k * 128 : (k + 1) * 128, :], src=b)
return out
"""),
    "something is asserted of tiles": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
t = TILE
assert t.shape[1] == x.shape[1]
for k in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[k * 128 : (k + 1) * 128, :])
    b = TILE
    nisa.tensor_copy(dst=b, src=a)
    assert b.shape == a.shape
    c = TILE
    nisa.tensor_copy(dst=c, src=a)
    nisa.activation(dst=t, op=nl.tanh, data=b)
    nisa.dma_copy(dst=out[k * 128 : (k + 1) * 128, :], src=t)
return out
"""),
    "arguments have no keywords": Counterexample(
        """
out = nl.ndarray((512, 512), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.affine_range(4):
    a = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(a, x[i * 128 : (i + 1) * 128, :])
    c = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(b, a, nl.multiply, 2.0)
    nisa.tensor_tensor(b, a, b, nl.add)
    d = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(d, a, b, nl.add)
    nisa.tensor_copy(c, d)
    nisa.tensor_tensor(c, c, b, nl.multiply)
    e = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(e, a, c, nl.multiply)
    nisa.dma_copy(out[i * 128 : (i + 1) * 128, :], e)
return out
""",
        ((512, 512),),
    ),
    "arguments of a sum have no keywords": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
total = TILE
nisa.memset(total, 0.0)
for i in nl.sequential_range(2):
    row = TILE
    nisa.dma_copy(row, w[i : i + 1, :].broadcast(0, 128))
    a = TILE
    nisa.dma_copy(a, x[i * 128 : (i + 1) * 128, :])
    part = TILE
    nisa.tensor_tensor(part, a, row, nl.multiply)
    nisa.tensor_tensor(total, total, part, nl.add)
nisa.dma_copy(out, total)
return out
""",
        ((256, 256), (2, 256)),
    ),
    "zeros have both signs": Counterexample("""
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
nisa.dma_copy(dst=a, src=x[0:128, :])
b = TILE
nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=0.0)
c = TILE
nisa.tensor_scalar(dst=c, data=a, op0=nl.multiply, operand0=-0.0)
d = TILE
nisa.reciprocal(dst=d, data=c)
nisa.tensor_scalar(dst=d, data=d, op0=nl.minimum, operand0=1.0, op1=nl.maximum, operand1=-1.0)
nisa.tensor_tensor(dst=d, data1=d, data2=b, op=nl.add)
nisa.dma_copy(dst=out, src=d)
return out
"""),
    "numbers are random": Counterexample("""
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 256), dtype=nl.uint32, buffer=nl.sbuf)
nisa.rng(dst=a)
b = nl.ndarray((128, 256), dtype=nl.uint32, buffer=nl.sbuf)
nisa.rng(dst=b)
c = TILE
nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.subtract)
nisa.dma_copy(dst=out, src=c)
return out
"""),
    "something is asserted of what was stored": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
for j in nl.affine_range(2):
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    assert b.shape == (128, 256)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
"""),
    "a size is that of a tile": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
z = TILE
nisa.memset(dst=z, value=1.0)
nisa.dma_copy(dst=out[0:128, :], src=z)
nisa.dma_copy(dst=out[128:256, :], src=z)
t = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=x[0:128, 0:128])
nisa.dma_copy(dst=out[0:128, 0:128], src=t)
t = TILE
k = t.shape[1]
for i in nl.affine_range(2):
    nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, 0:k], src=t[:, 0:k])
return out
"""),
    "a copy has no keywords": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
nisa.dma_copy(a, x[0:128, :])
c = TILE
b = TILE
nisa.activation(b, nl.tanh, a)
nisa.tensor_copy(c, b)
nisa.dma_copy(out, c)
return out
""",
        ((128, 256),),
    ),
    "what is shared has no keywords": Counterexample(
        """
out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(a, x[0:128, :])
b = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.dma_copy(b, x[0:128, :])
c = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_tensor(c, a, b, nl.add)
nisa.dma_copy(out, c)
return out
""",
        ((128, 512),),
    ),
    "something is asserted of what nothing reads": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
nisa.dma_copy(dst=a, src=x[0:128, :])
b = TILE
nisa.tensor_copy(dst=b, src=a)
assert b.shape == a.shape
nisa.dma_copy(dst=out, src=a)
return out
""",
        ((128, 256),),
    ),
    "something is asserted of a twin": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
nisa.dma_copy(dst=a, src=x[0:128, :])
b = TILE
nisa.dma_copy(dst=b, src=x[0:128, :])
assert b.shape == a.shape
c = TILE
nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)
nisa.dma_copy(dst=out, src=c)
return out
""",
        ((128, 256),),
    ),
    "an index is asserted after its loop": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
for j in range(2):
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
assert j == 1
return out
"""),
    "the size of what is copied is an operand": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
c = TILE
nisa.memset(dst=c, value=1.0)
v = TILE
nisa.dma_copy(dst=v, src=x[0:128, :])
a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=a, value=1.0)
nisa.dma_copy(dst=out[128:256, 0:128], src=a)
nisa.dma_copy(dst=out[128:256, 128:256], src=a)
b = TILE
a = TILE
nisa.activation(dst=a, op=nl.exp, data=v)
nisa.tensor_copy(dst=b, src=a)
nisa.memset(dst=c[:, 0 : a.shape[1]], value=2.0)
nisa.tensor_tensor(dst=b, data1=b, data2=c, op=nl.add)
nisa.dma_copy(dst=out[0:128, :], src=b)
return out
"""),
    "the size of a copy is an operand": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
c = TILE
nisa.memset(dst=c, value=1.0)
v = TILE
nisa.dma_copy(dst=v, src=x[0:128, :])
a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=a, value=1.0)
nisa.dma_copy(dst=out[128:256, 0:128], src=a)
nisa.dma_copy(dst=out[128:256, 128:256], src=a)
a = TILE
nisa.tensor_copy(dst=a, src=v)
nisa.memset(dst=c[:, 0 : a.shape[1]], value=2.0)
nisa.tensor_tensor(dst=c, data1=c, data2=a, op=nl.add)
nisa.dma_copy(dst=out[0:128, :], src=c)
return out
"""),
    "the size of what nothing reads is an operand": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
c = TILE
nisa.memset(dst=c, value=1.0)
v = TILE
nisa.dma_copy(dst=v, src=x[0:128, :])
a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=a, value=1.0)
nisa.dma_copy(dst=out[128:256, 0:128], src=a)
nisa.dma_copy(dst=out[128:256, 128:256], src=a)
a = TILE
nisa.memset(dst=a, value=1.0)
nisa.memset(dst=c[:, 0 : a.shape[1]], value=2.0)
nisa.tensor_tensor(dst=c, data1=c, data2=v, op=nl.add)
nisa.dma_copy(dst=out[0:128, :], src=c)
return out
"""),
    "the size of a twin is an operand": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
c = TILE
nisa.memset(dst=c, value=1.0)
v = TILE
nisa.dma_copy(dst=v, src=x[0:128, :])
b = TILE
nisa.activation(dst=b, op=nl.exp, data=v)
a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=a, value=1.0)
nisa.dma_copy(dst=out[128:256, 0:128], src=a)
nisa.dma_copy(dst=out[128:256, 128:256], src=a)
a = TILE
nisa.activation(dst=a, op=nl.exp, data=v)
nisa.memset(dst=c[:, 0 : a.shape[1]], value=2.0)
nisa.tensor_tensor(dst=c, data1=c, data2=a, op=nl.add)
nisa.tensor_tensor(dst=c, data1=c, data2=b, op=nl.add)
nisa.dma_copy(dst=out[0:128, :], src=c)
return out
"""),
    "what is returned depends on the size of a tile": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=a, value=1.0)
c = TILE
nisa.dma_copy(dst=c, src=x[0:128, :])
nisa.dma_copy(dst=out[0:128, :], src=c)
nisa.dma_copy(dst=out[128:256, :], src=c)
return out if a.shape[0] == 128 else x
"""),
    "the size of a tile is told by another one": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.affine_range(4):
    a = nl.ndarray((32, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[i * 32 : (i + 1) * 32, :])
    b = nl.ndarray((a.shape[0], 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=b, op=nl.tanh, data=a)
    nisa.dma_copy(dst=out[i * 32 : (i + 1) * 32, :], src=b)
return out
""",
        ((128, 256),),
    ),
    "a tile is asserted of between two loops": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
assert a.shape[1] == 256
for j in nl.affine_range(2):
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.activation(dst=b, op=nl.tanh, data=b)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
"""),
    "an index is asserted between two loops": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
assert i == 1
for j in nl.affine_range(2):
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.activation(dst=b, op=nl.tanh, data=b)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
"""),
    "a name is asserted of in a loop and bound after it": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
k = 3
for i in nl.affine_range(2):
    a = TILE
    assert k == 3
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
k = 7
for j in nl.affine_range(2):
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.activation(dst=b, op=nl.tanh, data=b)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
"""),
    "a name is asserted of in a loop and bound in the next one": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
k = 3
for i in nl.affine_range(2):
    a = TILE
    assert k == 3
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
for j in nl.affine_range(2):
    k = 7
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.activation(dst=b, op=nl.tanh, data=b)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
"""),
    "a tile of two loops is asserted of later": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
for j in nl.affine_range(2):
    a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=kept[j * 128 : (j + 1) * 128, 0:128])
    nisa.activation(dst=a, op=nl.tanh, data=a)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, 0:128], src=a)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, 128:256], src=a)
assert a.shape == (128, 128)
return out
"""),
    "the size of a tile is told by one that gets a place for each iteration": Counterexample(
        """
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.affine_range(2):
    a = nl.ndarray((128, 2, 128), dtype=nl.float32, buffer=nl.sbuf)
    for q in nl.affine_range(2):
        nisa.dma_copy(dst=a[:, q, :], src=x[i * 128 : (i + 1) * 128, q * 128 : (q + 1) * 128])
    b = nl.ndarray((a.shape[0], a.shape[1], 128), dtype=nl.float32, buffer=nl.sbuf)
    for q in nl.affine_range(2):
        nisa.activation(dst=b[:, q, :], op=nl.tanh, data=a[:, q, :])
    for q in nl.affine_range(2):
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, q * 128 : (q + 1) * 128], src=b[:, q, :])
return out
""",
    ),
}
