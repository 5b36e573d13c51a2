"""Kernels that misled by conditions, indices and what holds in one iteration only."""

from __future__ import annotations

from tests.support.counterexamples.base import Counterexample

COUNTEREXAMPLES = {
    "an iteration ends before it adds what it made": Counterexample(
        """
out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=total, value=0.0)
for k in nl.sequential_range(2):
    a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[k * 128 : (k + 1) * 128, 0:128])
    b = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=w[k * 128 : (k + 1) * 128, :])
    part = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=part, stationary=a, moving=b)
    if k == 1:
        continue
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
nisa.dma_copy(dst=out, src=total)
return out
""",
        ((256, 256), (256, 512)),
    ),
    "iterations of an inner loop end before they load": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
a = TILE
for i in nl.sequential_range(2):
    for j in nl.affine_range(2):
        if i > j:
            continue
        here = j * 128
        nisa.dma_copy(dst=a[:, here : here + 128], src=x[i * 128 : (i + 1) * 128, here : here + 128])
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=a)
return out
"""),
    "a condition would ask for another index": Counterexample("""
out = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
z = TILE
nisa.memset(dst=z, value=1.0)
nisa.dma_copy(dst=out[256:384, :], src=z)
nisa.dma_copy(dst=out[384:512, :], src=z)
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
for j in nl.affine_range(2):
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
    for i in nl.affine_range(2):
        if j == 1:
            nisa.dma_copy(dst=out[256 + i * 128 : 256 + (i + 1) * 128, :], src=b)
return out
"""),
    "a count of iterations is bound again": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
k = 1
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    for q in nl.sequential_range(k):
        nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
k = 3
for j in nl.affine_range(2):
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    for q in nl.sequential_range(k):
        nisa.tensor_scalar(dst=b, data=b, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
"""),
    "the value of a condition is bound again": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
k = 0
for i in nl.affine_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    if i == k:
        nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=a)
k = 1
for j in nl.affine_range(2):
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
"""),
    "an index is negative in one iteration": Counterexample(
        """
out = nl.ndarray((5, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((5, 256), dtype=nl.float32, buffer=nl.hbm)
z = nl.ndarray((5, 256), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=z, value=1.0)
nisa.dma_copy(dst=out, src=z)
nisa.dma_copy(dst=kept, src=z)
for i in nl.affine_range(3):
    a = nl.ndarray((1, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[i:i+1, :])
    nisa.dma_copy(dst=kept[2 * i, :], src=a[0, :])
for j in nl.affine_range(3):
    b = nl.ndarray((1, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b[0, :], src=kept[2 * j - 1, :])
    nisa.dma_copy(dst=out[j : j + 1, :], src=b)
return out
""",
        ((8, 256),),
    ),
    "a copy under a condition is read outside it": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.sequential_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    if i == 0:
        b = TILE
        nisa.tensor_copy(dst=b, src=a)
    c = TILE
    nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=c)
return out
"""),
    "one of two twins is made under a condition": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.sequential_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    d = TILE
    nisa.activation(dst=d, op=nl.tanh, data=a)
    if i == 0:
        b = TILE
        nisa.activation(dst=b, op=nl.tanh, data=a)
    c = TILE
    nisa.tensor_tensor(dst=c, data1=d, data2=b, op=nl.add)
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=c)
return out
"""),
    "a row is loaded in the first iteration only": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
total = TILE
nisa.memset(dst=total, value=0.0)
for i in nl.sequential_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    if i == 0:
        row = TILE
        nisa.dma_copy(dst=row, src=w[i : i + 1, :].broadcast(0, 128))
    part = TILE
    nisa.tensor_tensor(dst=part, data1=a, data2=row, op=nl.multiply)
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
nisa.dma_copy(dst=out, src=total)
return out
""",
        ((256, 256), (2, 256)),
    ),
    "a name is bound again in one iteration": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.sequential_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    b = TILE
    nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=2.0)
    if i == 0:
        b = TILE
        nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=3.0)
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=b)
return out
"""),
    "a loop inside has the same index": Counterexample(
        """
out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
total = TILE
nisa.memset(dst=total, value=0.0)
for i in nl.sequential_range(2):
    row = TILE
    nisa.dma_copy(dst=row, src=w[i : i + 1, :].broadcast(0, 128))
    for i in nl.sequential_range(2):
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
    "a sum is cleared in the first iteration only": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
for k in nl.sequential_range(2):
    if k == 0:
        total = TILE
        nisa.memset(dst=total, value=0.0)
    for i in nl.sequential_range(2):
        part = TILE
        nisa.dma_copy(dst=part, src=x[i * 128 : (i + 1) * 128, :])
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out[k * 128 : (k + 1) * 128, :], src=total)
return out
"""),
    "a bound changes in one iteration": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
for i in nl.affine_range(2):
    s = 128
    if i == 0:
        s = 0
    a = TILE
    nisa.dma_copy(dst=a, src=x[s : s + 128, :])
    b = TILE
    nisa.dma_copy(dst=b, src=x[0:128, :])
    c = TILE
    nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.subtract)
    nisa.tensor_scalar(dst=c, data=c, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=c)
return out
"""),
    "a tile is bound in one iteration and by another name": Counterexample("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
kept = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.hbm)
for i in nl.sequential_range(2):
    a = TILE
    nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
    t = a
    nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=t)
for j in nl.sequential_range(2):
    if j == 0:
        t = TILE
        nisa.memset(dst=t, value=2.0)
    b = TILE
    nisa.dma_copy(dst=b, src=kept[j * 128 : (j + 1) * 128, :])
    nisa.tensor_tensor(dst=b, data1=b, data2=t, op=nl.add)
    nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, :], src=b)
return out
"""),
    "the index of a recurrence is asserted later": Counterexample(
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
    nisa.tensor_tensor(dst=h, data1=h, data2=s[:, t : t + 1], op=nl.multiply)
    nisa.tensor_tensor(dst=h, data1=h, data2=b[:, t : t + 1], op=nl.add)
    nisa.tensor_copy(dst=o[:, t : t + 1], src=h)
assert t == 31
nisa.dma_copy(dst=out[0:128, :], src=o)
nisa.dma_copy(dst=out[128:256, :], src=z)
return out
""",
        ((128, 32), (128, 32)),
    ),
    "the index of a recurrence was bound before": Counterexample(
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
t = 3
for t in nl.sequential_range(32):
    nisa.tensor_tensor(dst=h, data1=h, data2=s[:, t : t + 1], op=nl.multiply)
    nisa.tensor_tensor(dst=h, data1=h, data2=b[:, t : t + 1], op=nl.add)
    nisa.tensor_copy(dst=o[:, t : t + 1], src=h)
nisa.memset(dst=z[:, t : t + 1], value=3.0)
nisa.dma_copy(dst=out[0:128, :], src=o)
nisa.dma_copy(dst=out[128:256, :], src=z)
return out
""",
        ((128, 32), (128, 32)),
    ),
    "a recurrence and the loop around it have one index": Counterexample(
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
for t in nl.sequential_range(2):
    for t in nl.sequential_range(32):
        nisa.tensor_tensor(dst=h, data1=h, data2=s[:, t : t + 1], op=nl.multiply)
        nisa.tensor_tensor(dst=h, data1=h, data2=b[:, t : t + 1], op=nl.add)
        nisa.tensor_copy(dst=o[:, t : t + 1], src=h)
    nisa.memset(dst=z[:, t : t + 1], value=3.0)
nisa.dma_copy(dst=out[0:128, :], src=o)
nisa.dma_copy(dst=out[128:256, :], src=z)
return out
""",
        ((128, 32), (128, 32)),
    ),
    "a tile of a recurrence is used later": Counterexample(
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
    nisa.tensor_tensor(dst=h, data1=h, data2=s[:, t : t + 1], op=nl.multiply)
    nisa.tensor_tensor(dst=h, data1=h, data2=b[:, t : t + 1], op=nl.add)
    nisa.tensor_copy(dst=o[:, t : t + 1], src=h)
    q = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=q, value=2.0)
nisa.tensor_copy(dst=z[:, 0:1], src=q)
nisa.dma_copy(dst=out[0:128, :], src=o)
nisa.dma_copy(dst=out[128:256, :], src=z)
return out
""",
        ((128, 32), (128, 32)),
    ),
}
