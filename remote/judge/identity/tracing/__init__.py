"""Traces a reference through NumPy: runs it once on arrays without numbers that record each operation.

It runs where the reference runs, in its jail, and its only product is an `expression`. Open `recording.py`
first.
"""
