"""The front end: runs a kernel's Python on shapes and records a program.

`storage`, `views` and `tensor` hold what kernels index; `recorder` what is recorded; `entry` executes
kernels, `bind` says what they are called with, `faults` what they do wrong. `modules` are the modules that
kernels import: `language` and `isa` with `declare`, `registers`, `loops`, `program_ids` and `sync` behind
them, functions that compute in `lowering`, the older namespace in `legacy`. `simulate` runs kernels on
arrays. No NumPy elsewhere unless a kernel asks for it: the jailed tracer starts with this.
"""
