"""Follows a reference through NumPy: it is run once on arrays that hold no numbers and record what is done.

It runs where the reference runs, in its jail, and its one product is an `expression`. Open `recording.py`.
"""
