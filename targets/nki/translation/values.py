"""The operations of one loop nest: what is computed for each iteration of its loops."""

from __future__ import annotations

from collections import Counter
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
class KeptRows(Value):
    """Results of rows that an earlier stage left on the chip, in any order; the first loop is the rows."""

    name: str
    loops: tuple[Atom, ...]

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        return frozenset(self.loops)


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
class SpreadSum(Value):
    """A sum that every partition has: the tensor engine adds up the partitions by a product with ones."""

    value: Value
    along: Atom
    """The loop of the sum, which lies on the partitions meanwhile."""

    @property
    def operands(self) -> Sequence[Value]:
        return (self.value,)

    @property
    def bound(self) -> frozenset[Atom]:
        return frozenset({self.along})


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


@dataclass(frozen=True, eq=False)
class StackedRows(Value):
    """Rows of an array on top of each other on the partitions, each with `inner` elements there.

    Step s of `steps` has rows first + s * stride + r * spacing for each r of the stack. Rows that the array
    does not have, and what lies around its boxes, are `base`.
    """

    load: Load
    inner: Atom
    rows: Atom
    """The loop of the load that walks the rows."""
    both: Atom
    """The loop on the partitions: the rows of the stack, and the inner loop in each."""
    steps: Atom
    first: int
    stride: int
    spacing: int
    base: float
    box: tuple[tuple[Atom, int, Atom], ...]
    """Other loops with a border: the whole loop, where the load begins, and the load's loop."""

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        owns = {own for _, _, own in self.box}
        spans = {span for span, _, _ in self.box}
        return self.load.atoms - owns - {self.inner, self.rows} | spans | {self.both, self.steps}


@dataclass(frozen=True, slots=True)
class Band:
    """A weight's place: the row of the stack, the result's step inside, and the product that takes it."""

    row: int
    step: int
    group: int


@dataclass(frozen=True, eq=False)
class BandedWeights(Value):
    """Weights for stacked rows: a row of the stack meets a step of the result where a tap joins them.

    `taps` has rows of weights over `inner` and `outer`, None where there is none; `bands` says for each row
    where all its weights are, those of one group after the other.
    """

    taps: tuple[tuple[Value | None, ...], ...]
    bands: tuple[tuple[Band, ...], ...]
    inner: Atom
    outer: Atom
    both: Atom
    """The loop on the partitions."""
    result: Atom
    """The loop of the result's partitions: its steps inside, and the outer loop in each."""
    groups: Atom

    @property
    def operands(self) -> Sequence[Value]:
        return [tap for row in self.taps for tap in row if tap is not None]

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        inside = frozenset().union(*(tap.atoms for tap in self.operands)) - {self.inner, self.outer}
        return inside | {self.both, self.result, self.groups}


@dataclass(frozen=True, eq=False)
class TilePart(Value):
    """A part of another value: single places of some loops, and windows of others, as in `Tile`."""

    whole: Value
    places: tuple[tuple[Atom, int], ...] = ()
    windows: tuple[tuple[Atom, Atom, int, int], ...] = ()
    """The whole's loop, this one's, the first place, and the step."""

    @property
    def operands(self) -> Sequence[Value]:
        return (self.whole,)

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        gone = {atom for atom, _ in self.places} | {span for span, _, _, _ in self.windows}
        return self.whole.atoms - gone | {own for _, own, _, _ in self.windows}


def count_uses(values: Sequence[Value]) -> Counter[Value]:
    """How many operations use each value; a result counts as one more use."""
    items = {item for value in values for item in value.walk()}
    return Counter(values) + Counter(operand for item in items for operand in item.operands)


def find_readers(values: Sequence[Value]) -> dict[Value, list[Value]]:
    """The operations that use each value."""
    found: dict[Value, list[Value]] = {}
    for item in {item for value in values for item in value.walk()}:
        for operand in item.operands:
            found.setdefault(operand, []).append(item)
    return found
