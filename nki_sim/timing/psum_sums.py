"""Finds instructions that read sums of products in PSUM, that is, elements accumulated by the tensor engine.

An element is a sum from the first product that is added to it until a product or a transpose overwrites it.
Accesses are compared as boxes; an access with gaps in its box is not known to overwrite anything.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from nki_sim.flow.regions import access_boxes, fills_box
from nki_sim.program.ir import Bools, Ints, Program
from nki_sim.timing.tile_placement import overlap_spaces, shift_to_places

_READERS = frozenset({"vector", "scalar"})

_READ, _ADDED, _WRITTEN, _PIERCED = range(4)
"""What a PSUM access does: read, accumulate, overwrite its box, overwrite part of its box."""

_READS_CACHE: WeakKeyDictionary[Program, Bools] = WeakKeyDictionary()


def reads_sums(program: Program) -> Bools:
    """For each instruction, whether VectorE or ScalarE reads PSUM elements that are sums of products."""
    found = _READS_CACHE.get(program)
    if found is None:
        found = _READS_CACHE[program] = _compute_reads_sums(program)
    return found


def _compute_reads_sums(program: Program) -> Bools:
    found = np.zeros(len(program), dtype=bool)
    chosen = _psum_accesses(program)
    if not len(chosen):
        return found
    cells = program.cells
    space = overlap_spaces(program)[cells.tensor[chosen]]
    order = np.lexsort((cells.instruction[chosen], space))
    chosen, space = chosen[order], space[order]
    places = access_boxes(program, chosen)
    full = fills_box(program, chosen, places)
    shift_to_places(program, chosen, places)
    kinds = _access_kinds(program, chosen, full)
    first = np.flatnonzero(np.diff(space, prepend=-1))
    last = np.append(first[1:], len(chosen))
    # Most spaces hold single products and transposes, to which nothing is ever added.
    added = np.add.reduceat(kinds == _ADDED, first) > 0
    for start, stop in zip(first[added].tolist(), last[added].tolist(), strict=True):
        part = slice(start, stop)
        sums = _find_sum_reads(places[part], kinds[part])
        found[cells.instruction[chosen[part]][sums]] = True
    return found


def _psum_accesses(program: Program) -> Ints:
    """The cells in which the tensor engine writes PSUM, or VectorE or ScalarE reads it."""
    cells = program.cells
    if not len(cells.operand):
        return np.zeros(0, dtype=np.int64)
    in_psum = np.array([item.buffer == "psum" for item in program.operands], dtype=bool)[cells.operand]
    form = program.form_ids[cells.instruction]
    products = np.array([item.engine == "tensor" for item in program.forms], dtype=bool)[form]
    readers = np.array([item.engine in _READERS for item in program.forms], dtype=bool)[form]
    return np.flatnonzero(in_psum & ((products & cells.writes) | (readers & cells.reads)))


def _access_kinds(program: Program, chosen: Ints, full: Bools) -> Ints:
    form = program.form_ids[program.cells.instruction[chosen]]
    products = np.array([item.engine == "tensor" for item in program.forms], dtype=bool)[form]
    adding = np.array([bool(item.param("accumulate")) for item in program.forms], dtype=bool)[form]
    written = np.where(full, _WRITTEN, _PIERCED)
    return np.where(~products, _READ, np.where(adding, _ADDED, written))


def _find_sum_reads(places: Ints, kinds: Ints) -> Bools:
    """Which accesses of one space read sums; accesses are in program order.

    All elements between two neighbouring edges of boxes behave alike, so one flag stands for them.
    """
    rows, columns = np.unique(places[:, :2]), np.unique(places[:, 2:])
    low = np.searchsorted(rows, places[:, :2]).tolist()
    wide = np.searchsorted(columns, places[:, 2:]).tolist()
    sums = np.zeros((len(rows), len(columns)), dtype=bool)
    found = np.zeros(len(kinds), dtype=bool)
    for number, ((top, bottom), (left, right), kind) in enumerate(
        zip(low, wide, kinds.tolist(), strict=True)
    ):
        if kind == _READ:
            found[number] = sums[top:bottom, left:right].any()
        elif kind != _PIERCED:
            sums[top:bottom, left:right] = kind == _ADDED
    return found
