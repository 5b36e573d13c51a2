"""Whether a program computes what the reference computes, beyond what inputs drawn at random can show.

Both are evaluated over a *domain*: numbers other than floats. In `residues` the elements of the inputs are
secret symbols of two prime fields, so that two formulas agree exactly when they are the same one, up to a
chance of about their degree in two thousand million; in `dependence_domain` they carry sets of input
elements, which show what an output depends on. The reference is followed through NumPy into an `expression`,
by its own jailed process. Open `domain.py` first.
"""
