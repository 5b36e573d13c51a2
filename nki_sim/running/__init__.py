"""Runs a program on NumPy arrays: plans, products, one instruction at a time."""
