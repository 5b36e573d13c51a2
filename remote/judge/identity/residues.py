"""Domain of two prime fields, in which formulas agree when they are the same formula.

Inputs are secret symbols. A value has a residue modulo P and one modulo Q; sums and products are taken in
both. exp(x) is, modulo P, the power x mod Q of a base of order Q. So exp(a + b) = exp(a) exp(b) holds, and
exp(x - m) divided by its sum does not depend on m (the construction of Mirage, arXiv:2405.05751). Roots are
powers, so they multiply. By the Schwartz-Zippel lemma, two different rational functions of degree d agree at
a secret point with a probability of about d / P.

Maxima and comparisons use a total order of residues, in which -x > 0 exactly if x < 0. It is the same on both
sides, but not the order of reals: a constant lies anywhere among the symbols. `ConstantPlace` draws constants
above or below all of them, as where all numbers are far below or above zero; but not zero, which parts the
symbols by their signs. Values that depend on the order, or on a function without rules, are marked with
`DoubtFlags`: for them only agreement means something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from remote.judge.identity import exact_constants
from remote.judge.identity.bit_sets import union_of_products, union_over_axes
from remote.judge.identity.domain import Array, Planes
from remote.judge.identity.exponentials import MOST_LOGARITHMS, P, Q, exponential, logarithm
from remote.judge.identity.functions import COMPARISONS, ComposedDomain, apply_to_known
from remote.judge.identity.hashing import derive_secret, mix_bits
from remote.judge.identity.prime_fields import PrimeField

LARGE_CONSTANT, INFINITE_CONSTANT = 1e6, 1e30
"""Constants at least this large stand for infinity: masked scores, initial values of maxima.

In float64, a number added to one of the smaller ones may be visible; such values are flagged until an
exponential turns them into zero.
"""

_SHIFT = 8
_CONSTANT_PLACE, _INFINITE_PLACE = 1 << 52, 1 << 60
_CONSTANT_STEPS = 2.0**30  # positions between constants that differ by one
_MAX_NAMED_CONSTANTS = 1 << 12  # beyond this many different constants, all are taken as their float32 values


class DoubtFlags(IntFlag):
    """Reasons why a value is outside the covered fragment, so that differing results may be equal."""

    ORDER = 1  # a maximum, a minimum or a comparison
    FUNCTION = 2  # a function without rules
    CONSTANT = 4  # a constant without a name
    ROOT = 8  # a root of a number that has none in this field; other symbols may show more
    UNKNOWN = 16  # not computed
    EXPONENT = 32  # an exponential of an exponential
    ZERO = 64  # a division by zero


class ConstantPlace(IntEnum):
    """Where constants lie in the order of residues, from which those that stand for infinity are exempt."""

    BELOW = -1
    AMONG = 0
    ABOVE = 1


_BOTH_BYTES = 1 + (1 << _SHIFT)
_VALUE_MASK = np.uint16((1 << _SHIFT) - 1)


class ResidueDomain(ComposedDomain):
    """Planes: residue modulo P, residue modulo Q, real number where it is known, marks of `DoubtFlags`.

    The marks of the residue modulo P are the low byte, those of the one modulo Q the high byte. `seed` is
    secret. `descending` reverses the order of residues, `constants` moves all constants but zero to one end
    of it: a result that stays the same does not depend on the order. `ordered_zero` and `ordered_constants`
    say whether the order decided between symbols and zero, or other constants.
    """

    def __init__(
        self, seed: bytes, *, descending: bool = False, constants: ConstantPlace = ConstantPlace.AMONG
    ) -> None:
        self._seed = seed
        self._values, self._exponents = PrimeField(P), PrimeField(Q)
        self._side = -1 if descending else 1
        self._place = constants
        self.ordered_zero = self.ordered_constants = False
        self._turn = np.uint64(self._secret_number("order") % (P - 1) + 1)
        self._fresh = 0
        self._constants: dict[float, tuple[int, int, int]] = {}
        self._factors = {name: self._secret_number(name) for name in exact_constants.FACTORS}

    def doubt_flags(self, value: Planes) -> NDArray[np.uint8]:
        """Return the `DoubtFlags` of the residues that values are compared by."""
        return (value.arrays[3] & _VALUE_MASK).astype(np.uint8)

    def constant(self, array: Array) -> Planes:
        """Return known real numbers."""
        real = np.asarray(array, np.float64)
        found, places = np.unique(real, return_inverse=True)
        counts = bool(
            (np.rint(found) == found).all() and (np.abs(found) <= exact_constants.MAX_INTEGER).all()
        )
        columns = (
            self._encode_floats(found)
            if counts or found.size > _MAX_NAMED_CONSTANTS
            else self._encode_each(found)
        )
        value, exponent, why = (column[places].reshape(real.shape) for column in columns)
        return Planes((value, exponent, real, why))

    def input_symbols(self, number: int, index: Array) -> Planes:
        """Return elements of an input."""
        return self._draw_symbols(f"input {number}", np.asarray(index).astype(np.uint64), 0)

    def unknown_values(self, shape: Sequence[int]) -> Planes:
        """Return unknown numbers."""
        self._fresh += 1
        index = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64).reshape(shape)
        return self._draw_symbols(f"unknown {self._fresh}", index, DoubtFlags.UNKNOWN * _BOTH_BYTES)

    def known_values(self, value: Planes) -> Array:
        """Return the real numbers of values made of constants only, NaN elsewhere."""
        return value.arrays[2]

    def simple_unary(self, name: str, value: Planes) -> Planes:
        """Apply a function that is not composed of others."""
        with np.errstate(all="ignore"):
            rule = _UNARY.get(name)
            return self._apply_opaque(name, value) if rule is None else rule(self, value)

    def simple_binary(self, name: str, left: Planes, right: Planes) -> Planes:
        """Apply a function that is not composed of others."""
        with np.errstate(all="ignore"):
            if name in COMPARISONS:
                return self._compare_values(name, left, right)
            rule = _BINARY.get(name)
            return self._apply_opaque(name, left, right) if rule is None else rule(self, left, right)

    def reduce(self, name: str, value: Planes, axes: Sequence[int]) -> Planes:
        """Return `add`, `multiply`, `maximum` or `minimum` over axes, which stay with size one."""
        axes = tuple(axes)
        with np.errstate(all="ignore"):
            if name in {"maximum", "minimum"}:
                return self._pick_extreme(name, value, axes)
            residues, exponents, real, why = value.arrays
            total, known = (PrimeField.sum, real.sum) if name == "add" else (PrimeField.product, real.prod)
            sums = (total(self._values, residues, axes), total(self._exponents, exponents, axes))
            return Planes((*sums, known(axis=axes, keepdims=True), union_over_axes(why, axes)))

    def matmul(self, left: Planes, right: Planes) -> Planes:
        """Return matrix products, the leading axes broadcast."""
        value = self._values.matmul(left.arrays[0], right.arrays[0])
        exponent = self._exponents.matmul(left.arrays[1], right.arrays[1])
        known = [~np.isnan(side.arrays[2]) for side in (left, right)]
        real = np.full(value.shape, np.nan)
        if known[0].any() and known[1].any():
            with np.errstate(all="ignore"):
                real = np.matmul(left.arrays[2], right.arrays[2])
        why = union_of_products(left.arrays[3], right.arrays[3], left.arrays[2] == 0, right.arrays[2] == 0)
        return Planes((value, exponent, real, why))

    def select(self, mask: Planes, left: Planes, right: Planes) -> Planes:
        """Return left where the condition is true, else right."""
        truth = mask.arrays[0] != 0
        value, exponent, real, why = _choose_planes(truth, left, right).arrays
        return Planes((value, exponent, real, why | _mark_both(mask.arrays[3])))

    def _secret_number(self, purpose: str) -> int:
        return derive_secret(self._seed, purpose)

    def _draw_symbols(self, purpose: str, index: NDArray[np.uint64], why: int) -> Planes:
        drawn = mix_bits(index + np.uint64(self._secret_number(purpose)))
        return Planes(
            (
                self._values.remainder(drawn >> np.uint64(32)),
                self._exponents.remainder(drawn & np.uint64(0xFFFFFFFF)),
                np.broadcast_to(np.nan, index.shape),
                np.broadcast_to(np.uint16(why), index.shape),
            )
        )

    def _encode_each(self, found: Array) -> tuple[Array, Array, Array]:
        table = np.array([self._encode_cached(float(item)) for item in found], np.uint64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2].astype(np.uint16)

    def _encode_cached(self, number: float) -> tuple[int, int, int]:
        if number not in self._constants:
            self._constants[number] = self._encode_number(number)
        return self._constants[number]

    def _encode_number(self, number: float) -> tuple[int, int, int]:
        if not np.isfinite(number):
            drawn = self._draw_symbols(str(number), np.zeros(1, np.uint64), 0).arrays
            return (
                int(drawn[0][0]),
                int(drawn[1][0]),
                DoubtFlags.UNKNOWN * _BOTH_BYTES if np.isnan(number) else 0,
            )
        item = exact_constants.recognise_constant(number)
        (value, bad), (exponent, worse) = (
            self._encode_exact(item, field) for field in (self._values, self._exponents)
        )
        unnamed = 0 if item.named else DoubtFlags.CONSTANT * _BOTH_BYTES
        return value, exponent, unnamed | bad | worse << _SHIFT

    def _encode_exact(self, item: exact_constants.ExactNumber, field: PrimeField) -> tuple[int, int]:
        """Return the residue of a constant, and its marks."""
        found, missing = field.fraction_residue(item.fraction), 0
        if item.factor:
            # Computed from the fourth power, so that roots are consistent.
            factor = pow(self._factors[item.factor] % (field.order - 1) + 1, 4, field.order)
            found = found * pow(factor, item.power, field.order) % field.order
        for _ in range(item.root.bit_length() - 1):
            square, found = found, pow(found, (field.order + 1) // 4, field.order)
            missing |= DoubtFlags.ROOT if found * found % field.order != square else 0
        return item.sign * found % field.order, missing

    def _encode_floats(self, found: Array) -> tuple[Array, Array, Array]:
        """The residues of float32 values: integers times powers of two."""
        whole = (found == np.rint(found)) & (np.abs(found) < 1 << 53)
        mantissa, power = np.frexp(np.where(whole, found, found.astype(np.float32)))
        usual = np.isfinite(mantissa)
        digits = np.where(usual, np.ldexp(np.abs(mantissa), 53), 0).astype(np.uint64)
        columns = []
        for field in (self._values, self._exponents):
            scale = [pow(2, int(exponent) - 53, field.order) for exponent in power]
            size = field.multiply(field.remainder(digits), np.array(scale, np.uint64))
            columns.append(np.where(found < 0, field.subtract(np.zeros_like(size), size), size))
        marks = np.where(usual, DoubtFlags.CONSTANT, DoubtFlags.UNKNOWN) * _BOTH_BYTES
        return columns[0], columns[1], np.where(whole, 0, marks).astype(np.uint16)

    def _apply_opaque(self, name: str, *values: Planes) -> Planes:
        """A function without rules: a hash of its name and arguments, or its value where they are known."""
        parts = [self._values.remainder(mix_bits(value.arrays[0])) for value in values]
        place = parts[0] if len(parts) == 1 else mix_bits(parts[0]) ^ parts[1]
        why = np.bitwise_or.reduce(np.broadcast_arrays(*(value.arrays[3] for value in values)))
        found = self._draw_symbols(f"function {name}", place, 0)
        why = _mark_both(why) | np.uint16(DoubtFlags.FUNCTION * _BOTH_BYTES)
        planes = Planes((found.arrays[0], found.arrays[1], found.arrays[2], why))
        real = apply_to_known(name, *(value.arrays[2] for value in values))
        if real is None or np.isnan(real).all():
            return planes
        known = self.constant(real)
        return _choose_planes(np.isnan(real), planes, known)

    def _order_key(self, value: Planes) -> NDArray[np.int64]:
        """Positions in the order of residues; constants that stand for infinity come first and last."""
        turned = self._values.multiply(value.arrays[0], self._turn).astype(np.int64)
        key = self._side * np.where(turned > P // 2, turned - P, turned)
        real = value.arrays[2]
        known = ~np.isnan(real)
        if not known.any():
            return key
        if self._place is not ConstantPlace.AMONG:
            steps = np.rint(np.clip(np.nan_to_num(real), -LARGE_CONSTANT, LARGE_CONSTANT) * _CONSTANT_STEPS)
            key = np.where(known & (real != 0), self._place * _CONSTANT_PLACE + steps.astype(np.int64), key)
        return np.where(
            np.abs(real) >= LARGE_CONSTANT, np.where(real > 0, _INFINITE_PLACE, -_INFINITE_PLACE), key
        )

    def _note_constants(self, real: Array) -> None:
        """Note which constants the order of residues places among symbols; NaN stands for a symbol."""
        finite = real[np.abs(real) < LARGE_CONSTANT]
        self.ordered_zero |= bool((finite == 0).any())
        self.ordered_constants |= bool((finite != 0).any())

    def _compare_values(self, name: str, left: Planes, right: Planes) -> Planes:
        reals = left.arrays[2], right.arrays[2]
        known = ~(np.isnan(reals[0]) | np.isnan(reals[1]))
        compare = getattr(np, name)
        truth = np.where(known, compare(*reals), compare(self._order_key(left), self._order_key(right)))
        sure = known | (np.abs(reals[0]) >= LARGE_CONSTANT) | (np.abs(reals[1]) >= LARGE_CONSTANT)
        for one in reals:
            self._note_constants(np.broadcast_to(one, sure.shape)[~sure])
        why = _mark_both(left.arrays[3] | right.arrays[3]) | np.uint16(DoubtFlags.ORDER * _BOTH_BYTES)
        residue = truth.astype(np.uint64)
        return Planes((residue, residue, np.where(sure, truth, np.nan), _clear_where(sure, why)))

    def _pick_extreme(self, name: str, value: Planes, axes: tuple[int, ...]) -> Planes:
        """Pick whole elements by their order; -inf never counts in a maximum, nor inf in a minimum."""
        value = value.move(lambda array: _merge_axes_last(array, axes))
        real = value.arrays[2]
        pick = np.argmax if name == "maximum" else np.argmin
        known = ~np.isnan(real).any(-1)
        chosen = np.where(known, pick(real, -1), pick(self._order_key(value), -1))[..., None]
        found = value.move(lambda array: np.take_along_axis(array, chosen, -1)[..., 0])
        never = real <= -LARGE_CONSTANT if name == "maximum" else real >= LARGE_CONSTANT
        why = union_over_axes(_clear_where(never, value.arrays[3]), (-1,))[..., 0]
        alone = known | ((~never).sum(-1) <= 1)
        self._note_constants(real[~alone])
        why = np.where(alone, why, _mark_both(why) | np.uint16(DoubtFlags.ORDER * _BOTH_BYTES))
        return Planes((*found.arrays[:3], why)).move(lambda array: np.expand_dims(array, axes))

    def negative(self, value: Planes) -> Planes:
        zero = np.uint64(0)
        residue, exponent, real, why = value.arrays
        return Planes((
            self._values.subtract(zero, residue), self._exponents.subtract(zero, exponent), -real, why,
        ))  # fmt: skip

    def reciprocal(self, value: Planes) -> Planes:
        residue, exponent, real, why = value.arrays
        none = (residue == 0) * np.uint16(DoubtFlags.ZERO) | (exponent == 0) * np.uint16(
            DoubtFlags.ZERO << _SHIFT
        )
        inverses = self._values.inverse(residue), self._exponents.inverse(exponent)
        return _zero_where(Planes((*inverses, 1.0 / real, why | none)), np.isinf(real))

    def sqrt(self, value: Planes) -> Planes:
        residue, exponent, real, why = value.arrays
        roots = self._values.square_root(residue), self._exponents.square_root(exponent)
        none = ~self._values.is_square(residue, roots[0]) * np.uint16(DoubtFlags.ROOT)
        none |= ~self._exponents.is_square(exponent, roots[1]) * np.uint16(DoubtFlags.ROOT << _SHIFT)
        return Planes((*roots, np.sqrt(real), why | none))

    def exp(self, value: Planes) -> Planes:
        _, exponent, real, why = value.arrays
        found = exponential(exponent)
        next_exponent = self._exponents.remainder(mix_bits(found))
        real, why = np.exp(real), why >> np.uint16(_SHIFT) | np.uint16(DoubtFlags.EXPONENT << _SHIFT)
        return _zero_where(Planes((found, next_exponent, real, why)), real == 0)

    def log(self, value: Planes) -> Planes:
        """A function without rules, except that exp undoes it: the exponent is remembered."""
        opaque = self._apply_opaque("log", value)
        numbers, places = np.unique(value.arrays[0], return_inverse=True)
        if numbers.size > MOST_LOGARITHMS:
            return opaque
        none = ~self._values.is_square(numbers, self._values.square_root(numbers)) | (numbers == 0)
        squares = np.where(none, self._values.subtract(np.uint64(0), numbers), numbers)
        found = logarithm(np.where(numbers == 0, np.uint64(1), squares))
        marks = value.arrays[3] & _VALUE_MASK | (none * np.uint16(DoubtFlags.ROOT))[places].reshape(
            value.shape
        )
        why = opaque.arrays[3] & _VALUE_MASK | marks << np.uint16(_SHIFT)
        exponent = found[places].reshape(value.shape)
        known = ~np.isnan(opaque.arrays[2])
        made = Planes((opaque.arrays[0], exponent, opaque.arrays[2], why))
        return _choose_planes(known, opaque, made)

    def add(self, left: Planes, right: Planes) -> Planes:
        real = left.arrays[2] + right.arrays[2]
        total = Planes((
            self._values.add(left.arrays[0], right.arrays[0]),
            self._exponents.add(left.arrays[1], right.arrays[1]),
            real,
            left.arrays[3] | right.arrays[3],
        ))  # fmt: skip
        for one in (left, right):
            hides = (np.abs(one.arrays[2]) >= LARGE_CONSTANT) & np.isnan(real)
            if hides.any():
                seen = (np.abs(one.arrays[2]) < INFINITE_CONSTANT) * np.uint16(
                    DoubtFlags.CONSTANT * _BOTH_BYTES
                )
                whole = Planes((*one.arrays[:3], one.arrays[3] | seen))
                total = _choose_planes(hides, whole, total)
        return total

    def subtract(self, left: Planes, right: Planes) -> Planes:
        return self.add(left, self.negative(right))

    def multiply(self, left: Planes, right: Planes) -> Planes:
        product = Planes((
            self._values.multiply(left.arrays[0], right.arrays[0]),
            self._exponents.multiply(left.arrays[1], right.arrays[1]),
            left.arrays[2] * right.arrays[2],
            left.arrays[3] | right.arrays[3],
        ))  # fmt: skip
        return _zero_where(product, (left.arrays[2] == 0) | (right.arrays[2] == 0))

    def divide(self, left: Planes, right: Planes) -> Planes:
        return self.multiply(left, self.reciprocal(right))

    def maximum(self, left: Planes, right: Planes) -> Planes:
        return self._pick_extreme("maximum", _stack_pair(left, right), (0,)).move(lambda array: array[0])

    def minimum(self, left: Planes, right: Planes) -> Planes:
        return self._pick_extreme("minimum", _stack_pair(left, right), (0,)).move(lambda array: array[0])


_UNARY: dict[str, Callable[[ResidueDomain, Planes], Planes]] = {
    "exp": ResidueDomain.exp,
    "log": ResidueDomain.log,
    "negative": ResidueDomain.negative,
    "reciprocal": ResidueDomain.reciprocal,
    "sqrt": ResidueDomain.sqrt,
}
_BINARY: dict[str, Callable[[ResidueDomain, Planes, Planes], Planes]] = {
    "add": ResidueDomain.add,
    "divide": ResidueDomain.divide,
    "maximum": ResidueDomain.maximum,
    "minimum": ResidueDomain.minimum,
    "multiply": ResidueDomain.multiply,
    "subtract": ResidueDomain.subtract,
}


def _mark_both(why: Array) -> NDArray[np.uint16]:
    """Marks of either residue apply to both."""
    both: NDArray[np.uint16] = why | why >> np.uint16(_SHIFT) | why << np.uint16(_SHIFT)
    return both


def _choose_planes(where: Array, left: Planes, right: Planes) -> Planes:
    return left.join([right], lambda pair: np.where(where, *pair))


def _clear_where(condition: Array, why: Array) -> NDArray[np.uint16]:
    return np.where(condition, np.uint16(0), why)


def _zero_where(value: Planes, where: Array) -> Planes:
    """The value, with the known number zero at some positions."""
    if not where.any():
        return value
    return value.move(lambda array: np.where(where, array.dtype.type(0), array))


def _merge_axes_last(array: Array, axes: tuple[int, ...]) -> Array:
    """Return the array with these axes merged into one, the last."""
    moved = np.moveaxis(array, axes, range(-len(axes), 0))
    return moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)


def _stack_pair(left: Planes, right: Planes) -> Planes:
    return left.join([right], lambda pair: np.stack(np.broadcast_arrays(*pair)))
