"""Loads of overlapping or neighbouring windows of an array as one load, with a border where there is padding.

A convolution reads an array once for each of its taps, shifted. A tile that holds all windows is loaded once,
and each window is a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from remote.judge.identity.expression import Shape
from targets.base import UntranslatableError
from targets.nki.translation.access import Access, Atom, AxisIndex, SplitNeededError, join_axes
from targets.nki.translation.values import Assembled, Buffer, Load, Number, Part, Value


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a hull: by axis of the hull its loop, None for one place, the first place, and the step."""

    hull: Hull
    axes: tuple[tuple[Atom, Atom | None, int, int], ...]


@dataclass(frozen=True, eq=False)
class Hull:
    """What several windows are parts of: a load, or a load with a border of one number around it."""

    value: Load | Assembled
    common: frozenset[Atom]
    """Loops that all windows walk in the same way."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A load as a window: by axis its index over its own loops, and the first and last place it has."""

    value: Value
    buffer: Buffer
    shape: Shape
    """The array's, with the first and the last axes as one where loops walk them as one."""
    base: float | None
    indices: tuple[AxisIndex, ...]
    bounds: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Elements of the window."""
        return prod(atom.size for index in self.indices for atom, _ in index.terms)


def find_windows(values: Iterable[Value], walked: frozenset[Atom]) -> dict[Value, Window]:
    """Return the loads that are parts of a larger one; loops of `walked` must not tell windows apart."""
    items = {item for value in values for item in value.walk()}
    inside = {border.part.value for border in map(_find_border, items) if border}
    groups: dict[object, list[_Member]] = {}
    for item in sorted(items, key=lambda item: item.node):
        if item in inside and not _is_used_elsewhere(item, items):
            continue
        member = _as_member(item)
        if member is not None:
            groups.setdefault((member.buffer, member.shape), []).append(member)
    found: dict[Value, Window] = {}
    for group in groups.values():
        for alike in _split_alike(group, walked):
            found |= _join(alike, walked)
    return found


@dataclass(frozen=True, slots=True)
class _Border:
    """A number around a part of a value."""

    number: float
    part: Part


def _find_border(item: Value) -> _Border | None:
    """The border of a value; None if it is anything else.

    A concatenation with zeros is padding too: elements in no part have no value, so they may be zero as well.
    """
    if not isinstance(item, Assembled):
        return None
    numbers = [part for part in item.parts if isinstance(part.value, Number)]
    others = [part for part in item.parts if part not in numbers]
    values = {part.value.number for part in numbers if isinstance(part.value, Number)}
    values |= {item.base} if item.base is not None else set()
    if len(others) != 1 or len(values) != 1 or not all(_are_apart(others[0], part) for part in numbers):
        return None
    return _Border(values.pop(), others[0])


def _are_apart(one: Part, other: Part) -> bool:
    """Whether two parts of a value have no element in common."""
    ends = {atom: (start, start + own.size) for atom, start, own in one.box}
    return any(
        start >= ends[atom][1] or start + own.size <= ends[atom][0]
        for atom, start, own in other.box
        if atom in ends
    )


def _is_used_elsewhere(item: Value, items: set[Value]) -> bool:
    return any(item in other.operands for other in items if _find_border(other) is None)


def _as_member(item: Value) -> _Member | None:
    """A load, or a load with a border, as a window; None if it is something else or goes backwards."""
    base, box = None, dict[Atom, tuple[Atom, int]]()
    load, border = item, _find_border(item)
    if border is not None:
        load, base = border.part.value, border.number
        box = {own: (atom, start) for atom, start, own in border.part.box}
    if not isinstance(load, Load) or load.access.backward or load.buffer.dtype != "float32":
        return None
    split = _split_merged(load.access, load.buffer.shape)
    if split is None:
        return None
    shape, axes = split
    if sum(len(index.terms) for index in axes) != len(load.access.terms):
        return None  # a diagonal
    indices = []
    for index in axes:
        terms = tuple((box[atom][0], step) if atom in box else (atom, step) for atom, step in index.terms)
        moved = sum(step * box[atom][1] for atom, step in index.terms if atom in box)
        indices.append(AxisIndex(index.offset - moved, terms))
    bounds = tuple((index.offset, index.offset + _reach(index)) for index in axes)
    if {atom for index in axes for atom, _ in index.terms} & box.keys() != box.keys():
        return None  # a border along a loop that the load does not move along
    return _Member(item, load.buffer, shape, base, tuple(indices), bounds)


def _split_merged(access: Access, shape: Shape) -> tuple[Shape, list[AxisIndex]] | None:
    """The index along each axis, with the first or last axes as one if loops walk them as one."""
    count = len(shape)
    merges = [(lead, tail) for tail in range(count, 0, -1) for lead in range(1, tail)] or [(1, count)]
    for lead, tail in merges:
        own = (prod(shape[:lead]), *shape[lead:tail], *([prod(shape[tail:])] if tail < count else []))
        try:
            return own, access.split_by_axis(own)
        except (SplitNeededError, UntranslatableError):
            continue
    return None


def _reach(index: AxisIndex) -> int:
    return sum(step * (atom.size - 1) for atom, step in index.terms)


def _split_alike(members: Sequence[_Member], walked: frozenset[Atom]) -> list[list[_Member]]:
    """The members in groups whose windows may share a hull."""
    found: list[list[_Member]] = []
    for member in members:
        for group in found:
            if _are_alike(group[0], member, walked):
                group.append(member)
                break
        else:
            found.append([member])
    return found


def _are_alike(one: _Member, two: _Member, walked: frozenset[Atom]) -> bool:
    if None not in {one.base, two.base} and one.base != two.base:
        return False
    for first, second in zip(one.indices, two.indices, strict=True):
        if first == second:
            continue
        if max(len(first.terms), len(second.terms)) > 1:
            return False
        if {atom for atom, _ in (*first.terms, *second.terms)} & walked:
            return False
    return True


def _join(members: Sequence[_Member], walked: frozenset[Atom]) -> dict[Value, Window]:
    """The windows of some loads that are alike, if their hull is no larger than all of them together."""
    if len(members) < 2:
        return {}
    axes: list[AxisIndex] = []
    spans: list[tuple[Atom, int] | None] = []
    boxes: list[tuple[Atom, int, Atom]] = []
    first = members[0]
    bases = {member.base for member in members} - {None}
    for axis, index in enumerate(first.indices):
        same = all(member.indices[axis] == index for member in members)
        low = min(member.indices[axis].offset for member in members)
        high = max(member.indices[axis].offset + _reach(member.indices[axis]) for member in members)
        inside = _union(members, axis)
        if inside is None:
            return {}
        if same and (not bases or len(index.terms) != 1 or inside == (low, high)):
            axes.append(index)
            spans.append(None)
            continue
        if {atom for member in members for atom, _ in member.indices[axis].terms} & walked:
            return {}
        span = Atom(f"w{first.value.node}_{axis}", high - low + 1)
        spans.append((span, low))
        if inside == (low, high):
            axes.append(AxisIndex(low, ((span, 1),)))
        else:
            own = Atom(f"{span.name}_inside", inside[1] - inside[0] + 1)
            axes.append(AxisIndex(inside[0], ((own, 1),)))
            boxes.append((span, inside[0] - low, own))
    access = join_axes(first.shape, axes)
    size = prod(atom.size for atom in access.atoms)
    if size > sum(member.size for member in members) or not any(spans):
        return {}
    hull = _make_hull(first, access, boxes, spans=spans, bases=bases)
    return {member.value: Window(hull, _places(member, spans)) for member in members}


@dataclass(frozen=True, slots=True)
class JointStore:
    """Stores that lie side by side, as one: by store its value and first place along the loop of all."""

    buffer: Buffer
    access: Access
    along: Atom
    parts: tuple[tuple[Value, Atom, int], ...]


def join_stores(stores: Sequence[tuple[Value, Buffer, Access]], walked: frozenset[Atom]) -> JointStore | None:
    """Return the one store for some into neighbouring parts of an array; None if they are not that."""
    members = [_as_member(Load(value.node, buffer, access)) for value, buffer, access in stores]
    first = members[0]
    if (
        first is None
        or len(members) < 2
        or any(one is None or (one.buffer, one.shape) != (first.buffer, first.shape) for one in members)
    ):
        return None
    known = [one for one in members if one is not None]
    differ = [at for at, index in enumerate(first.indices) if any(one.indices[at] != index for one in known)]
    if len(differ) != 1 or any(len(one.indices[differ[0]].terms) != 1 for one in known):
        return None
    axis = differ[0]
    spans = sorted((one.bounds[axis], at) for at, one in enumerate(known))
    starts = [low for (low, _), _ in spans]
    ends = [high + 1 for (_, high), _ in spans]
    loops = {one.indices[axis].terms[0] for one in known}
    if starts[1:] != ends[:-1] or any(step != 1 or atom in walked for atom, step in loops):
        return None
    along = Atom(f"j{first.value.node}_{axis}", ends[-1] - starts[0])
    indices = [*first.indices]
    indices[axis] = AxisIndex(starts[0], ((along, 1),))
    parts = tuple(
        (stores[at][0], known[at].indices[axis].terms[0][0], known[at].bounds[axis][0] - starts[0])
        for _, at in spans
    )
    return JointStore(first.buffer, join_axes(first.shape, indices), along, parts)


def _union(members: Sequence[_Member], axis: int) -> tuple[int, int] | None:
    """The places of the array that the windows see; None if one of them lacks some that others have."""
    low = min(member.bounds[axis][0] for member in members)
    high = max(member.bounds[axis][1] for member in members)
    for member in members:
        index = member.indices[axis]
        step = index.terms[0][1] if len(index.terms) == 1 else 1
        first = index.offset + step * max(0, -((index.offset - low) // step))
        end = index.offset + step * ((min(high, index.offset + _reach(index)) - index.offset) // step)
        if (first, end) != member.bounds[axis]:
            return None
    return low, high


def _make_hull(
    first: _Member,
    access: Access,
    boxes: Sequence[tuple[Atom, int, Atom]],
    *,
    spans: Sequence[tuple[Atom, int] | None],
    bases: set[float | None],
) -> Hull:
    load = Load(first.value.node, first.buffer, access)
    common = frozenset(
        atom
        for index, span in zip(first.indices, spans, strict=True)
        if span is None
        for atom, _ in index.terms
    )
    if not boxes:
        return Hull(load, common)
    (base,) = bases
    return Hull(Assembled(load.node, base, (Part(load, tuple(boxes)),), tuple(b[0] for b in boxes)), common)


def _places(
    member: _Member, spans: Sequence[tuple[Atom, int] | None]
) -> tuple[tuple[Atom, Atom | None, int, int], ...]:
    found = []
    for index, span in zip(member.indices, spans, strict=True):
        if span is None:
            continue
        atom, step = index.terms[0] if index.terms else (None, 1)
        found.append((span[0], atom, index.offset - span[1], step))
    return tuple(found)
