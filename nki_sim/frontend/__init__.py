"""The front end of the current `nki.*` namespace: runs a kernel's Python on shapes and records a program.

`tensor` holds the handles that kernels index, `recorder` what is recorded, `language` and `isa` the two
namespaces kernels import, `entry` executes a kernel file. No NumPy here: the jailed tracer starts with it.
"""
