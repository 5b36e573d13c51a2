"""Rewrites of a workload's graph: other calls that compute the same, each a file of its own.

A rewrite applies wherever it can at once, or is refused with the reason. `base.py` says what one is and how
a graph is made of edited calls; `variants.py`, outside, makes a variant of every subset.
"""
