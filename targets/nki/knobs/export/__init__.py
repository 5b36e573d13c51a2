"""Exports a run as the files that the tune-kernel workflow expects, from the log; they are never read back.

`gather.py` reads a run's kernels from the log, `figures.py` computes the figures of each, `files.py` lays out
their files, `export.py` writes them. Open `export.py` first.
"""
