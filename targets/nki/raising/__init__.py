"""Raising: from what a kernel does to a form that every rewrite reads.

The rewrites (`../rewrites`) read source, and source says the same thing in many ways. A kernel's Python is
run anyway, in the jail, and the program that it issues is data. Raising finds the loops in that program
(`loop_recognition.py`) and the declarations of its tiles (`tile_families.py`), and writes the kernel anew
(`canonical_source.py`). The new kernel counts only if it issues the same program (`raiser.py`).
Open `raiser.py` first.
"""
