"""The judge: what a kernel's text may contain, which kernels are the same, whether outputs are right.

Nothing here runs a kernel. `normalise` knows duplicates, `rules` reads the source, `program` judges a traced
program through all its stages. `trials` is the stage of numerics: inputs from `suite`, parts of outputs from
`tiles`, the reference on them from `tiled_reference` and `rounding_noise`, types from `precision`;
docs/judge.md explains.
"""
