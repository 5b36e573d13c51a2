"""What depends on what: never too much where it must, never too little where it may."""

from __future__ import annotations

import numpy as np
import pytest

from remote.judge.identity.dependence_domain import MAX_MARKED, DependenceDomain
from remote.judge.identity.domain import Planes

MARKED = [(0, 2), (0, 5), (1, 0), (3, 7)]
FIRST, SECOND, THIRD = (np.uint64(1 << bit) for bit in range(3))


@pytest.fixture(params=["must", "may"])
def domain(request):
    return DependenceDomain(MARKED, request.param)


def constant(domain, *values):
    return domain.constant(np.array(values, float))


def sets(domain, value):
    return domain.dependence_sets(value).tolist()


def test_symbols_carry_their_marks(domain):
    assert sets(domain, domain.input_symbols(0, np.array([[5, 1], [2, 9]]))) == [[SECOND, 0], [FIRST, 0]]
    assert sets(domain, domain.input_symbols(1, np.arange(3))) == [THIRD, 0, 0]
    assert sets(domain, domain.input_symbols(2, np.arange(3))) == [0, 0, 0]


def test_operations_unite(domain):
    x, y = domain.input_symbols(0, np.array([2, 5])), domain.input_symbols(1, np.array([[0], [1]]))
    for name in ("add", "multiply", "maximum", "power", "less", "hypot"):
        united = sets(domain, domain.apply_binary(name, x, y))
        assert united == [[FIRST | THIRD, SECOND | THIRD], [FIRST, SECOND]]
    for name in ("exp", "silu", "erf", "negative", "a function of a name that nobody knows"):
        assert sets(domain, domain.apply_unary(name, x)) == [FIRST, SECOND]
    for name in ("add", "multiply", "maximum", "minimum"):
        assert sets(domain, domain.reduce(name, x, (0,))) == [FIRST | SECOND]


def test_products_of_matrices_unite_rows_and_columns(domain):
    left, right = (
        domain.input_symbols(0, np.arange(6).reshape(2, 3)),
        domain.input_symbols(1, np.arange(6).reshape(3, 2)),
    )
    assert sets(domain, domain.matmul(left, right)) == [[FIRST | THIRD, FIRST], [SECOND | THIRD, SECOND]]
    assert sets(domain, domain.matmul(left, domain.constant(np.eye(3)))) == [[0, 0, FIRST], [0, 0, SECOND]]
    known = domain.matmul(domain.constant(np.eye(2)), domain.constant(np.ones((2, 2))))
    assert domain.known_values(known).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_what_a_known_zero_takes_away_is_gone(domain):
    x = domain.input_symbols(0, np.array([2, 5]))
    product = domain.apply_binary("multiply", x, constant(domain, 0.0, 1.0))
    assert sets(domain, product) == [0, SECOND]
    assert domain.known_values(product)[0] == 0
    assert sets(domain, domain.apply_binary("divide", constant(domain, 0.0, 1.0), x)) == [0, SECOND]
    assert sets(domain, domain.apply_binary("divide", x, constant(domain, 0.0, 1.0))) == [FIRST, SECOND]


def test_a_known_mask_chooses_its_branch(domain):
    x, y = domain.input_symbols(0, np.array([2, 5])), domain.input_symbols(1, np.array([0, 0]))
    mask = domain.apply_binary("less", constant(domain, 0.0, 1.0), constant(domain, 1.0, 1.0))
    assert sets(domain, domain.select(mask, x, y)) == [FIRST, THIRD]


def test_infinity_hides_and_begins_maxima(domain):
    x = domain.input_symbols(0, np.array([2]))
    shifted = domain.apply_binary("add", x, constant(domain, -1e30))
    assert sets(domain, shifted) == [0]
    assert domain.known_values(domain.apply_unary("exp", shifted)) == [0.0]
    taken = domain.apply_binary("subtract", x, constant(domain, np.inf))
    assert domain.known_values(taken) == [-np.inf]
    assert sets(domain, domain.apply_binary("maximum", x, constant(domain, -np.inf))) == [FIRST]
    assert sets(domain, domain.apply_binary("maximum", x, constant(domain, np.inf))) == [0]
    row = Planes(tuple(np.append(a, b) for a, b in zip(x.arrays, constant(domain, 1e31).arrays, strict=True)))
    assert sets(domain, domain.reduce("maximum", row, (0,))) == [0]
    assert sets(domain, domain.reduce("minimum", row, (0,))) == [FIRST]


def test_where_it_is_not_known_must_takes_the_least_and_may_the_most():
    must, may = DependenceDomain(MARKED, "must"), DependenceDomain(MARKED, "may")
    for domain, chosen, unknown, large in (
        (must, FIRST, 0, 0),
        (may, FIRST | SECOND | THIRD, 0xFFFFFFFFFFFFFFFF, FIRST),
    ):
        x, both = domain.input_symbols(0, np.array([2])), domain.input_symbols(0, np.array([2, 5]))
        mask = domain.apply_binary("greater", domain.input_symbols(1, np.array([0])), constant(domain, 0.0))
        united = domain.reduce("add", both, (0,))
        assert sets(domain, domain.select(mask, x, united)) == [chosen]
        assert sets(domain, domain.unknown_values((1,))) == [unknown]
        assert sets(domain, domain.apply_binary("add", x, constant(domain, 1e7))) == [large]


def test_more_elements_than_bits_are_refused():
    with pytest.raises(ValueError, match="65 elements"):
        DependenceDomain([(0, at) for at in range(MAX_MARKED + 1)], "may")
