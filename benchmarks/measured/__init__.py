"""Predictions beside measurements: which kernels were measured, what is predicted, how well it agrees.

Open `cases` first: everything else is a function of its list. `benchmarks/fidelity.py` is the command.
"""
