"""Exponentials into the other field, and logarithms back."""

from __future__ import annotations

import numpy as np

from remote.judge.identity.exponentials import BASE, P, Q, exponential, logarithm


def test_exponentials_are_powers_and_multiply():
    exponents = np.array([0, 1, 2, 32767, 32768, Q - 1], np.uint64)
    assert exponential(exponents).tolist() == [pow(BASE, int(each), P) for each in exponents]
    assert pow(BASE, Q, P) == 1


def test_logarithms_undo_exponentials():
    drawn = np.random.default_rng(0).integers(Q, size=20, dtype=np.uint64)
    exponents = np.concatenate([drawn, np.array([0, 1, (1 << 20) - 1, 1 << 20, Q - 1], np.uint64)])
    assert (logarithm(exponential(exponents)) == exponents).all()
    assert logarithm(np.zeros((0, 3), np.uint64)).shape == (0, 3)
