"""Finds what a loop nest computes: goes backwards from an output to inputs, one access at a time.

An operation is asked for at an access, which says which of its elements each iteration needs. It asks for its
arguments in turn. Views only change the access, so slices, transposes and reshapes cost nothing here. Equal
questions have one answer, so a value that is used twice is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import as_strided

from remote.judge.identity.expression import ArrayExpression, ExpressionNode, Shape, align_view
from targets.base import UntranslatableError
from targets.nki.translation.access import (
    Access,
    Atom,
    AxisIndex,
    SplitNeededError,
    join_axes,
    through_broadcast,
    through_view,
)
from targets.nki.translation.activations import ActivationFinder, FoundActivation
from targets.nki.translation.constants import find_predicate, split_band
from targets.nki.translation.known import KnownArrays
from targets.nki.translation.known_tables import compose_table
from targets.nki.translation.simplify import (
    make_binary,
    make_choice,
    make_contraction,
    make_reduction,
    make_unary,
)
from targets.nki.translation.values import (
    Assembled,
    Buffer,
    KeptRows,
    Load,
    Number,
    Part,
    Scan,
    Select,
    Table,
    Unary,
    Value,
)

_OF_ELEMENTS = frozenset({"unary", "binary", "select"})
_MAX_TABLE = 1 << 21
_MAX_SOURCES = 64
_MAX_RUNS = 64
_MOST_TAPS = 8
"""Steps of a loop of a sum up to which it may be several products."""


class StoredNeededError(Exception):
    """An operation's result has to be in HBM before it can be read as wanted."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.node = node


@dataclass
class LoopTable:
    """Names loops, and remembers which are split."""

    splits: dict[Atom, int] = field(default_factory=dict)

    def loops(self, name: str, size: int) -> list[tuple[Atom, int]]:
        """Return the loops that run an axis of this size, each with its step along the axis."""
        return [] if size == 1 else self._split(Atom(name, size), 1)

    def _split(self, atom: Atom, step: int) -> list[tuple[Atom, int]]:
        size = self.splits.get(atom)
        if size is None:
            return [(atom, step)]
        outer, inner = atom.split(size)
        return self._split(outer, step * size) + self._split(inner, step)

    def index(self, name: str, size: int) -> AxisIndex:
        """Return the index that runs along a whole axis."""
        return AxisIndex(0, tuple(self.loops(name, size)))


class Demand:
    """What operations of an expression give, at the accesses that were asked for."""

    def __init__(
        self,
        expression: ArrayExpression,
        *,
        inputs: Sequence[Buffer],
        stored: Mapping[int, Buffer],
        kept: Mapping[Buffer, KeptRows],
        loops: LoopTable,
        known: KnownArrays,
        activations: ActivationFinder,
        before: Demand | None = None,
        vectors: Sequence[int] = (),
    ) -> None:
        self.nodes = expression.nodes
        self.indices = expression.arrays
        self.inputs, self.stored, self.loops, self.known = inputs, stored, loops, known
        self.kept, self.activations = kept, activations
        self.vectors = vectors
        self.found_vectors, self.found_matrices = dict[int, None](), dict[int, None]()
        self._product_depths = _product_depths(expression.nodes)
        self._found: dict[tuple[int, Access], Value] = {}
        self._asked: dict[int, list[Access]] = {}
        self._before: Mapping[int, Sequence[Access]] = {} if before is None else before.accesses
        self._makers: Mapping[str, Callable[[int, ExpressionNode, Access], Value]] = {
            "assemble": self._assemble,
            "binary": self._binary,
            "input": self._input,
            "matmul": self._matmul,
            "recurrence": self._recurrence,
            "reduce": self._reduce,
            "select": self._select,
            "take": self._take,
            "unary": self._unary,
            "view": self._view,
        }

    @property
    def accesses(self) -> Mapping[int, Sequence[Access]]:
        """The accesses at which each operation was asked for."""
        return self._asked

    def value(self, number: int, access: Access) -> Value:
        """Return what an operation gives at an access.

        Raises:
            SplitNeededError: a loop has to be split for it.
            StoredNeededError: an operation has to be stored first.
            UntranslatableError: there is no translation.
        """
        key = number, access
        if key not in self._found:
            self._asked.setdefault(number, []).append(access)
            self._found[key] = self._make(number, access)
        return self._found[key]

    def _make(self, number: int, access: Access) -> Value:
        node = self.nodes[number]
        if number in self.stored:
            return Load(number, self.stored[number], access)
        if self.known.is_known(number):
            return self._known_value(number, access)
        found = self.activations.find(number) if node.kind in _OF_ELEMENTS else None
        if found is not None:
            return self._activation(number, found, access)
        return self._makers[node.kind](number, node, access)

    def _activation(self, number: int, found: FoundActivation, access: Access) -> Value:
        """factor * function(scale * x): the engine's function, whatever the reference calls it."""
        data = make_binary(number, "multiply", self.value(found.source, access), Number(number, found.scale))
        result = Unary(number, found.function, data)
        return make_binary(number, "multiply", result, Number(number, found.factor))

    def _known_value(self, number: int, access: Access) -> Value:
        flat = np.ascontiguousarray(self.known.array(number)).reshape(-1)[access.offset :]
        if min((stride for _, stride in access.terms), default=0) < 0:
            flat = np.ascontiguousarray(self.known.array(number)).reshape(-1)
            places = access.offset + sum(
                (np.arange(atom.size) * stride).reshape((-1,) + (1,) * (len(access.terms) - 1 - at))
                for at, (atom, stride) in enumerate(access.terms)
            )
            array = flat[places]
        else:
            sizes = [atom.size for atom, _ in access.terms]
            array = as_strided(flat, sizes, [stride * flat.itemsize for _, stride in access.terms])
        first = float(array.reshape(-1)[0]) if array.size else 0.0
        if bool((array == first).all()):
            return Number(number, first)
        if array.size > _MAX_TABLE:
            raise UntranslatableError(f"known numbers of shape {array.shape} are too many for a kernel")
        table = Table(number, np.array(array), tuple(atom for atom, _ in access.terms))
        return compose_table(table) or table

    def _input(self, number: int, node: ExpressionNode, access: Access) -> Value:
        return Load(number, self.inputs[node.params[0]], access)

    def _view(self, _: int, node: ExpressionNode, access: Access) -> Value:
        return self.value(node.args[0], through_view(access, *node.params))

    def _argument(self, node: ExpressionNode, at: int, access: Access) -> Value:
        source = node.args[at]
        return self.value(source, through_broadcast(access, node.shape, self.nodes[source].shape))

    def _unary(self, number: int, node: ExpressionNode, access: Access) -> Value:
        return make_unary(number, node.params[0], self._argument(node, 0, access))

    def _binary(self, number: int, node: ExpressionNode, access: Access) -> Value:
        if node.params[0] in {"divide", "true_divide"}:
            divisor = node.args[1]
            found = self.activations.find(divisor, inverse=True)
            if found is not None:
                inner = through_broadcast(access, node.shape, self.nodes[divisor].shape)
                inverse = self._activation(number, found, inner)
                return make_binary(number, "multiply", self._argument(node, 0, access), inverse)
        left, right = (self._argument(node, at, access) for at in (0, 1))
        return make_binary(number, node.params[0], left, right)

    def _select(self, number: int, node: ExpressionNode, access: Access) -> Value:
        condition, left, right = (self._argument(node, at, access) for at in (0, 1, 2))
        if isinstance(condition, Number):
            return left if condition.number else right
        if isinstance(condition, Table) and isinstance(left, Number) and not isinstance(right, Number):
            condition = replace(condition, numbers=(condition.numbers == 0).astype(np.float64))
            left, right = right, left
        if isinstance(condition, Table) and isinstance(right, Number) and find_predicate(condition) is None:
            band = split_band(condition)
            if band is not None:
                return Select(number, band[0], Select(number, band[1], left, right), right)
        return make_choice(number, condition, left, right)

    def _reduce(self, number: int, node: ExpressionNode, access: Access) -> Value:
        name, *axes = node.params
        rows = self.kept.get(self.stored[node.args[0]]) if node.args[0] in self.stored else None
        if rows is not None:
            return make_reduction(number, name, rows, rows.loops)
        source = self.nodes[node.args[0]].shape
        indices = access.split_by_axis(node.shape)
        over: list[Atom] = []
        together = self._running_together(node.args[0], indices, axes) if len(axes) > 1 else {}
        for axis in axes:
            operand = node.args[0], indices, axis
            taken = access.atoms | {*over}
            own = together.get(axis) or self._inner_index(
                f"r{number}_{axis}", source[axis], [operand], taken=taken
            )
            indices[axis] = own
            over += [atom for atom, _ in own.terms]
        return make_reduction(number, name, self.value(node.args[0], join_axes(source, indices)), over)

    def _inner_index(
        self,
        name: str,
        size: int,
        sources: Sequence[tuple[int, Sequence[AxisIndex], int]],
        *,
        taken: Collection[Atom],
    ) -> AxisIndex:
        """The loops of a sum: those that walk that axis of an operand already, to share its tiles.

        A loop that is taken, as the result runs along it, would be summed over as well as kept.
        """
        for number, indices, axis in sources:
            for found in self._running_indices(number, axis, size):
                if _clashes(found, taken):
                    continue
                wanted = list(indices)
                wanted[axis] = found
                if self._was_asked(number, join_axes(self.nodes[number].shape, wanted)):
                    return found
        fresh = self.loops.index(name, size)
        while _clashes(fresh, taken):
            name += "'"
            fresh = self.loops.index(name, size)
        return fresh

    def _running_together(
        self, number: int, indices: Sequence[AxisIndex], axes: Sequence[int]
    ) -> dict[int, AxisIndex]:
        """The loops by which another sum walks several axes of an operation; none: there is no such sum.

        Loops of results do not count: they may be around the tiles, and the sum needs all elements at once.
        """
        shape = self.nodes[number].shape
        for at in self._elementwise_sources(number):
            for access in dict.fromkeys((*self._before.get(at, ()), *self._asked.get(at, ()))):
                found = {axis: _index_along(access, shape, axis) for axis in axes}
                walked = {axis: own for axis, own in found.items() if own and _walks_whole(own, shape[axis])}
                wanted = [walked.get(axis, index) for axis, index in enumerate(indices)]
                loops = [atom for own in walked.values() for atom, _ in own.terms]
                kept = {atom for at, index in enumerate(indices) if at not in axes for atom, _ in index.terms}
                is_apart = len({*loops}) == len(loops) and not kept & {*loops}
                is_sum = is_apart and not any(atom.name.startswith("o") for atom in loops)
                whole = {axis for axis in axes if shape[axis] > 1}
                if is_sum and walked.keys() == whole and join_axes(shape, wanted) == access:
                    return walked
        return {}

    def _running_indices(self, number: int, axis: int, size: int) -> list[AxisIndex]:
        """How an axis of an operation was walked from end to end, by loops of outputs first."""
        found: dict[AxisIndex, None] = {}
        for at in self._elementwise_sources(number):
            for access in dict.fromkeys((*self._before.get(at, ()), *self._asked.get(at, ()))):
                index = _index_along(access, self.nodes[at].shape, axis)
                if index is not None and _walks_whole(index, size):
                    found[index] = None
        return sorted(found, key=lambda index: [(not a.name.startswith("o"), a.name) for a, _ in index.terms])

    def _was_asked(self, number: int, access: Access) -> bool:
        """Whether an operation, or one of which it is a function element by element, was asked for there."""
        return any(
            access in self._before.get(at, ()) or access in self._asked.get(at, ())
            for at in self._elementwise_sources(number)
        )

    def _elementwise_sources(self, number: int) -> list[int]:
        """An operation and those of the same shape from which it is computed element by element."""
        found: list[int] = []
        todo = [number]
        while todo and len(found) < _MAX_SOURCES:
            at = todo.pop()
            if at in found or self.nodes[at].shape != self.nodes[number].shape or self.known.is_known(at):
                continue
            found.append(at)
            if self.nodes[at].kind in {"unary", "binary", "select"}:
                todo += self.nodes[at].args
        return found

    def _matmul(self, number: int, node: ExpressionNode, access: Access) -> Value:
        *batch, row, column = access.split_by_axis(node.shape)
        left, right = (self.nodes[at].shape for at in node.args)
        sides = [
            (node.args[0], [*_last(batch, left[:-2]), row, AxisIndex()], len(left) - 1),
            (node.args[1], [*_last(batch, right[:-2]), AxisIndex(), column], len(right) - 2),
        ]
        name = f"k{self._product_depths[number]}_{left[-1]}"
        inner = self._inner_index(name, left[-1], sides, taken=access.atoms)
        found: Value | None = None
        for one, other, over in self._products(node, batch, row, column, inner=inner):
            term = self._product(number, one, other, over)
            found = term if found is None else make_binary(number, "add", found, term)
        assert found is not None
        return found

    def _product(self, number: int, one: Value, other: Value, over: Sequence[Atom]) -> Value:
        """The sum of products over some loops."""
        is_vector = one.atoms < other.atoms or other.atoms < one.atoms
        (self.found_vectors if is_vector else self.found_matrices)[number] = None
        if is_vector and number in self.vectors:
            return make_reduction(number, "add", make_binary(number, "multiply", one, other), over)
        return make_contraction(number, one, other, over)

    def _products(
        self,
        node: ExpressionNode,
        batch: Sequence[AxisIndex],
        row: AxisIndex,
        column: AxisIndex,
        *,
        inner: AxisIndex,
    ) -> list[tuple[Value, Value, list[Atom]]]:
        """Both operands of a product and the loops of its sum; several for short loops along a border.

        A window that moves over an array with a border meets the border at other places for each of its taps.
        """
        shapes = [self.nodes[at].shape for at in node.args]
        try:
            one, other = (
                self.value(at, join_axes(shape, [*_last(batch, shape[:-2]), *own]))
                for at, shape, own in zip(node.args, shapes, ((row, inner), (inner, column)), strict=True)
            )
        except StoredNeededError as error:
            if self.nodes[error.node].kind != "assemble" or len(inner.terms) == 1:
                raise
            for tap, step in sorted(inner.terms, key=lambda term: term[0].size):
                if tap.size > _MOST_TAPS:
                    break
                rest = tuple(term for term in inner.terms if term[0] != tap)
                places = [AxisIndex(inner.offset + step * place, rest) for place in range(tap.size)]
                try:
                    found = [self._products(node, batch, row, column, inner=own) for own in places]
                except StoredNeededError:
                    continue  # it is no loop along a border
                return [one for own in found for one in own]
            raise
        return [(one, other, [atom for atom, _ in inner.terms])]

    def _take(self, number: int, node: ExpressionNode, access: Access) -> Value:
        listed, axis = node.params
        source = self.nodes[node.args[0]].shape
        indices = access.split_by_axis(node.shape)
        places = np.asarray(self.indices[listed])
        runs = [0, *(1 + np.flatnonzero(np.diff(places) != 1)).tolist(), len(places)]
        if len(runs) == 2:
            indices[axis] = indices[axis].shift(int(places[0]), 1)
            return self.value(node.args[0], join_axes(source, indices))
        try:
            return self._take_by_table(node, indices, places)
        except UntranslatableError:
            return self._take_by_runs(number, node, indices, [*pairwise(runs)])

    def _take_by_runs(
        self, number: int, node: ExpressionNode, indices: list[AxisIndex], runs: list[tuple[int, int]]
    ) -> Value:
        """Elements at listed places, put together from runs of neighbours."""
        listed, axis = node.params
        places, source = np.asarray(self.indices[listed]), self.nodes[node.args[0]].shape
        if len(runs) > _MAX_RUNS:
            raise UntranslatableError(f"elements at {len(runs)} listed places along an axis")
        parts: list[Part] = []
        for start, end in runs:
            seen = _restrict(indices[axis], start, end - start, number=number)
            if seen is None:
                continue
            inside, box = seen
            own = list(indices)
            own[axis] = inside.shift(int(places[start]), 1)
            value = self.value(node.args[0], join_axes(source, own))
            if not box:
                return value
            parts.append(Part(value, tuple(box)))
        loops = dict.fromkeys(atom for part in parts for atom, _, _ in part.box)
        return Assembled(number, None, tuple(parts), tuple(loops))

    def _take_by_table(self, node: ExpressionNode, indices: list[AxisIndex], places: np.ndarray) -> Value:
        """Elements at listed places: the places have to be affine in the loops, or become so by splits."""
        axis, own = node.params[1], indices[node.params[1]]
        sizes = [atom.size for atom, _ in own.terms]
        steps = np.array([step for _, step in own.terms], int)
        grid = np.indices(sizes).reshape(len(sizes), -1).T @ steps + own.offset if sizes else own.offset
        wanted = places[grid].reshape(sizes)
        start = int(wanted.reshape(-1)[0])
        terms = []
        for at, (atom, _) in enumerate(own.terms):
            line = np.moveaxis(wanted, at, 0).reshape(atom.size, -1)
            changes = np.diff(line, axis=0)
            if (changes == changes[0, 0]).all():
                terms.append((atom, int(changes[0, 0])))
                continue
            inner = _even_runs(line)
            if inner is not None:
                raise SplitNeededError(atom, inner)
            raise UntranslatableError(f"elements at listed places along an axis of {len(places)}")
        indices[axis] = AxisIndex(start, tuple(terms))
        return self.value(node.args[0], join_axes(self.nodes[node.args[0]].shape, indices))

    def _recurrence(self, number: int, node: ExpressionNode, access: Access) -> Value:
        time, *rest = access.split_by_axis(node.shape)
        if len(time.terms) != 1 or time.offset or time.terms[0][1] != 1:
            raise StoredNeededError(number)
        along = time.terms[0][0]
        if along.size != node.shape[0]:
            raise StoredNeededError(number)
        factor, term = (self._argument(node, at, access) for at in (0, 1))
        shape = node.shape[1:]
        initial = self.value(
            node.args[2], through_broadcast(join_axes(shape, rest), shape, self.nodes[node.args[2]].shape)
        )
        return Scan(number, factor, term, initial, along)

    def _assemble(self, number: int, node: ExpressionNode, access: Access) -> Value:
        indices = access.split_by_axis(node.shape)
        base, *pieces = node.args
        parts: list[Part] = []
        for piece, (strides, offset) in zip(pieces, node.params, strict=True):
            part = self._part(number, indices, piece, strides, offset)
            if part is not None and not part.box:
                return part.value  # this piece is all that is asked for; later ones do not touch it
            if part is not None:
                parts.append(part)
        below: Value | None = None
        if self.nodes[base].kind != "unknown":
            below = self.value(base, through_broadcast(access, node.shape, self.nodes[base].shape))
        if not parts:
            if below is None:
                raise UntranslatableError("elements that were never written are read")
            return below
        if below is not None and not isinstance(below, Number):
            raise StoredNeededError(number)
        loops = dict.fromkeys(atom for part in parts for atom, _, _ in part.box)
        return Assembled(number, below.number if below else None, tuple(parts), tuple(loops))

    def _part(
        self, number: int, indices: Sequence[AxisIndex], piece: int, strides: tuple[int, ...], offset: int
    ) -> Part | None:
        """What an access sees of one piece: None, or a box of loops and the piece's value there."""
        shape, whole = self.nodes[piece].shape, self.nodes[number].shape
        aligned = align_view(whole, shape, strides, offset)
        assert aligned is not None  # checked when the expression was recorded
        own = [AxisIndex() for _ in shape]
        box: list[tuple[Atom, int, Atom]] = []
        for axis, index in enumerate(indices):
            if axis not in aligned.axes:  # the piece has one place along this axis
                seen = _restrict(index, aligned.starts[axis], 1, number=number)
            else:
                piece_axis, step = aligned.axes[axis]
                if step != 1:
                    raise StoredNeededError(number)
                seen = _restrict(index, aligned.starts[axis], shape[piece_axis], number=number)
            if seen is None:
                return None
            inside, bounds = seen
            box += bounds
            if axis in aligned.axes:
                own[aligned.axes[axis][0]] = inside
        return Part(self.value(piece, join_axes(shape, own)), tuple(box))


def _index_along(access: Access, shape: Shape, axis: int) -> AxisIndex | None:
    try:
        return access.split_by_axis(shape)[axis]
    except (SplitNeededError, UntranslatableError):
        return None


def _clashes(index: AxisIndex, taken: Collection[Atom]) -> bool:
    """Whether an index runs along one of some loops, or along one of which another is a part."""
    return any(
        other == atom or other.name.startswith(f"{atom.name}_") for atom, _ in index.terms for other in taken
    )


def _walks_whole(index: AxisIndex, size: int) -> bool:
    """Whether an index takes each place of an axis once, in order."""
    unit = 1
    for atom, step in sorted(index.terms, key=lambda term: term[1]):
        if step != unit:
            return False
        unit *= atom.size
    return index.offset == 0 and bool(index.terms) and unit == size


def _product_depths(nodes: Sequence[ExpressionNode]) -> list[int]:
    """How many products lie below each operation: products as deep as each other may share their loop."""
    found: list[int] = []
    for node in nodes:
        found.append(max((found[at] for at in node.args), default=0) + (node.kind == "matmul"))
    return found


def _even_runs(line: np.ndarray) -> int | None:
    """The length of runs along the first axis, if all are as long and both they and their starts are even."""
    cuts = 1 + np.flatnonzero((np.diff(line, axis=0) != line[1] - line[0]).any(axis=1))
    inner = int(cuts[0]) if cuts.size else 1
    if not 1 < inner < len(line) or len(line) % inner:
        return None
    blocks = line.reshape(-1, inner, line.shape[1])
    is_even = all(not np.diff(blocks, n=2, axis=axis).any() for axis in (0, 1))
    return inner if is_even and (np.diff(blocks, axis=1) == line[1] - line[0]).all() else None


def _restrict(
    index: AxisIndex, start: int, size: int, *, number: int
) -> tuple[AxisIndex, list[tuple[Atom, int, Atom]]] | None:
    """Cut an index to [start, start + size): the index from there, and the loop's part; None: it is empty."""
    if not index.terms:
        return (AxisIndex(index.offset - start), []) if start <= index.offset < start + size else None
    low = index.offset + sum(min(0, step * (atom.size - 1)) for atom, step in index.terms)
    high = index.offset + sum(max(0, step * (atom.size - 1)) for atom, step in index.terms)
    if low >= start and high < start + size:
        return AxisIndex(index.offset - start, index.terms), []
    if high < start or low >= start + size:
        return None
    ((atom, step), *others) = sorted(index.terms, key=lambda term: -abs(term[1]))
    if others:
        period = abs(step)
        if (start - index.offset) % period == 0 and size % period == 0:
            first, count = (start - index.offset) // period, size // period
            first, last = max(0, first), min(atom.size, first + count)
            return _cut(index, atom, step, kept=range(first, last), start=start)
        raise StoredNeededError(number)
    if step < 1:
        raise StoredNeededError(number)
    first = max(0, -((index.offset - start) // step))
    last = min(atom.size, (start + size - 1 - index.offset) // step + 1)
    return _cut(index, atom, step, kept=range(first, last), start=start)


def _cut(
    index: AxisIndex, atom: Atom, step: int, *, kept: range, start: int
) -> tuple[AxisIndex, list[tuple[Atom, int, Atom]]] | None:
    if not kept:
        return None
    first = kept.start
    inside = Atom(f"{atom.name}_{first}_{kept.stop}", len(kept))
    terms = tuple((inside, step) if mine == atom else (mine, by) for mine, by in index.terms)
    if inside.size == 1:
        terms = tuple((mine, by) for mine, by in terms if mine != inside)
    return AxisIndex(index.offset + step * first - start, terms), [(atom, first, inside)]


def _last(indices: Sequence[AxisIndex], shape: Sequence[int]) -> list[AxisIndex]:
    """The indices of the last axes, as NumPy broadcasts leading ones."""
    return list(indices)[len(indices) - len(shape) :]
