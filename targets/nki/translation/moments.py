"""Means and variances by `bn_stats` and `bn_aggr`: one pass of VectorE over the data gives both."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom
from targets.nki.translation.stage import StageContext, Tile
from targets.nki.translation.values import Moment, Moments, Value

_MOST_ELEMENTS = 512
"""Elements of which one instruction takes the statistics."""
_TUPLE = 6
"""Numbers that `bn_stats` gives for each partition."""


def make_moments(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """Mean and variance of each partition's elements, side by side."""
    assert isinstance(value, Moments)
    data = context.tile(value.value, partition)
    if free or data.chunks > 1 or set(data.free) != set(value.over):
        raise UntranslatableError("statistics of some of the elements of a partition")
    outer, part = _parts([context.nest.width(atom) for atom in data.free])
    context.busy["vector"] += context.width(partition, data.free)
    lines, height = context.lines(value), context.height(partition)
    stats = context.names.new("statistics")
    count = prod(context.nest.width(atom) for atom in data.free) // part
    lines.add(f"{stats} = nl.ndarray(({height}, {count * _TUPLE}), dtype=nl.float32, buffer=nl.sbuf)")
    name = context.names.new("moments")
    lines.add(f"{name} = nl.ndarray(({height}, 2), dtype=nl.float32, buffer=nl.sbuf)")
    with context.rows(lines, partition) as rows:
        taken = ":" if str(rows.count) == str(height) else f"0:{rows.count}"
        with ExitStack() as stack:
            fixed, place = dict[Atom, str](), "0"
            for atom in data.free[:outer]:
                fixed[atom] = context.names.new("i_free")
                stack.enter_context(lines.loop(fixed[atom], atom.size))
                place = f"({place} * {atom.size} + {fixed[atom]})" if place != "0" else fixed[atom]
            inner = data.free[outer:]
            boxes: dict[Atom, tuple[str, str | int]] = {}
            if inner and inner[0].size * prod(atom.size for atom in inner[1:]) > part:
                step = part // prod(atom.size for atom in inner[1:])
                piece = context.names.new("i_piece")
                stack.enter_context(lines.loop(piece, inner[0].size // step))
                boxes[inner[0]] = f"{piece} * {step}", step
                pieces = inner[0].size // step
                place = f"({place} * {pieces} + {piece})" if place != "0" else piece
            source = context.view(data, rows, inner, boxes, fixed)
            target = f"{stats}[{taken}, {place} * {_TUPLE} : {place} * {_TUPLE} + {_TUPLE}]"
            lines.add(f"nisa.bn_stats(dst={target}, data={source})")
        lines.add(f"nisa.bn_aggr(dst={name}[{taken}, :], data={stats}[{taken}, :])")
    return Tile(name, partition, (), 1)


def _parts(sizes: Sequence[int]) -> tuple[int, int]:
    """How many outer loops are walked, and how many elements one instruction takes of the others."""
    outer = 0
    while prod(sizes[outer + 1 :]) > _MOST_ELEMENTS:
        outer += 1
    rest = prod(sizes[outer + 1 :])
    step = max(part for part in range(1, sizes[outer] + 1) if sizes[outer] % part == 0 and part * rest <= 512)
    if step * rest < 16:
        raise UntranslatableError("statistics of very short parts")
    return outer, step * rest


def make_moment(context: StageContext, value: Value, partition: Atom | None, _: tuple[Atom, ...]) -> Tile:
    """One column of the moments."""
    assert isinstance(value, Moment)
    both = context.tile(value.moments, partition)
    return Tile(f"{both.name}[:, {value.place}:{value.place + 1}]", partition, (), 1)
