"""Kernels that were built to be rewritten wrongly, each of which once was or might have been."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.kernels import HEADER

TILE = "nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)"


class Trick(NamedTuple):
    """The body of a kernel of `x` (and `w`), in which TILE is a tile, and the shapes of its arguments."""

    body: str
    shapes: tuple[tuple[int, ...], ...] = ((256, 256),)

    @property
    def source(self) -> str:
        """The module."""
        lines = self.body.strip().replace("TILE", TILE).splitlines()
        inside = "\n".join(f"    {line}" if line else line for line in lines)
        return f"{HEADER}\n\n@nki.jit\ndef kernel({', '.join('xw'[: len(self.shapes)])}):\n{inside}\n"


TRICKS = {
    "a condition would ask for another index": Trick("""
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
    "a count of iterations is bound again": Trick("""
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
    "the value of a condition is bound again": Trick("""
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
    "an index is negative in one iteration": Trick(
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
    "columns are counted from the end": Trick("""
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
    "a copy under a condition is read outside it": Trick("""
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
    "one of two twins is made under a condition": Trick("""
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
    "a row is loaded in the first iteration only": Trick(
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
    "a name is bound again in one iteration": Trick("""
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
    "a load is permuted": Trick(
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
    "a copy permutes": Trick(
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
    "the writer of what is copied permutes": Trick(
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
    "a copy reshapes": Trick(
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
    "a copy goes to a permuted view": Trick(
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
    "a loop inside has the same index": Trick(
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
    "a sum is cleared in the first iteration only": Trick("""
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
    "a data type is bound again": Trick("""
out = nl.ndarray((256, 256), dtype=nl.float32, buffer=nl.shared_hbm)
dt = nl.float32
b = nl.ndarray((128, 256), dtype=dt, buffer=nl.sbuf)
dt = nl.bfloat16
for k in nl.sequential_range(2):
    nisa.dma_copy(dst=b, src=x[k * 128 : (k + 1) * 128, :])
    nisa.dma_copy(dst=out[k * 128 : (k + 1) * 128, :], src=b)
return out
"""),
    "the source of a copy has another name": Trick("""
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
    "tiles are in a tuple": Trick("""
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
    "tiles change names": Trick("""
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
    "the name of a factor is bound again": Trick(
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
    "the name of a row is bound again": Trick(
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
    "something is asserted of tiles": Trick("""
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
    "arguments have no keywords": Trick(
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
    "arguments of a sum have no keywords": Trick(
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
    "a load reshapes": Trick("""
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
    "a load reshapes partitions": Trick("""
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
    "a load begins at an odd partition": Trick(
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
    "a bound changes in one iteration": Trick("""
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
    "zeros have both signs": Trick("""
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
    "numbers are random": Trick("""
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
    "something is asserted of what was stored": Trick("""
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
    "tiles of a product change names": Trick(
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
    "a size is that of a tile": Trick("""
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
    "a row is in brackets": Trick(
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
    "a factor has another name": Trick(
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
    "a summand has another name": Trick("""
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
    "a range is bound again": Trick(
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
    "a tile is bound in one iteration and by another name": Trick("""
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
    "a copy has no keywords": Trick(
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
    "a range that sums is bound again": Trick(
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
    "what is shared has no keywords": Trick(
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
    "something is asserted of what nothing reads": Trick(
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
    "something is asserted of a twin": Trick(
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
    "an index is asserted after its loop": Trick("""
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
}
