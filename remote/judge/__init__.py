"""The judge: static rules, duplicates, traced programs, and whether outputs are right.

Nothing here runs a kernel. `targets/<family>/judge` finds duplicates, reads sources and takes a traced
program through all stages. Here is what all targets share: inputs from `suite`, parts of outputs from
`tiles`, the reference on them from `tiled_reference` and `rounding_noise`, and the comparison. docs/judge.md
explains the judge. Open `job.py` first.
"""
