"""Results that are only moved: one transfer within HBM writes each, and no engine or tile takes part."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from targets.nki.translation.access import Access, Atom
from targets.nki.translation.hbm import Run, array_text, transfer_text
from targets.nki.translation.layout import PARTITIONS
from targets.nki.translation.stage import Store
from targets.nki.translation.text import NameTable, float_text
from targets.nki.translation.values import Buffer, Load, Number

_LONG_RUN = 64
"""Neighbouring elements from which on one pass over short runs costs less than two over longer ones."""
_ENGINES = 16
"""DMA engines: they share a transfer within HBM by the steps of its outermost loop."""
_FEW, _EMPTIER = 4096, 1.5
"""Elements that one engine may move whatever the others do, and how much more than its share of more."""
_MOST_LOOPS = 4
_MOST_WIDE = 8192
"""float32 in each partition of a tile of one number."""


def write_copies(stores: Sequence[Store], names: NameTable) -> list[str] | None:
    """The lines of a stage whose results are parts of arrays, or one number each; None for other stages."""
    lines: list[str] = []
    for store in stores:
        copied = None
        if store.pair is None and not store.may_stay and not store.access.backward:
            copied = _copy_array(store) if isinstance(store.value, Load) else _fill(store, names)
        if copied is None:
            return None
        lines += copied
    return lines


def _copy_array(store: Store) -> list[str] | None:
    """The transfer of elements that lie in long runs in both arrays; None if they do not."""
    load, target = store.value, store.access
    assert isinstance(load, Load)
    source = load.access
    atoms = _outermost_first(target)
    if load.buffer.dtype != store.buffer.dtype or source.backward or not atoms or len(atoms) > _MOST_LOOPS:
        return None
    *rows, run = atoms
    if run.size < _LONG_RUN or target.stride(run) != 1 or source.stride(run) != 1:
        return None
    parts = [n for n in range(2, run.size // _LONG_RUN + 1) if run.size % n == 0 and len(atoms) < _MOST_LOOPS]
    count = min(parts, key=lambda n: (_elements_of_engine(atoms, n), n), default=1)
    widest = min(rows, key=lambda atom: _elements_of_engine(atoms, atom.size), default=None)
    elements = _elements_of_engine(atoms, count)
    if widest is not None and _elements_of_engine(atoms, widest.size) <= elements:
        elements, count = _elements_of_engine(atoms, widest.size), 1
    if elements > _FEW and elements * _ENGINES > _EMPTIER * prod(atom.size for atom in atoms):
        return None
    if count == 1:
        is_first = not rows or _elements_of_engine(atoms, rows[0].size) <= elements
        others = atoms if is_first else [widest, *(atom for atom in atoms if atom != widest)]
        runs = [Run(atom, "0", atom.size) for atom in others if atom is not None]
        pair = ((store.buffer, target), (load.buffer, source))
        return [transfer_text(*(array_text(array, access, runs=runs, fixed={}) for array, access in pair))]
    length = run.size // count

    def pattern(buffer: Buffer, access: Access) -> str:
        between = [(access.stride(atom), atom.size) for atom in rows]
        return _pattern(buffer, access.offset, [(length, count), *between, (1, length)])

    return [transfer_text(pattern(store.buffer, target), pattern(load.buffer, source))]


def _elements_of_engine(atoms: Sequence[Atom], steps: int) -> float:
    """The most elements that a DMA engine moves if all share an outermost loop of so many steps."""
    return prod(atom.size for atom in atoms) / steps * -(-steps // _ENGINES)


def _fill(store: Store, names: NameTable) -> list[str] | None:
    """The transfers of a tile of one number; None if that is not what is stored, or the tile is too wide."""
    if not isinstance(store.value, Number) or store.buffer.dtype != "float32":
        return None
    atoms, target = _outermost_first(store.access), store.access
    row = max(atoms, key=lambda atom: atom.size, default=None)
    if row is None:
        return None
    others = [(target.stride(atom), atom.size) for atom in atoms if atom != row]
    full, rest = divmod(row.size, PARTITIONS)
    step, inner = target.stride(row), [size for _, size in others]
    if max(full, 1) * prod(inner) > _MOST_WIDE or len(others) + 2 > _MOST_LOOPS:
        return None
    name = names.new("constant")
    between = [(step * PARTITIONS, full)] if full > 1 else []
    shape = (min(row.size, PARTITIONS), *(count for _, count in between), *(inner or [1]))
    made = [
        f"{name} = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.sbuf)",
        f"nisa.memset(dst={name}, value={float_text(store.value.number)})",
    ]
    last = others or [(1, 1)]
    if full:
        pairs = [(step, PARTITIONS), *between, *last]
        made.append(transfer_text(_pattern(store.buffer, target.offset, pairs), name))
    if rest:
        offset = target.offset + full * PARTITIONS * step
        source = f"{name}[0:{rest}{', 0' if between else ''}]" if full else name
        made.append(transfer_text(_pattern(store.buffer, offset, [(step, rest), *last]), source))
    return made


def _outermost_first(access: Access) -> list[Atom]:
    return sorted(access.atoms, key=lambda atom: (-access.stride(atom), atom.name))


def _pattern(buffer: Buffer, offset: int, pairs: Sequence[tuple[int, int]]) -> str:
    listed = ", ".join(f"[{stride}, {count}]" for stride, count in pairs)
    return f"{buffer.name}.ap([{listed}], offset={offset})"
