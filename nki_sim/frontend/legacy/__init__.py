"""The legacy `neuronxcc.nki` namespace: tiles that operators return, affine index expressions, masks.

It records the same programs as the current namespace. `tiles` defines what kernels handle, `recorder` turns
calls into instructions. Read `tiles.py` first.
"""
