"""A recurrence in blocks is the recurrence step by step."""

from __future__ import annotations

import numpy as np
import pytest

from remote.judge.identity.dependence_domain import DependenceDomain
from remote.judge.identity.floats import FloatDomain
from remote.judge.identity.recurrence import solve_recurrence


@pytest.mark.parametrize("length", [1, 2, 3, 9, 31, 100])
def test_it_is_what_steps_give(length):
    generator = np.random.default_rng(length)
    factors, terms = generator.standard_normal((2, length, 3, 2))
    state = initial = generator.standard_normal((3, 2))
    expected = []
    for factor, term in zip(factors, terms, strict=True):
        state = factor * state + term
        expected.append(state)
    domain = FloatDomain(b"", ())
    found = solve_recurrence(domain, *(domain.constant(array) for array in (factors, terms, initial)))
    assert found.arrays[0] == pytest.approx(np.array(expected))


def test_states_depend_on_what_came_before_and_on_nothing_else():
    domain = DependenceDomain([(0, 4), (1, 8)], "must")
    time = np.arange(12)
    initial = domain.constant(np.zeros(()))
    found = domain.dependence_sets(
        solve_recurrence(domain, domain.input_symbols(0, time), domain.input_symbols(1, time), initial)
    )
    # The fourth factor multiplies what is known to be there, which is the terms before it.
    assert found.tolist() == [0] * 4 + [1] * 4 + [3] * 4
