"""Formulas that are equal agree as residues, others do not; marks say where only agreement counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from remote.judge.identity.domain import Planes
from remote.judge.identity.residues import LARGE_CONSTANT, DoubtFlags, P, ResidueDomain

ROWS = np.arange(6 * 8).reshape(6, 8)


@pytest.fixture
def domain():
    return ResidueDomain(b"a secret")


class Number:
    """Operators on residues, so that the tests read as formulas."""

    __hash__ = None

    def __init__(self, domain, value):
        self.domain, self.value = domain, value

    def __getattr__(self, name):
        return lambda *others: self._of(name, *others)

    def _of(self, name, *others):
        if others:
            found = self.domain.apply_binary(name, self.value, _planes(self.domain, others[0]))
        else:
            found = self.domain.apply_unary(name, self.value)
        return Number(self.domain, found)

    def over(self, name, *axes):
        return Number(self.domain, self.domain.reduce(name, self.value, axes))

    def part(self, movement):
        return Number(self.domain, self.value.move(movement))

    def matmul(self, other):
        return Number(self.domain, self.domain.matmul(self.value, other.value))

    def where(self, left, right):
        chosen = self.domain.select(self.value, _planes(self.domain, left), _planes(self.domain, right))
        return Number(self.domain, chosen)

    def __add__(self, other):
        return self._of("add", other)

    def __sub__(self, other):
        return self._of("subtract", other)

    def __mul__(self, other):
        return self._of("multiply", other)

    def __truediv__(self, other):
        return self._of("divide", other)

    def __neg__(self):
        return self._of("negative")

    def __eq__(self, other):
        return bool(np.all(self.value.arrays[0] == other.value.arrays[0]))

    def differs(self, other):
        """Everywhere."""
        return bool(np.all(self.value.arrays[0] != other.value.arrays[0]))

    @property
    def why(self):
        return DoubtFlags(int(np.bitwise_or.reduce(self.domain.doubt_flags(self.value), axis=None)))

    @property
    def known(self):
        return self.domain.known_values(self.value)


def _planes(domain, value):
    if isinstance(value, Number):
        return value.value
    return domain.constant(np.full((1, 1), value) if np.isscalar(value) else np.asarray(value))


def constant(domain, value):
    return Number(domain, _planes(domain, value))


def symbols(domain, count=2):
    return [Number(domain, domain.input_symbols(number, ROWS)) for number in range(count)]


def softmax(x, shift):
    exps = (x - shift).exp()
    return exps / exps.over("add", 1)


EQUAL = {
    "distribution": lambda x, y: ((x + y) * x, x * x + y * x),
    "quotients": lambda x, y: (x / y * 3.0, (x * 3.0) / y),
    "exponential of a sum": lambda x, y: ((x + y).exp(), x.exp() * y.exp()),
    "half an exponential": lambda x, y: ((x * 0.5).exp(), x.exp().sqrt()),
    "roots multiply": lambda x, y: ((x * y).sqrt(), x.sqrt() * y.sqrt()),
    "root of a constant": lambda x, y: ((x * 1000.0).sqrt(), x.sqrt() * math.sqrt(1000)),
    "inverse roots": lambda x, y: (x * y.rsqrt(), x / y.power(0.5)),
    "powers": lambda x, y: (x.power(-3.0), (x * x.square()).reciprocal()),
    "power of zero": lambda x, y: (x.power(0.0) * y, y),
    "sigmoid of tanh": lambda x, y: (x.sigmoid(), (x * 0.5).tanh() * 0.5 + 0.5),
    "silu by cases": lambda x, y: (
        x.silu(),
        x * x.greater_equal(0.0).where(1.0, (-x.abs()).exp()) / ((-x.abs()).exp() + 1.0),
    ),
    "base two": lambda x, y: (x.exp(), (x * math.log2(math.e)).exp2()),
    "folded scale": lambda x, y: ((x * y * 128**-0.5).exp(), ((x * 128**-0.25) * (y * 128**-0.25)).exp()),
    "softmax without its maximum": lambda x, y: (softmax(x, x.over("maximum", 1)), softmax(x, 0.0)),
    "relu": lambda x, y: (x.relu(), (x + x.abs()) * 0.5),
    "clipping": lambda x, y: (x.maximum(0.5).minimum(2.0), -((-x).minimum(-0.5).maximum(-2.0))),
    "mish": lambda x, y: (x.mish(), x * ((x.exp() + 1.0).square() - 1.0) / ((x.exp() + 1.0).square() + 1.0)),
    "masked": lambda x, y: (x.greater(y).where(x, 0.0), x * x.greater(y)),
    "exponentials undo logarithms": lambda x, y: ((x + y.square().log() * 2.0).exp(), x.exp() * y.power(4.0)),
    "logarithms of one number": lambda x, y: ((x * y).log(), (y * x).log()),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_formulas_agree(domain, name):
    one, other = EQUAL[name](*symbols(domain))
    assert one == other


DIFFERENT = {
    "decay left out": lambda x, y: (x - y, x * 0.99999 - y),
    "an epsilon left out": lambda x, y: (x / y.sqrt(), x / (y.sqrt() + 1e-8)),
    "an epsilon outside the root": lambda x, y: ((y + 1e-5).sqrt(), y.sqrt() + 1e-5),
    "a constant off": lambda x, y: (x * 0.9 + y * 0.1, x * 0.9 + y * 0.1001),
    "no exponential": lambda x, y: (x.exp(), x + 1.0),
    "another axis": lambda x, y: (softmax(x, 0.0), x.exp() / x.exp().over("add", 0)),
    "a term left out": lambda x, y: (x.over("add", 1), x.part(lambda array: array[:, :-1]).over("add", 1)),
    "swapped": lambda x, y: (x - y, y - x),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_formulas_differ_within_the_fragment(domain, name):
    one, other = DIFFERENT[name](*symbols(domain))
    assert one.differs(other)
    assert not (one.why | other.why) & ~DoubtFlags.ROOT


def test_sums_may_be_split_and_products_of_matrices_too(domain):
    x, y = symbols(domain)
    right = y.part(np.transpose)
    halves = [
        x.part(lambda array: array[:, :3]).matmul(right.part(lambda array: array[:3])),
        x.part(lambda array: array[:, 3:]).matmul(right.part(lambda array: array[3:])),
    ]
    assert x.matmul(right) == halves[0] + halves[1]
    columns = [x.part(lambda array, at=at: array[:, at : at + 1]) for at in range(8)]
    total = columns[0]
    for column in columns[1:]:
        total = column + total
    assert x.over("add", 1) == total


def test_maxima_may_be_split_and_begin_at_infinity(domain):
    (x,) = symbols(domain, 1)
    running = constant(domain, -np.inf)
    for at in (0, 3, 6):
        part = x.part(lambda array, at=at: array[:, at : at + 3])
        running = running.maximum(part.over("maximum", 1))
    assert running == x.over("maximum", 1)
    assert running.why == DoubtFlags.ORDER
    assert x.maximum(-3e38).why == DoubtFlags(0)
    assert x.maximum(-3e38) == x


def test_an_online_softmax_is_a_softmax(domain):
    x, _ = symbols(domain)
    top, total = constant(domain, -np.inf), constant(domain, 0.0)
    for at in (0, 4):
        block = x.part(lambda array, at=at: array[:, at : at + 4])
        higher = top.maximum(block.over("maximum", 1))
        total = total * (top - higher).exp() + (block - higher).exp().over("add", 1)
        top = higher
    assert (x - top).exp() / total == softmax(x, 0.0)


def test_what_does_not_change_with_the_order_does_not_depend_on_it():
    found = []
    for descending in (False, True):
        domain = ResidueDomain(b"a secret", descending=descending)
        x, _ = symbols(domain)
        found.append((softmax(x, x.over("maximum", 1)), x.relu()))
    (softmax_up, relu_up), (softmax_down, relu_down) = found
    assert softmax_up == softmax_down
    assert relu_up.differs(relu_down)


def test_masks_of_known_numbers_choose_exactly(domain):
    x, y = symbols(domain)
    columns = constant(domain, np.arange(8.0)[None])
    mask = columns.less(4.0)
    chosen = mask.where(x, y)
    assert chosen.part(lambda array: array[:, :4]) == x.part(lambda array: array[:, :4])
    assert chosen.part(lambda array: array[:, 4:]) == y.part(lambda array: array[:, 4:])
    assert chosen.why == DoubtFlags(0)
    assert mask.known.tolist() == [[1.0] * 4 + [0.0] * 4]


def test_masked_scores_vanish(domain):
    x, _ = symbols(domain)
    mask = np.where(np.arange(8) < 5, 0.0, -np.inf)[None]
    masked = softmax(x + constant(domain, mask), 0.0)
    kept = softmax(x.part(lambda array: array[:, :5]), 0.0)
    assert masked.part(lambda array: array[:, :5]) == kept
    assert (masked.known[:, 5:] == 0).all()
    assert (x + constant(domain, -LARGE_CONSTANT)).exp().known.max() == 0


def test_masks_may_be_large_numbers(domain):
    x, _ = symbols(domain)
    mask = constant(domain, np.arange(8)[None]).less(5.0)
    infinite, large = (mask.where(x, value) for value in (-np.inf, -1e9))
    added = x + constant(domain, np.where(np.arange(8) < 5, 0.0, -1e9)[None])
    shifted = [softmax(scores, scores.over("maximum", 1)) for scores in (infinite, large, added)]
    assert shifted[0] == shifted[1] == shifted[2]
    assert shifted[2] == softmax(infinite, 0.0)
    assert shifted[2].why == DoubtFlags.ORDER
    assert (x + 1e9).why == DoubtFlags.CONSTANT


def test_nothing_is_left_of_what_infinity_divides(domain):
    x, _ = symbols(domain)
    assert x + constant(domain, 1.0) / constant(domain, np.inf) == x


def test_zero_times_anything_is_known_to_be_zero(domain):
    x, _ = symbols(domain)
    product = x.erf() * constant(domain, 0.0)
    assert (product.known == 0).all()
    assert product.why == DoubtFlags(0)


def test_known_numbers_stay_known(domain):
    index = constant(domain, np.arange(8.0)[None])
    assert (index * 2.0 + 1.0).known.tolist() == [[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0]]
    assert index.floor_divide(3.0).known.tolist() == [[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0]]
    assert index.bitwise_and(1.0) == constant(domain, np.arange(8)[None] % 2)
    assert index.over("maximum", 1).known.tolist() == [[7.0]]
    assert index.over("minimum", 1).why == DoubtFlags(0)


def test_many_constants_are_what_each_of_them_is(domain):
    values = np.arange(-3, 6000) / 2
    many = constant(domain, values[None])
    few = constant(domain, values[None, :5])
    assert many.part(lambda array: array[:, :5]) == few


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda x: x.exp().exp(), DoubtFlags.EXPONENT),
        (lambda x: (x.exp() + x).exp(), DoubtFlags.EXPONENT),
        (lambda x: x.erf(), DoubtFlags.FUNCTION),
        (lambda x: x.over("maximum", 1), DoubtFlags.ORDER),
        (lambda x: x * 1234.5678, DoubtFlags.CONSTANT),
        (lambda x: (x - x).reciprocal(), DoubtFlags.ZERO),
        (lambda x: x.erf().exp(), DoubtFlags.FUNCTION),
    ],
)
def test_marks_say_what_is_outside_the_fragment(domain, make, why):
    (x,) = symbols(domain, 1)
    assert make(x).why == why
    assert (make(x) * 2.0 + 1.0).why == why
    assert make(x).over("add", 0, 1).why == why


def test_a_root_that_this_field_does_not_have_is_marked(domain):
    (x,) = symbols(domain, 1)
    root = x.sqrt()
    missing = (domain.doubt_flags(root.value) & DoubtFlags.ROOT) != 0
    true = root.square().value.arrays[0] == x.value.arrays[0]
    assert (true == ~missing).all()
    assert 0 < missing.sum() < missing.size


def test_a_softmax_by_the_logarithm_of_its_sum_is_a_softmax(domain):
    x, _ = symbols(domain)
    total = x.exp().over("add", 1)
    one, other = softmax(x, total.log()), (x - total.log()).exp()
    missing = (domain.doubt_flags(other.value) & DoubtFlags.ROOT) != 0
    agree = softmax(x, 0.0).value.arrays[0] == other.value.arrays[0]
    assert (agree == ~missing).all()
    assert 0 < missing.sum() < missing.size
    assert one == softmax(x, 0.0)


def test_logarithms_of_many_numbers_are_without_rules(domain, monkeypatch):
    monkeypatch.setattr("remote.judge.identity.residues.MOST_LOGARITHMS", 7)
    x, _ = symbols(domain)
    assert x.log().exp().why == DoubtFlags.FUNCTION


def test_marks_of_terms_that_a_matrix_of_zeros_and_ones_leaves_out_do_not_spread(domain):
    x, _ = symbols(domain)
    mixed = Number(domain, domain.select(domain.constant(np.arange(8)[None] == 3), x.erf().value, x.value))
    moved = mixed.matmul(constant(domain, np.eye(8)))
    assert moved == mixed
    assert (domain.doubt_flags(moved.value) == domain.doubt_flags(mixed.value)).all()


def test_unknown_numbers_differ_from_everything(domain):
    one, other = (Number(domain, domain.unknown_values((6, 8))) for _ in range(2))
    assert one.differs(other)
    assert one.why == DoubtFlags.UNKNOWN


def test_symbols_repeat_and_have_their_numbers(domain):
    one = domain.input_symbols(1, np.array([5, 7])).arrays
    assert domain.input_symbols(1, np.array([7])).arrays[0][0] == one[0][1]
    assert domain.input_symbols(0, np.array([7])).arrays[0][0] != one[0][1]
    again = ResidueDomain(b"another").input_symbols(1, np.array([5, 7])).arrays
    assert (again[0] != one[0]).all()
    assert (one[0] < P).all()
    assert isinstance(domain.input_symbols(0, ROWS), Planes)
