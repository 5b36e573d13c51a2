"""The legacy `neuronxcc.nki` namespace: tiles that operators return, affine index expressions, masks.

It records the same programs as the current namespace. `tiles` holds what kernels handle, `issue` how a call
becomes an instruction; begin there.
"""
