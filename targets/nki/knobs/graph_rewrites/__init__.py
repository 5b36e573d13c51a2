"""Graph rewrites of a workload: each replaces calls by others that compute the same, one per file.

A rewrite is applied wherever it can be at once, or is refused with the reason. `base.py` defines rewrites and
makes graphs of edited calls; `variants.py`, outside, makes a variant of every subset. Open `base.py` first.
"""
