"""Finds the loops in a sequence of instructions, whatever code issued them.

The method is nested loop recognition (Ketterlin and Clauss, "Prediction and trace compression of data access
through nested loop recognition", CGO 2008). Entries are put on a stack. Where the top of the stack continues
a loop below it, the loop absorbs it; where it holds three groups of entries whose numbers grow evenly, they
become a loop. A loop is an entry like any other, so loops nest. All numbers stay exact: each is an affine
function of the loops around it.

Helper functions, generators, `while`, recursion and loops that were unrolled by hand leave no trace in the
result. What fits no loop stays as it is: a first iteration that differs, or a last tile with fewer rows,
stands before or after its loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from targets.nki.raising.instruction_rows import InstructionRow, RowKey

MAX_PERIODS = 64
"""Loop bodies that are tried for each new entry, the shortest first."""
MIN_UNROLLED = 3
"""Calls in an iteration that is written out twice, from which on the two are taken for a loop."""
MAX_PAIRED = 64
"""Calls and loops in the longest body that is sought in loops of two iterations."""

AffineNumber = tuple[int, ...]
"""A number at the first iteration, then its step in each loop around it, outermost first."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call: in each iteration of the loops around it, it issues one instruction."""

    key: RowKey
    numbers: tuple[AffineNumber, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop over 0, 1, ... trips - 1."""

    trips: int
    body: tuple[Node, ...]


Node = Call | Repeat


def recognize_loops(rows: Iterable[InstructionRow], looped_lines: AbstractSet[int]) -> tuple[Node, ...]:
    """Return the instructions as calls in loops.

    `looped_lines` are those inside loops of the source. Calls of other lines become a loop only if something
    besides their tiles moves: equal steps on several tiles are usually not meant as a loop.
    """
    stack = _EntryStack(looped_lines)
    for row in rows:
        stack.push_row(row)
    nodes = [_make_node(entry, [(number,) for number in entry.numbers]) for entry in stack.entries]
    return tuple(_pair_up(_align_loops(nodes, 0), 0, looped_lines))


@dataclass(eq=False, slots=True)
class _Entry:
    """A row or a loop. `shape` is equal for entries that one loop may hold; `numbers` are those of the first
    iteration, `lines` those of all calls.
    """

    shape: int
    numbers: tuple[int, ...]
    lines: tuple[int, ...]
    tiles: tuple[bool, ...]
    key: RowKey | None = None
    trips: int = 1
    body: Sequence[_Entry] = ()
    steps: tuple[int, ...] = ()


@dataclass(eq=False)
class _EntryStack:
    looped_lines: AbstractSet[int]
    entries: list[_Entry] = field(default_factory=list)
    _shapes: dict[object, int] = field(default_factory=dict)
    _keys: dict[int, tuple[int, tuple[bool, ...]]] = field(default_factory=dict)
    _places: dict[int, list[int]] = field(default_factory=dict)
    _loops: dict[int, list[int]] = field(default_factory=dict)
    """Places of loops by the shape that ends their body."""

    def push_row(self, row: InstructionRow) -> None:
        """Add an instruction, then form loops until none can be formed."""
        known = self._keys.get(id(row.key))
        if known is None:
            known = self._keys[id(row.key)] = self._intern(row.key), row.key.tile_numbers
        self._push(_Entry(known[0], row.numbers, (row.line,), known[1], row.key))
        while self._absorb() or self._create():
            pass

    def _intern(self, shape: object) -> int:
        return self._shapes.setdefault(shape, len(self._shapes))

    def _push(self, entry: _Entry) -> None:
        place = len(self.entries)
        self.entries.append(entry)
        self._places.setdefault(entry.shape, []).append(place)
        if entry.body:
            self._loops.setdefault(entry.body[-1].shape, []).append(place)

    def _pop(self, count: int) -> None:
        for _ in range(count):
            entry = self.entries.pop()
            self._places[entry.shape].pop()
            if entry.body:
                self._loops[entry.body[-1].shape].pop()

    def _push_loop(self, body: Sequence[_Entry], trips: int, steps: tuple[int, ...]) -> None:
        shape = self._intern((trips, tuple(entry.shape for entry in body), steps))
        numbers, tiles = _joined_numbers(body), tuple(flag for entry in body for flag in entry.tiles)
        lines = tuple(line for entry in body for line in entry.lines)
        self._push(_Entry(shape, numbers, lines, tiles, None, trips, body, steps))

    def _absorb(self) -> bool:
        """Let a loop take the entries above it, if they are its next iteration."""
        top = len(self.entries) - 1
        for place in reversed(self._loops.get(self.entries[top].shape, ())):
            loop = self.entries[place]
            length = top - place
            if length != len(loop.body):
                continue
            group = self.entries[place + 1 :]
            if not _have_equal_shapes(group, loop.body):
                continue
            expected = [
                first + loop.trips * step for first, step in zip(loop.numbers, loop.steps, strict=True)
            ]
            if list(_joined_numbers(group)) == expected:
                self._pop(length + 1)
                self._push_loop(loop.body, loop.trips + 1, loop.steps)
                return True
        return False

    def _create(self) -> bool:
        """Make a loop of three equal groups at the top whose numbers grow evenly."""
        entries = self.entries
        top = len(entries) - 1
        places = self._places[entries[top].shape]
        for place in reversed(places[-1 - MAX_PERIODS : -1]):
            length = top - place
            start = top + 1 - 3 * length
            if start < 0:
                break
            if entries[place - length].shape != entries[top].shape:
                continue
            groups = [entries[start + i * length : start + (i + 1) * length] for i in range(3)]
            if not all(_have_equal_shapes(group, groups[2]) for group in groups[:2]):
                continue
            steps = self._even_steps(groups)
            if steps is not None:
                self._pop(3 * length)
                # The source has a loop where the last iteration comes from; the first may stand before it.
                pairs = zip(groups[0], groups[2], strict=True)
                self._push_loop([replace(one, lines=last.lines) for one, last in pairs], 3, steps)
                return True
        return False

    def _even_steps(self, groups: Sequence[Sequence[_Entry]]) -> tuple[int, ...] | None:
        first, second, third = map(_joined_numbers, groups)
        steps = tuple(b - a for a, b in zip(first, second, strict=True))
        if any(c - b != step for b, c, step in zip(second, third, steps, strict=True)):
            return None
        tiles = (flag for entry in groups[0] for flag in entry.tiles)
        moves = any(step and not tile for step, tile in zip(steps, tiles, strict=True))
        lines = (line for group in groups for entry in group for line in entry.lines)
        return steps if moves or all(line in self.looped_lines for line in lines) else None


def _have_equal_shapes(one: Sequence[_Entry], other: Sequence[_Entry]) -> bool:
    return all(a.shape == b.shape for a, b in zip(one, other, strict=True))


def _joined_numbers(group: Sequence[_Entry]) -> tuple[int, ...]:
    if len(group) == 1:
        return group[0].numbers
    return tuple(number for entry in group for number in entry.numbers)


def _make_node(entry: _Entry, numbers: Sequence[AffineNumber]) -> Node:
    """The call or loop of an entry, with its numbers as functions of the loops around it."""
    if entry.key is not None:
        return Call(entry.key, tuple(numbers), entry.lines[0])
    inner = [(*number, step) for number, step in zip(numbers, entry.steps, strict=True)]
    body, start = [], 0
    for item in entry.body:
        end = start + len(item.numbers)
        body.append(_make_node(item, inner[start:end]))
        start = end
    return Repeat(entry.trips, tuple(body))


# -- where a loop begins ---------------------------------------------------------------------------


def _align_loops(nodes: Iterable[Node], depth: int) -> list[Node]:
    """Let each loop begin where the source does.

    A loop is recognised as early as possible, perhaps in the middle of the iterations that were written:
    `A, loop of B C A, B C` is `A B C` in a loop. So if the calls after a loop begin its next iteration, the
    loop may begin later; it begins with the call of the first line.
    """
    found = [
        Repeat(node.trips, tuple(_align_loops(node.body, depth + 1))) if isinstance(node, Repeat) else node
        for node in nodes
    ]
    place = 0
    while place < len(found):
        loop = found[place]
        if isinstance(loop, Repeat):
            most = _movable_calls(loop, found[place + 1 :], depth)
            lines = [_first_line(node) for node in loop.body[: most + 1]]
            count = lines.index(min(lines)) if lines else 0
            found[place : place + 1 + count] = _move_loop(loop, count, depth)
            place += count
        place += 1
    return found


def _movable_calls(loop: Repeat, after: Sequence[Node], depth: int) -> int:
    """How many nodes after a loop are the beginning of its next iteration; fewer than it has in all."""
    pairs = zip(loop.body[:-1], after, strict=False)
    same = (_at_iteration(node, loop.trips, depth) == other for node, other in pairs)
    return next((count for count, equal in enumerate(same) if not equal), min(len(loop.body) - 1, len(after)))


def _move_loop(loop: Repeat, count: int, depth: int) -> list[Node]:
    """The loop from its node `count` on, and before it the nodes that it no longer has."""
    before = [_at_iteration(node, 0, depth) for node in loop.body[:count]]
    later = [_shift_node(node, 1, depth) for node in loop.body[:count]]
    return [*before, Repeat(loop.trips, (*loop.body[count:], *later))]


def _first_line(node: Node) -> int:
    return next(call.line for call in walk_calls([node]))


def _shift_node(node: Node, iterations: int, depth: int) -> Node:
    """A node as it is that many iterations of the loop at `depth` later."""
    if isinstance(node, Repeat):
        return Repeat(node.trips, tuple(_shift_node(item, iterations, depth) for item in node.body))
    numbers = tuple((number[0] + iterations * number[depth + 1], *number[1:]) for number in node.numbers)
    return Call(node.key, numbers, node.line)


def _at_iteration(node: Node, iteration: int, depth: int) -> Node:
    """A node as it is in one iteration of the loop at `depth`, outside that loop."""
    if isinstance(node, Repeat):
        return Repeat(node.trips, tuple(_at_iteration(item, iteration, depth) for item in node.body))
    numbers = tuple(
        (number[0] + iteration * number[depth + 1], *number[1 : depth + 1], *number[depth + 2 :])
        for number in node.numbers
    )
    return Call(node.key, numbers, node.line)


# -- loops of two iterations -----------------------------------------------------------------------


def _pair_up(nodes: Iterable[Node], depth: int, looped_lines: AbstractSet[int]) -> Iterator[Node]:
    """Join neighbouring groups that look like two iterations into a loop, innermost first."""
    found = [
        Repeat(node.trips, tuple(_pair_up(node.body, depth + 1, looped_lines)))
        if isinstance(node, Repeat)
        else node
        for node in nodes
    ]
    shapes = [_node_shape(node) for node in found]
    start = 0
    while start < len(found):
        length = _pair_length(found, shapes, start, looped_lines=looped_lines)
        if length:
            end = start + 2 * length
            first, second = found[start : start + length], found[start + length : end]
            body = [_join_nodes(a, b, depth) for a, b in zip(first, second, strict=True)]
            found[start:end] = [Repeat(2, tuple(_pair_up(body, depth + 1, looped_lines)))]
            shapes[start:end] = [_node_shape(found[start])]
            start = max(0, start - MAX_PAIRED)
        else:
            start += 1
    return iter(found)


def _pair_length(
    nodes: Sequence[Node], shapes: Sequence[object], start: int, *, looped_lines: AbstractSet[int]
) -> int:
    """How many nodes from a place on are repeated by those after them; 0 if none are."""
    for length in range(1, min(MAX_PAIRED, (len(nodes) - start) // 2) + 1):
        end = start + length
        if shapes[start:end] == shapes[end : end + length]:
            first, second = nodes[start:end], nodes[end : end + length]
            if _are_iterations(first, second, looped_lines):
                return length
    return 0


def _node_shape(node: Node) -> object:
    if isinstance(node, Repeat):
        return node.trips, tuple(map(_node_shape, node.body))
    return id(node.key), tuple(number[1:] for number in node.numbers)


def walk_calls(nodes: Iterable[Node]) -> Iterator[Call]:
    """Go through all calls in order."""
    for node in nodes:
        if isinstance(node, Repeat):
            yield from walk_calls(node.body)
        else:
            yield node


def _are_iterations(first: Iterable[Node], second: Iterable[Node], looped_lines: AbstractSet[int]) -> bool:
    """Whether two equal groups look like two iterations.

    They do if the source has a loop there, or if a window moves and either both are the same lines or they
    are too long to be alike by chance.
    """
    calls = list(zip(walk_calls(first), walk_calls(second), strict=True))
    from_one_place = all(one.line == other.line for one, other in calls)
    if from_one_place and all(one.line in looped_lines for one, _ in calls):
        return True
    moves = any(
        a[0] != b[0] and not tile
        for one, other in calls
        for a, b, tile in zip(one.numbers, other.numbers, one.key.tile_numbers, strict=True)
    )
    return moves and (from_one_place or len(calls) >= MIN_UNROLLED)


def _join_nodes(one: Node, other: Node, depth: int) -> Node:
    """A node of a loop's body, from those of its two iterations."""
    if isinstance(one, Repeat) and isinstance(other, Repeat):
        pairs = zip(one.body, other.body, strict=True)
        return Repeat(one.trips, tuple(_join_nodes(a, b, depth) for a, b in pairs))
    assert isinstance(one, Call)
    assert isinstance(other, Call)
    numbers = tuple(
        (*a[: depth + 1], b[0] - a[0], *a[depth + 1 :])
        for a, b in zip(one.numbers, other.numbers, strict=True)
    )
    return Call(one.key, numbers, one.line)
