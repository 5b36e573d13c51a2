"""The front end: runs a kernel's Python on shapes and records a program.

`entry` executes kernels, `recorder` records the program, `bind` handles arguments and results, `faults` turns
a kernel's exceptions into errors. `storage`, `views` and `tensor` define what kernels index. `modules` builds
the modules that kernels import: `language` and `isa`, which use `declare`, `registers`, `loops`,
`program_ids` and `sync`; functions that compute are in `lowering`, the older namespace in `legacy`.
`simulate` runs kernels on arrays. The other modules do not import NumPy unless a kernel needs it, because the
jailed tracer starts with this package. Read `entry.py` first.
"""
