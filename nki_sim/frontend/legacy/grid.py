"""Launch grids: the program instances of a kernel, and the core that runs each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from operator import index as to_int
from typing import Any

from nki_sim.frontend.context import current_recorder
from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.tensor import fail

MAX_CORES = 2


class nc(KernelValue):  # noqa: N801  the documented spelling
    """`nl.nc(2)`: a dimension of two physical cores."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        if to_int(count) not in range(1, MAX_CORES + 1):
            fail("grid", f"nl.nc({count}): a launch has 1 or {MAX_CORES} cores")
        self._count = to_int(count)

    def __mul__(self, other: Any) -> SpmdDim:
        return SpmdDim((self._count, to_int(other)), core_axis=0)

    def __rmul__(self, other: Any) -> SpmdDim:
        return SpmdDim((to_int(other), self._count), core_axis=1)


class SpmdDim(KernelValue):
    """One dimension of a grid made of several, one of which is distributed over the cores."""

    __slots__ = ("_core_axis", "_sizes")

    def __init__(self, sizes: tuple[int, ...], core_axis: int) -> None:
        self._sizes = sizes
        self._core_axis = core_axis

    def _core_index(self, number: int) -> int:
        """The core for a program's index along this dimension."""
        for size in reversed(self._sizes[self._core_axis + 1 :]):
            number //= size
        return number % self._sizes[self._core_axis]


def spmd_dim(*dims: Any) -> SpmdDim:
    """`nl.spmd_dim(n, nl.nc(2))`: n * 2 programs; neighbours in the last position run on different cores."""
    axes = [axis for axis, dim in enumerate(dims) if isinstance(dim, nc)]
    if len(axes) != 1:
        fail("grid", f"nl.spmd_dim of {len(axes)} core dimensions", "give one of them as nl.nc(2)")
    sizes = tuple(dim._count if isinstance(dim, nc) else to_int(dim) for dim in dims)
    return SpmdDim(sizes, axes[0])


class LaunchGrid:
    """The programs of a launch: one id per dimension, and the core it runs on."""

    __slots__ = ("_dims", "shape")

    def __init__(self, dims: tuple[int | SpmdDim, ...]) -> None:
        self._dims = dims
        self.shape = tuple(_dim_size(dim) for dim in dims)

    @classmethod
    def from_key(cls, key: Any) -> LaunchGrid:
        """Parse the grid of `kernel[key]`: integers, `nl.nc(2)`, `nl.spmd_dim(...)`."""
        keys = key if isinstance(key, tuple | list) else (key,)
        return cls(tuple(_parse_dim(item) for item in keys))

    def programs(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield (ids, core) of each program, the last dimension fastest."""
        for ids in product(*(range(size) for size in self.shape)):
            cores = [
                dim._core_index(number)
                for dim, number in zip(self._dims, ids, strict=True)
                if isinstance(dim, SpmdDim)
            ]
            yield ids, max(cores, default=0)


def _parse_dim(item: Any) -> int | SpmdDim:
    if isinstance(item, SpmdDim):
        return item
    if isinstance(item, nc):
        return SpmdDim((item._count,), 0)
    try:
        size = to_int(item)
    except TypeError:
        size = 0
    if size < 1:
        fail("grid", f"a dimension of a launch grid is {item!r}", "positive integers, nl.nc, nl.spmd_dim")
    return size


def _dim_size(dim: int | SpmdDim) -> int:
    if isinstance(dim, int):
        return dim
    total = 1
    for size in dim._sizes:
        total *= size
    return total


def _current_program() -> tuple[tuple[int, ...], tuple[int, ...]]:
    recorder = current_recorder()
    return recorder.program, recorder.grid


def _check_axis(axis: Any, rank: int) -> int:
    number = to_int(axis)
    if not 0 <= number < max(rank, 1):
        fail("grid", f"axis {number} of a launch grid of {rank} dimensions")
    return number


def program_id(axis: int) -> int:
    """Return this program's index along a dimension of the grid."""
    ids, _ = _current_program()
    at = _check_axis(axis, len(ids))
    return ids[at] if ids else 0


def num_programs(axes: Any = 0) -> int:
    """Return the number of programs along a dimension of the grid, or along several together."""
    _, shape = _current_program()
    total = 1
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        at = _check_axis(axis, len(shape))
        total *= shape[at] if shape else 1
    return total


def program_ndim() -> int:
    """Return the number of dimensions of the launch grid."""
    return len(_current_program()[1])
