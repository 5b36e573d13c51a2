"""Affine index expressions: `nl.arange`, `nl.mgrid` and arithmetic on them.

An expression is a linear part over the axes of a tile plus a constant. Linear parts are interned: the
expressions of 100 000 loop iterations share a few of them, and values derived from them are computed once.
"""

from __future__ import annotations

from itertools import zip_longest
from operator import index as to_int
from typing import Any, NoReturn

from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.legacy.masks import Condition
from nki_sim.frontend.tensor import fail

Shape = tuple[int, ...]


class LoopIndex(int):
    """The variable of a loop; `around` is the recorder's number of the enclosing iteration."""

    _around: int

    @classmethod
    def _create(cls, value: int, around: int) -> LoopIndex:
        made = cls(value)
        made._around = around
        return made


INTEGERS = frozenset({int, LoopIndex})


class LinearForm:
    """sum(coefficients[axis] * position[axis]) over the positions of a shape; equal ones are one object."""

    __slots__ = ("_made", "coefficients", "high", "low", "shape")

    def __init__(self, shape: Shape, coefficients: Shape) -> None:
        self.shape = shape
        self.coefficients = coefficients
        reach = [step * (count - 1) for step, count in zip(coefficients, shape, strict=True)]
        self.low = sum(end for end in reach if end < 0)
        self.high = sum(end for end in reach if end > 0)
        self._made: dict[Any, LinearForm] = {}

    def scale(self, factor: int) -> LinearForm:
        """Multiply by a number."""
        made = self._made.get(factor)
        if made is None:
            made = self._made[factor] = intern_linear(
                self.shape, tuple(factor * k for k in self.coefficients)
            )
        return made

    def add(self, other: LinearForm) -> LinearForm:
        """Add another form, over the positions that the two shapes broadcast to."""
        made = self._made.get(other)
        if made is None:
            made = self._made[other] = self._add_uncached(other)
        return made

    def _add_uncached(self, other: LinearForm) -> LinearForm:
        shape = broadcast_shapes(self.shape, other.shape)
        mine, theirs = self.coefficients_over(shape), other.coefficients_over(shape)
        return intern_linear(shape, tuple(a + b for a, b in zip(mine, theirs, strict=True)))

    def coefficients_over(self, shape: Shape) -> Shape:
        """The coefficients over a shape that this one broadcasts to."""
        return (0,) * (len(shape) - len(self.shape)) + self.coefficients


_interned: dict[tuple[Shape, Shape], LinearForm] = {}
_aranges: dict[Any, Index] = {}
_ALL = slice(None)
_PLACES = ((_ALL, None), (None, _ALL), (_ALL, None, None), (None, _ALL, None), (None, None, _ALL))


def intern_linear(shape: Shape, coefficients: Shape) -> LinearForm:
    """Return the interned linear part; coefficients of axes with one position become 0."""
    still = tuple(k if count > 1 else 0 for k, count in zip(coefficients, shape, strict=True))
    found = _interned.get((shape, still))
    if found is None:
        found = _interned[shape, still] = LinearForm(shape, still)
    return found


def broadcast_shapes(left: Shape, right: Shape) -> Shape:
    """Return the shape that two shapes broadcast to, by NumPy's rules."""
    pairs = list(zip_longest(reversed(left), reversed(right), fillvalue=1))
    if any(a != b and 1 not in {a, b} for a, b in pairs):
        fail(
            "index_shapes", f"index expressions of shapes {left} and {right} do not broadcast",
            "give each nl.arange its own axis: [:, None] for partitions, [None, :] for the free dimension",
        )  # fmt: skip
    return tuple(max(a, b) for a, b in reversed(pairs))


class Index(KernelValue):
    """An affine expression: `linear` over the axes plus `constant`. It has no data and is not an operand.

    `nisa.iota` turns it into a tile; comparing it makes a mask.
    """

    __slots__ = ("_constant", "_linear", "_views")

    # Makes NumPy's integers leave arithmetic to this class.
    __array_ufunc__ = None

    def __init__(self, linear: LinearForm, constant: int) -> None:
        self._linear = linear
        self._constant = constant
        # Cached results of the usual keys.
        self._views: list[Index | None] | None = None

    @property
    def shape(self) -> Shape:
        """Number of positions along each axis."""
        return self._linear.shape

    @property
    def ndim(self) -> int:
        return len(self._linear.shape)

    def _describe(self) -> str:
        return f"<index {self.shape}: {self._linear.coefficients} + {self._constant}>"

    # -- axes ------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Index:
        try:
            place = _PLACES.index(key)
        except ValueError:
            return self._insert_axes(key if type(key) is tuple else (key,))
        if self._views is None:
            self._views = [None] * len(_PLACES)
        view = self._views[place]
        if view is None:
            view = self._views[place] = self._insert_axes(key)
        return view

    def _insert_axes(self, keys: tuple[Any, ...]) -> Index:
        """Insert axes of one position where the key has None."""
        if any(item is not None and item is not Ellipsis and item != slice(None) for item in keys):
            fail(
                "index_subscript", "an index expression takes only None and `:` in its brackets",
                "make the nl.arange as long as the tile needs",
            )  # fmt: skip
        missing = self.ndim - sum(1 for item in keys if item == slice(None))
        filled: list[bool] = []
        for item in keys:
            filled += [False] * missing if item is Ellipsis else [item is None]
        filled += [False] * (self.ndim - filled.count(False))
        if filled.count(False) != self.ndim:
            fail("index_subscript", f"{len(keys)} places in the brackets of an index with {self.ndim} axes")
        counts, steps = iter(self._linear.shape), iter(self._linear.coefficients)
        shape = tuple([1 if new else next(counts) for new in filled])
        return Index(
            intern_linear(shape, tuple([0 if new else next(steps) for new in filled])), self._constant
        )

    # -- arithmetic ------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        if type(other) in INTEGERS:
            return Index(self._linear, self._constant + other)
        if type(other) is Index:
            return Index(self._linear.add(other._linear), self._constant + other._constant)
        if _is_tensor(other):
            return ShiftedIndex(other, self)
        return (
            other + self
            if type(other) is ShiftedIndex or hasattr(other, "_tables")
            else Index(self._linear, self._constant + _to_integer(other, "+"))
        )

    __radd__ = __add__

    def __mul__(self, other: Any) -> Index:
        if _is_tensor(other):
            return NotImplemented
        factor = _to_integer(other, "*")
        return Index(self._linear.scale(factor), self._constant * factor)

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Any) -> Index:
        made: Index = NotImplemented if _is_tensor(other) else self + -other
        return made

    def __rsub__(self, other: Any) -> Index:
        made: Index = -self + other
        return made

    def _not_affine(self, *_: object) -> NoReturn:
        fail(
            "index_not_affine", "index expressions take only +, -, *, // and % with integers",
            "split the nl.arange in two axes",
        )  # fmt: skip

    __rfloordiv__ = __truediv__ = __rmod__ = __pow__ = _not_affine

    def __floordiv__(self, other: Any) -> Any:
        return _divide(self, other, remainder=False)

    def __mod__(self, other: Any) -> Any:
        return _divide(self, other, remainder=True)

    # -- masks -----------------------------------------------------------------------------------

    def _compare(self, other: Any, op: str) -> Condition:
        rest: Index = self - other
        return Condition(rest._linear, rest._constant, op)

    def __ge__(self, other: Any) -> Condition:
        return self._compare(other, "greater_equal")

    def __gt__(self, other: Any) -> Condition:
        return self._compare(other, "greater")

    def __le__(self, other: Any) -> Condition:
        return self._compare(other, "less_equal")

    def __lt__(self, other: Any) -> Condition:
        return self._compare(other, "less")

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compare(other, "equal")

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compare(other, "not_equal")

    __hash__ = None  # type: ignore[assignment]

    # -- what is refused -------------------------------------------------------------------------

    def __bool__(self) -> NoReturn:  # noqa: PLE0304  it always refuses
        refuse_condition()

    def __setitem__(self, key: object, value: object) -> NoReturn:
        fail(
            "cannot_assign_to_index", "an index does not support item assignment",
            "turn it into a tile with nisa.iota first",
        )  # fmt: skip

    def __iter__(self) -> NoReturn:
        fail("iterate_index", "an index expression cannot be iterated", "loop over nl.affine_range")


class ShiftedIndex(KernelValue):
    """An index expression plus the integer in a tile of one element: `offsets[0, k] + i_f`."""

    __slots__ = ("_index", "_source")

    def __init__(self, source: Any, index: Index) -> None:
        if source._size != 1:
            fail(
                "indirect_indices_free_dim",
                f"{source.name} of shape {source.shape} is added to an index expression",
                "one element moves a whole pattern: offsets[0, k] + nl.arange(n)[None, :]",
            )  # fmt: skip
        self._source = source
        self._index = index

    def __add__(self, other: Any) -> ShiftedIndex:
        return ShiftedIndex(self._source, self._index + other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> ShiftedIndex:
        return ShiftedIndex(self._source, self._index - other)


def refuse_condition() -> NoReturn:
    """Refuse Python control flow on a value that differs between the elements of a tile."""
    fail(
        "control_flow_condition_depending_on_arange",
        "control flow that depends on nl.arange or nl.mgrid is not supported",
        "pass the condition as mask= to the instructions; join conditions with & rather than `and`",
    )  # fmt: skip


def _divide(value: Index, divisor: Any, *, remainder: bool) -> Any:
    from nki_sim.frontend.legacy.divided_index import divide_index

    return divide_index(value, divisor, remainder=remainder)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "_storage")


def _to_integer(value: Any, sign: str) -> int:
    try:
        return to_int(value)
    except TypeError:
        fail("index_not_affine", f"an index expression {sign} {type(value).__name__} is not affine")


def arange(start: int, stop: int | None = None, step: int = 1) -> Index:
    """Positions start, start + step, ... below stop, as one axis; `[:, None]` makes it the partition axis."""
    key = start if stop is None and step == 1 else (start, stop, step)
    made = _aranges.get(key)
    if made is None:
        made = _aranges[key] = _build_arange(*((0, start) if stop is None else (start, stop)), step)
    return made


def _build_arange(start: Any, stop: Any, step: Any) -> Index:
    first, last, stride = _to_integer(start, "from"), _to_integer(stop, "to"), _to_integer(step, "by")
    count = len(range(first, last, stride)) if stride else 0
    if count < 1:
        fail("index_empty", f"nl.arange({start}, {stop}, {step}) has no positions")
    return Index(intern_linear((count,), (stride,)), first)


class IndexGrid(tuple[Index, ...]):
    """The value of `nl.mgrid[...]`: one index per axis, by position or as `.p`, `.x`, `.y`, `.z`, `.w`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Index:
        at = "pxyzw".find(name)
        if len(name) != 1 or not 0 <= at < len(self):
            raise AttributeError(f"a grid of {len(self)} axes has no {name}")
        return self[at]


class _MGrid(KernelValue):
    """`nl.mgrid[0:128, 0:512]`: dense indices, one per axis."""

    def __getitem__(self, key: Any) -> IndexGrid:
        keys = key if type(key) is tuple else (key,)
        if any(not isinstance(item, slice) for item in keys):
            fail("index_subscript", "nl.mgrid takes slices with a start and an end, one per axis")
        axes = [arange(item.start or 0, item.stop, item.step or 1) for item in keys]
        shape = tuple(axis.shape[0] for axis in axes)
        return IndexGrid(
            Index(
                intern_linear(
                    shape, tuple(a._linear.coefficients[0] if at == axis else 0 for at in range(len(keys)))
                ),
                a._constant,
            )
            for axis, a in enumerate(axes)
        )


mgrid = _MGrid()
