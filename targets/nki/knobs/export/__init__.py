"""A run told in the files that the tune-kernel workflow expects, read off the log and never read back.

`gather.py` reads a run's kernels out of the log, `figures.py` computes what is said of each, `files.py` lays
out their files, `export.py` writes them. What does not live here: the run itself. Open `export.py` first.
"""
