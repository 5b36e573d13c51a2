"""Prime fields on arrays against Python's integers, and their laws."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.judge.identity.prime_fields import PrimeField
from remote.judge.identity.residues import P, Q
from tests.support.sweeps import scale_examples

FIELDS = [PrimeField(P), PrimeField(Q)]
SMALL_PRIMES = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]


@st.composite
def residues(draw, count):
    field = draw(st.sampled_from(FIELDS))
    edges = st.sampled_from([0, 1, 2, field.order - 2, field.order - 1])
    shape = (count, draw(st.integers(1, 5)))
    items = [draw(edges | st.integers(0, field.order - 1)) for _ in range(shape[0] * shape[1])]
    return field, *np.array(items, np.uint64).reshape(shape)


def test_both_orders_are_prime_and_one_is_twice_the_other_and_one():
    assert P == 2 * Q + 1
    for prime in (P, Q):
        assert prime % 4 == 3
        assert all(prime % divisor for divisor in range(2, int(prime**0.5) + 1))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("prime", SMALL_PRIMES)
def test_small_primes_have_true_roots(field, prime):
    one = np.array([prime], np.uint64)
    assert field.is_square(one, field.square_root(one)).all()


@given(residues(3))
def test_it_is_a_field(case):
    field, a, b, c = case
    product = field.multiply(a, field.add(b, c))
    assert (product == field.add(field.multiply(a, b), field.multiply(a, c))).all()
    assert (field.add(field.subtract(a, b), b) == a).all()
    assert (field.multiply(a, field.inverse(a)) == (a != 0)).all()


@given(residues(2))
def test_operations_are_those_of_integers(case):
    field, a, b = case
    pairs = list(zip(map(int, a), map(int, b), strict=True))
    assert field.add(a, b).tolist() == [(x + y) % field.order for x, y in pairs]
    assert field.subtract(a, b).tolist() == [(x - y) % field.order for x, y in pairs]
    assert field.multiply(a, b).tolist() == [x * y % field.order for x, y in pairs]


@given(residues(1), st.integers(0, 1 << 40))
def test_powers_are_those_of_integers(case, exponent):
    field, a = case
    assert field.power(a, exponent).tolist() == [pow(int(x), exponent, field.order) for x in a]


@given(residues(2))
def test_roots_multiply_and_are_roots_of_squares(case):
    field, a, b = case
    assert (
        field.square_root(field.multiply(a, b)) == field.multiply(field.square_root(a), field.square_root(b))
    ).all()
    squares = field.multiply(a, a)
    assert field.is_square(squares, field.square_root(squares)).all()


@settings(max_examples=scale_examples(20))
@given(st.sampled_from(FIELDS), st.integers(1, 6), st.integers(1, 300), st.integers(1, 6), st.integers(0, 9))
def test_products_of_matrices_are_exact(field, rows, depth, columns, seed):
    generator = np.random.default_rng(seed)
    left = generator.integers(field.order, size=(rows, depth), dtype=np.uint64)
    right = field.order - 1 - generator.integers(9, size=(depth, columns), dtype=np.uint64)
    exact = left.astype(object) @ right.astype(object) % field.order
    assert field.matmul(left, right).tolist() == exact.tolist()


def test_a_long_product_of_the_largest_residues_is_exact():
    field, depth = FIELDS[0], (1 << 18) + 3
    largest = np.full((1, depth), field.order - 1, np.uint64)
    assert field.matmul(largest, largest.T).item() == depth % field.order


def test_products_of_matrices_broadcast_their_leading_axes():
    generator = np.random.default_rng(0)
    left = generator.integers(P, size=(2, 1, 3, 4), dtype=np.uint64)
    right = generator.integers(P, size=(5, 4, 2), dtype=np.uint64)
    found = FIELDS[0].matmul(left, right)
    assert found.shape == (2, 5, 3, 2)
    assert (found[1, 3] == FIELDS[0].matmul(left[1, 0], right[3])).all()


@given(residues(1))
def test_sums_and_products_over_axes(case):
    field, a = case
    values = np.stack([a, a[::-1], a])
    total = field.sum(values, (0, 1))
    assert total.tolist() == [[3 * sum(map(int, a)) % field.order]]
    product = reduce(lambda x, y: x * y % field.order, map(int, values.reshape(-1)))
    assert field.product(values, (0, 1)).tolist() == [[product]]


def test_a_fraction_times_its_denominator_is_its_numerator():
    assert FIELDS[1].fraction_residue(Fraction(-3, 7)) * 7 % Q == Q - 3
    with pytest.raises(ValueError, match="not a prime"):
        PrimeField(17)
