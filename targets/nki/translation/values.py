"""The operations of one loop nest: what is computed for each iteration of its loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remote.judge.identity.expression import Shape
from targets.nki.translation.access import Access, Atom

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array in HBM: its name in the kernel, its shape, and its type's name in `nl`."""

    name: str
    shape: Shape
    dtype: str = "float32"


@dataclass(frozen=True, eq=False)
class Value:
    """One operation; `node` is the operation of the expression that it comes from."""

    node: int

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        """The loops that its result depends on."""
        return frozenset().union(*(operand.atoms for operand in self.operands)) - self.bound

    @property
    def operands(self) -> Sequence[Value]:
        """The operations whose results it uses."""
        return ()

    @property
    def bound(self) -> frozenset[Atom]:
        """The loops that it runs itself, as sums do."""
        return frozenset()

    def walk(self) -> Iterator[Value]:
        """Every operation below and this one, each once."""
        seen = set[int]()
        stack: list[Value] = [self]
        while stack:
            item = stack.pop()
            if id(item) not in seen:
                seen.add(id(item))
                yield item
                stack += item.operands


@dataclass(frozen=True, eq=False)
class Number(Value):
    """The same number in every iteration."""

    number: float


@dataclass(frozen=True, eq=False)
class Table(Value):
    """Known numbers, an axis for each of `loops`."""

    numbers: Array
    loops: tuple[Atom, ...]

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        return frozenset(self.loops)


@dataclass(frozen=True, eq=False)
class Load(Value):
    """Elements of an array in HBM."""

    buffer: Buffer
    access: Access

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        return self.access.atoms


@dataclass(frozen=True, eq=False)
class PairedLoad(Value):
    """A load over two loops that are one on the partitions, though the array does not lie that way."""

    load: Load
    outer: Atom
    inner: Atom
    both: Atom

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        return self.load.atoms - {self.outer, self.inner} | {self.both}


@dataclass(frozen=True, eq=False)
class Unary(Value):
    """A function of one value."""

    function: str
    value: Value

    @property
    def operands(self) -> Sequence[Value]:
        return (self.value,)


@dataclass(frozen=True, eq=False)
class Binary(Value):
    """A function of two values."""

    function: str
    left: Value
    right: Value

    @property
    def operands(self) -> Sequence[Value]:
        return self.left, self.right


@dataclass(frozen=True, eq=False)
class Select(Value):
    """`left` where the condition is not 0, else `right`."""

    condition: Value
    left: Value
    right: Value

    @property
    def operands(self) -> Sequence[Value]:
        return self.condition, self.left, self.right


@dataclass(frozen=True, eq=False)
class Reduce(Value):
    """A value combined over loops: add, multiply, maximum or minimum."""

    function: str
    value: Value
    over: tuple[Atom, ...]

    @property
    def operands(self) -> Sequence[Value]:
        return (self.value,)

    @property
    def bound(self) -> frozenset[Atom]:
        return frozenset(self.over)


@dataclass(frozen=True, eq=False)
class Moments(Value):
    """Mean and variance of a value over loops."""

    value: Value
    over: tuple[Atom, ...]

    @property
    def operands(self) -> Sequence[Value]:
        return (self.value,)

    @property
    def bound(self) -> frozenset[Atom]:
        return frozenset(self.over)


@dataclass(frozen=True, eq=False)
class Moment(Value):
    """The mean, place 0, or the variance, place 1."""

    moments: Moments
    place: int

    @property
    def operands(self) -> Sequence[Value]:
        return (self.moments,)


@dataclass(frozen=True, eq=False)
class Contract(Value):
    """The sum over loops of left * right, added up over pairs: matrix products into one accumulator."""

    pairs: tuple[tuple[Value, Value], ...]
    over: tuple[tuple[Atom, ...], ...]

    @property
    def operands(self) -> Sequence[Value]:
        return [value for pair in self.pairs for value in pair]

    @property
    def bound(self) -> frozenset[Atom]:
        return frozenset(atom for own in self.over for atom in own)


@dataclass(frozen=True, eq=False)
class Scan(Value):
    """state = factor * state + term, along a loop; every state is a result."""

    factor: Value
    term: Value
    initial: Value
    along: Atom

    @property
    def operands(self) -> Sequence[Value]:
        return self.factor, self.term, self.initial

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        return frozenset().union(*(value.atoms for value in self.operands)) | {self.along}


@dataclass(frozen=True, slots=True)
class Part:
    """A box of an assembled value: by loop its start and size, and the value there, over loops of its own."""

    value: Value
    box: tuple[tuple[Atom, int, Atom], ...]


@dataclass(frozen=True, eq=False)
class Assembled(Value):
    """A value made of boxes; elsewhere it is `base`, or nothing is known."""

    base: float | None
    parts: tuple[Part, ...]
    loops: tuple[Atom, ...] = field(default=())

    @property
    def operands(self) -> Sequence[Value]:
        return [part.value for part in self.parts]

    @property
    def bound(self) -> frozenset[Atom]:
        return frozenset(own for part in self.parts for _, _, own in part.box)

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        inner = frozenset().union(*(part.value.atoms for part in self.parts)) - self.bound
        return inner | frozenset(self.loops)
