"""Index expressions with `//` and `%`: `t[i_p, i_f // w, i_f % w]`, one axis over two dimensions.

Such an expression has a table of values for each axis; tables of one key add up to addresses. An access works
where the addresses of each axis are evenly spaced, as they are when quotient and remainder index neighbouring
dimensions. Anything else is refused as not affine.
"""

from __future__ import annotations

from itertools import pairwise
from operator import index as to_int
from typing import Any, NoReturn

from nki_sim.forms import Dims
from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.legacy.index import Index, broadcast_shapes
from nki_sim.frontend.tensor import fail

Tables = tuple[tuple[int, ...], ...]
"""For each axis the values at its positions."""


class DividedIndex(KernelValue):
    """An index expression that adds up `tables`, one for each axis, and `constant`."""

    __slots__ = ("_constant", "_tables")

    def __init__(self, tables: Tables, constant: int) -> None:
        self._tables = tables
        self._constant = constant

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of positions along each axis."""
        return tuple(map(len, self._tables))

    def __add__(self, other: Any) -> DividedIndex:
        if not isinstance(other, Index | DividedIndex):
            return DividedIndex(self._tables, self._constant + _to_integer(other))
        shape = broadcast_shapes(self.shape, other.shape)
        mine, theirs = tables_over(self, shape), tables_over(other, shape)
        summed = tuple(
            tuple(a + b for a, b in zip(one, two, strict=True)) for one, two in zip(mine, theirs, strict=True)
        )
        return DividedIndex(summed, self._constant + other._constant)

    __radd__ = __add__

    def __mul__(self, other: Any) -> DividedIndex:
        factor = _to_integer(other)
        tables = tuple(tuple(factor * value for value in table) for table in self._tables)
        return DividedIndex(tables, factor * self._constant)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> DividedIndex:
        return self.__add__(-other)

    def __neg__(self) -> DividedIndex:
        return self * -1

    def __rsub__(self, other: Any) -> DividedIndex:
        return (self * -1).__add__(other)

    def __floordiv__(self, other: Any) -> DividedIndex:
        return divide_index(self, other, remainder=False)

    def __mod__(self, other: Any) -> DividedIndex:
        return divide_index(self, other, remainder=True)

    def _not_affine(self, *_: object) -> NoReturn:
        refuse_division("a quotient or remainder of an index")

    __lt__ = __le__ = __gt__ = __ge__ = __truediv__ = __pow__ = __getitem__ = __iter__ = _not_affine


def refuse_division(what: str) -> NoReturn:
    """Refuse what is not affine in the end."""
    fail(
        "index_not_affine", f"{what} is not affine",
        "divide the positions of one axis, and use quotient and remainder for neighbouring dimensions",
    )  # fmt: skip


def divide_index(value: Index | DividedIndex, divisor: Any, *, remainder: bool) -> DividedIndex:
    """Return `value // divisor` or `value % divisor`; the value must move along one axis alone."""
    number = _to_integer(divisor)
    if number < 1:
        refuse_division(f"an index divided by {number}")
    tables = tables_over(value, value.shape)
    moving = [axis for axis, table in enumerate(tables) if any(table)]
    if len(moving) > 1:
        refuse_division(f"a division of positions along {len(moving)} axes")
    axis = moving[0] if moving else 0
    divided = tuple(divmod(value._constant + item, number)[remainder] for item in tables[axis])
    return DividedIndex((*tables[:axis], divided, *tables[axis + 1 :]), 0)


def tables_over(value: Any, shape: tuple[int, ...]) -> Tables:
    """The values of an expression or an integer, without its constant, over a shape it broadcasts to."""
    if isinstance(value, Index):
        steps = value._linear.coefficients_over(shape)
        return tuple(tuple(k * at for at in range(count)) for k, count in zip(steps, shape, strict=True))
    own = value._tables if isinstance(value, DividedIndex) else ()
    own = (*((0,),) * (len(shape) - len(own)), *own)
    return tuple(table * count if len(table) == 1 else table for table, count in zip(own, shape, strict=True))


def resolve_divided(name: str, dims: Dims, keys: tuple[Any, ...]) -> tuple[int, Dims]:
    """Return the first element and the dimensions of an access by integers and index expressions.

    The dimensions are those of the axes, with steps in elements; the caller checks the partitions.
    """
    if len(keys) != len(dims):
        fail("too_many_indices", f"{len(keys)} indices on {name}, which has {len(dims)} dimensions")
    shape: tuple[int, ...] = ()
    for item in keys:
        shape = broadcast_shapes(shape, getattr(item, "shape", ()))
    offset, sums = 0, [[0] * count for count in shape]
    for axis, (item, (stride, count)) in enumerate(zip(keys, dims, strict=True)):
        first, tables = getattr(item, "_constant", item), tables_over(item, shape)
        _check_bounds(name, axis, count, first=first, tables=tables)
        offset += stride * first
        for total, table in zip(sums, tables, strict=True):
            for at, value in enumerate(table):
                total[at] += stride * value
    offset += sum(total[0] for total in sums)
    return offset, tuple(_even_steps(name, total) for total in sums)


def _check_bounds(name: str, axis: int, count: int, *, first: int, tables: Tables) -> None:
    low, high = first + sum(map(min, tables)), first + sum(map(max, tables))
    if low < 0 or high >= count:
        fail(
            "tensor_access_out_of_bound",
            f"indices {low}..{high} of dimension {axis} of {name} are outside its {count} elements",
            "check the loop bounds; quotients and remainders take no mask",
        )  # fmt: skip


def _even_steps(name: str, addresses: list[int]) -> tuple[int, int]:
    steps = {second - first for first, second in pairwise(addresses)} or {1}
    if len(steps) > 1:
        refuse_division(f"the access to {name}: its elements are not evenly spaced, and it")
    return steps.pop(), len(addresses)


def _to_integer(value: Any) -> int:
    try:
        return to_int(value)
    except TypeError:
        refuse_division(f"a division with {type(value).__name__}")
