"""Drivers that run public NKI corpora on the simulator; `benchmarks/compat.py` is the command.

Corpora are checkouts that the person points at; nothing of them is kept here, and no file of theirs is named
in a table. Open `outcome.py` first, then the kind in question: `pairs`, `samples` or `library`.
"""
