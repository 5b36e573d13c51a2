"""The judge: what a kernel's text may contain, which kernels are the same, whether outputs are right.

Nothing here runs a kernel. `normalise` knows duplicates, `rules` reads the source, `numerics` compares
outputs with the reference's, `program` judges a traced program through all its stages.
"""
