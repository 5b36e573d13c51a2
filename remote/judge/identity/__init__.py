"""Checks whether a program computes the reference's formula, beyond what random inputs can show.

Both are evaluated over a *domain*: numbers other than floats. In `residues` the elements of the inputs are
secret symbols of two prime fields, so two formulas agree exactly when they are the same, up to a chance of
about their degree in two thousand million. In `dependence_domain` elements carry sets of input elements,
which show what an output depends on. The reference's own jailed process traces it through NumPy into an
`expression`. Open `domain.py` first.
"""
