"""Translates a reference into a kernel: from a NumPy function's expression to NKI source.

The judge already follows a reference through NumPy to an `ArrayExpression`. Translation goes backwards from
each output: `access.py` has affine indices, `values.py` the operations of one loop nest, and `demand.py`
finds which are needed. `constants.py` recognises index arithmetic in known numbers. `stage.py`,
`elementwise.py` and `combine.py` write one loop nest: one loop lies on the partitions (`layout.py`), and
values are transposed, broadcast and tiled as that needs. `convolution.py` packs rows of convolutions.
`kernel.py` joins loop nests into kernels. `kernel_layout.py` says in which layouts; whoever asked predicts
them, and asks for more near the fastest. Nothing here is trusted: the judge proves the kernel against the
reference. Open `demand.py` first, then `stage.py`.
"""
