"""Constants are the same number however they were folded and rounded, and different ones stay different."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remote.judge.identity.exact_constants import FACTORS, ExactNumber, recognise_constant

FOLDED = {
    "decay": (0.01 * 0.001, 1e-5),
    "mean": (1 - 0.9, 0.1),
    "square": (1 - 0.999, 0.001),
    "corrected": (1 / (1 - 0.999), 1000.0),
    "root": (math.sqrt(1 / (1 - 0.999)), math.sqrt(1000)),
    "thirds": (1 - 2 / 3, 1 / 3),
    "odd mean": (1 / 10944, np.float32(1) / np.float32(10944)),
    "scale": (1 / math.sqrt(128), 128**-0.5),
    "base two": (math.log2(math.e) / math.sqrt(128), 1 / (math.log(2) * math.sqrt(128))),
    "gelu": (math.sqrt(2 / math.pi), 0.7978845608),
}


@pytest.mark.parametrize("name", FOLDED)
def test_one_number_folded_in_two_ways(name):
    one, other = FOLDED[name]
    assert (
        recognise_constant(float(one))
        == recognise_constant(float(other))
        == recognise_constant(float(np.float32(one)))
    )
    assert recognise_constant(float(one)).named


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0.99999, ExactNumber(1, Fraction(99999, 100000))),
        (-1e-8, ExactNumber(-1, Fraction(1, 10**8))),
        (1 / 3, ExactNumber(1, Fraction(1, 3))),
        (math.sqrt(1000), ExactNumber(1, Fraction(1000), root=2)),
        (128**-0.25, ExactNumber(1, Fraction(1, 128), root=4)),
        (2 * math.pi, ExactNumber(1, Fraction(2), factor="pi", power=1)),
        (0.0, ExactNumber(1, Fraction(0))),
        (float(2**24 - 1), ExactNumber(1, Fraction(2**24 - 1))),
        (2.0**-149, ExactNumber(1, Fraction(1, 2**149))),
    ],
)
def test_what_a_constant_stands_for(value, number):
    assert recognise_constant(value) == number


@pytest.mark.parametrize(
    ("one", "other"), [(1e-5, 1.1e-5), (0.9, 0.90001), (0.99999, 1.0), (1000.0, 999.0), (1e-8, 0.0)]
)
def test_constants_that_differ_stay_different(one, other):
    assert recognise_constant(one) != recognise_constant(other)


def test_a_constant_without_a_name_is_the_float_that_it_is():
    found = recognise_constant(0.6513215599)
    assert not found.named
    assert found.fraction == Fraction(float(np.float32(0.6513215599)))


@given(st.floats(1e-6, 1.0))
def test_an_inverse_without_a_name_is_the_inverse_of_what_the_number_is(number):
    """So a division by it and a product with its folded inverse are the same."""
    found, inverse = recognise_constant(number), recognise_constant(1.0 / number)
    if not found.named and not inverse.named:
        assert found.fraction * inverse.fraction == 1


@given(st.integers(1, 99999), st.integers(-12, 12))
@example(2049, -1)  # doubtful: another simple number is as near
def test_decimals_of_five_digits_are_themselves(digits, exponent):
    """Those of three digits have names at the sizes that references use.

    Far from 1, a fraction of a high power of two may be as simple by chance: 4.17e11 is near 2 ** 48 / 675.
    """
    value = float(f"{digits}e{exponent}")
    for rounded in (value, float(np.float32(value))):
        found = recognise_constant(rounded)
        number = (float(found.fraction) * FACTORS.get(found.factor, 1.0) ** found.power) ** (1 / found.root)
        assert abs(number - value) <= 2.0**-22 * value
        if found.named:  # a few have other names too, by chance
            assert (found.root, found.factor) == (1, "")
        else:
            assert digits > 1000 or not 1e-6 <= value <= 1e8


@pytest.mark.parametrize("value", [1e300, -3.4e38, 1.2345678e-40, 5e-324])
def test_constants_beyond_float32_are_numbers_too(value):
    assert float(recognise_constant(value).fraction) * recognise_constant(value).sign == pytest.approx(
        value, rel=1e-6
    )


def test_few_numbers_have_a_name_by_chance():
    values = np.random.default_rng(0).random(300)
    assert sum(recognise_constant(float(value)).named for value in values) <= 15
