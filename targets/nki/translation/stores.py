"""Writes results to HBM: single ones, interleaved ones, and neighbouring parts of an array as one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.hbm import Run, array_text, transfer_text
from targets.nki.translation.layout import PARTITIONS
from targets.nki.translation.loads import MAX_LOOPS, turn_tile
from targets.nki.translation.stage import StageContext, Store, Tile
from targets.nki.translation.text import Lines
from targets.nki.translation.transposes import add_border, add_copy, enter_loop, turn_across
from targets.nki.translation.values import KeptRows
from targets.nki.translation.windows import JointStore, join_stores


def write_stores(context: StageContext, stores: Sequence[Store]) -> None:
    """Write results, as few transfers as possible."""
    if any(store.pair is not None for store in stores):
        for store in stores:
            _write_paired_store(context, store)
        return
    walked = frozenset({*context.nest.outer, *([context.nest.row] if context.nest.row else [])})
    joint = join_stores([(one.value, one.buffer, one.access) for one in stores], walked)
    if joint is not None and _write_joint(context, joint):
        return
    for group in _interleaved(stores):
        if len(group) == 1:
            _write_store(context, group[0])
        else:
            _write_interleaved(context, group)


def _write_store(context: StageContext, store: Store) -> None:
    nest = context.nest
    tile = context.tile(store.value, nest.row)
    atoms = store.access.atoms
    level = max([nest.level(store.value), *(at + 1 for at, atom in enumerate(nest.outer) if atom in atoms)])
    if nest.row is not None and nest.row_tiles > 1:
        level = len(nest.outer) + 1
    lines = context.levels[level]
    if store.may_stay and _keep_rows(context, store, tile, lines):
        return
    store, tile = _turned_for_store(context, store, tile)
    atoms = store.access.atoms
    inside = [atom for atom in atoms if atom != tile.partition]
    free = tuple(sorted((a for a in inside if a == nest.row or a not in nest.outer), key=nest.rank))
    if tile.partition is None or tile.partition == nest.row:
        free = tuple(atom for atom in free if atom != nest.row)
    if store.access.backward:
        turned = turn_tile(context, tile, store.access.backward & {*tile.free}, lines, free)
        tile, store = turned, replace(store, access=store.access.turned())
    if store.buffer.dtype != "float32" or not _lies_as_stored(store, tile, free):
        free = tuple(sorted(free, key=lambda atom: -store.access.stride(atom)))
        tile = _rewritten(context, store, tile, lines=lines, free=free)
    with context.rows(lines, tile.partition) as rows:
        whole = Tile(tile.name, tile.partition, free, tile.chunks)
        target = array_text(
            store.buffer, store.access, runs=context.runs(whole, rows, {}), fixed=context.variables
        )
        lines.add(transfer_text(target, context.view(tile, rows, free)))


def _keep_rows(context: StageContext, store: Store, tile: Tile, lines: Lines) -> bool:
    """Copy results to a tile that stays on the chip, next to those of other iterations; False if rows lie
    otherwise.
    """
    nest, name = context.nest, store.buffer.name
    if tile.partition is None or tile.partition != nest.row or tile.chunks > 1:
        return False
    around = [(atom, name) for atom, name in context.variables.items() if atom in store.access.atoms]
    around += [(Atom(f"{name}_tile", nest.row_tiles), "i_row")] if nest.row_tiles > 1 else []
    free, row = (*(atom for atom, _ in around), *tile.free), Atom(f"{name}_row", context.height(nest.row))
    if not (around or tile.places or tile.windows):
        context.kept[store.buffer] = KeptRows(store.value.node, tile.name, (row, *free))
        return True
    kept = context.new_tile("kept", nest.row, free, context.levels[0])
    if nest.is_ragged(nest.row):
        add_border(context.levels[0], kept.name, 0.0)
    fixed, boxes, inside = dict(around), dict[Atom, tuple[str, str | int]](), tile.free
    if around and not inside:  # one column of many
        last, place = around[-1]
        inside, boxes = (last,), {last: (place, 1)}
        del fixed[last]
    with context.rows(lines, nest.row) as rows:
        target = context.view(kept, rows, inside, boxes, fixed)
        add_copy(context, lines, target, context.view(tile, rows, tile.free), context.width(None, tile.free))
    context.kept[store.buffer] = KeptRows(store.value.node, kept.name, (row, *free))
    return True


def _write_paired_store(context: StageContext, store: Store) -> None:
    """Write a tile of which two loops are on the partitions."""
    nest, pair = context.nest, store.pair
    assert pair is not None
    if nest.row != pair.both or store.access.backward:
        raise UntranslatableError("loops that share the partitions, and are not on them")
    tile, lines = context.tile(store.value, nest.row), context.levels[-1]
    inside = [atom for atom in store.atoms if atom != pair.both and atom not in nest.outer]
    free = tuple(sorted(inside, key=lambda atom: -store.access.stride(atom)))
    if store.buffer.dtype != "float32" or tile.free != free or tile.places:
        tile = _rewritten(context, store, tile, lines=lines, free=free)
    around, walked = free[: max(0, len(free) + 1 - MAX_LOOPS)], free[max(0, len(free) + 1 - MAX_LOOPS) :]
    runs: list[Run | int] = [Run(pair.outer, "0", pair.outer.size), Run(pair.inner, "0", pair.inner.size)]
    runs += [context.run(atom, {}) for atom in walked] or [1]
    with context.rows(lines, pair.both) as rows, ExitStack() as stack:
        fixed = {atom: enter_loop(context, stack, lines, atom) for atom in around}
        target = array_text(store.buffer, store.access, runs=runs, fixed={**context.variables, **fixed})
        lines.add(transfer_text(target, context.view(tile, rows, walked, fixed=fixed)))


def _write_joint(context: StageContext, joint: JointStore) -> bool:
    """Write neighbouring parts of an array as one, if each has all loops of its place; return whether."""
    nest = context.nest
    lines = context.levels[-1]
    if nest.row is None or joint.access.stride(nest.row) <= 1 or joint.buffer.dtype != "float32":
        return False
    inside = [atom for atom in joint.access.atoms if atom != nest.row and atom not in nest.outer]
    free = tuple(sorted(inside, key=lambda atom: -joint.access.stride(atom)))
    owns = [tuple(own if atom == joint.along else atom for atom in free) for _, own, _ in joint.parts]
    for (value, _, _), own in zip(joint.parts, owns, strict=True):
        is_full = nest.row in value.atoms and set(context.nest.free_atoms(value, nest.row)) == set(own)
        if not is_full or context.lines(value) is not lines:
            return False
    tile = context.new_tile("result", nest.row, free, lines)
    for (value, loop, first), own in zip(joint.parts, owns, strict=True):
        place = replace(tile, free=own, windows=((loop, first, 1),))
        if context.nest.free_atoms(value, nest.row) == own and context.uses[value] == 1:
            context.set_aside[value, nest.row] = place
        made = context.tile(value, nest.row)
        if made is not place:
            width = context.width(nest.row, own)
            with context.rows(lines, nest.row) as rows:
                target, source = context.view(place, rows, own), context.view(made, rows, own)
                add_copy(context, lines, target, source, width)
    with context.rows(lines, nest.row) as rows:
        runs = context.runs(tile, rows, {})
        target = array_text(joint.buffer, joint.access, runs=runs, fixed=context.variables)
        lines.add(transfer_text(target, context.view(tile, rows, free)))
    return True


def _interleaved(stores: Sequence[Store]) -> list[list[Store]]:
    """The stores in groups: those that together write whole runs, every n-th element each."""
    groups: dict[object, list[Store]] = {}
    for at, store in enumerate(stores):
        step = min((stride for _, stride in store.access.terms), default=1)
        is_part = step > 1 and store.buffer.dtype == "float32" and not store.access.backward
        is_even = all(stride % step == 0 for _, stride in store.access.terms)
        key = (store.buffer, store.access.terms, store.access.offset // step) if is_part and is_even else at
        groups.setdefault(key, []).append(store)
    found: list[list[Store]] = []
    for group in groups.values():
        step = min((stride for _, stride in group[0].access.terms), default=1)
        is_whole = {store.access.offset % step for store in group} == {*range(step)}
        found += [group] if is_whole and len(group) == step else [[store] for store in group]
    return found


def _write_interleaved(context: StageContext, group: Sequence[Store]) -> None:
    """Put the results of some stores side by side in one tile, and write that."""
    nest, terms = context.nest, group[0].access.terms
    step = len(group)
    between = Atom(f"n{step}", step)
    tiles = [context.tile(store.value, nest.row) for store in group]
    if nest.row is not None and group[0].access.stride(nest.row) == step:
        raise UntranslatableError("interleaved results of which each partition has one element")
    loops = [atom for atom, _ in terms if atom != nest.row and atom not in nest.outer]
    free = (*sorted(loops, key=lambda atom: -group[0].access.stride(atom)), between)
    level = max(nest.level(store.value) for store in group)
    lines = context.levels[-1 if any(atom in nest.outer or atom == nest.row for atom, _ in terms) else level]
    joint = context.new_tile("result", nest.row, free, lines)
    with context.rows(lines, nest.row) as rows:
        for store, tile in zip(group, tiles, strict=True):
            target = context.view(joint, rows, free[:-1], fixed={between: str(store.access.offset % step)})
            source = context.view(tile, rows, free[:-1])
            lines.add(f"nisa.tensor_copy(dst={target}, src={source})")
        offset = group[0].access.offset // step * step
        access = make_access(offset, [*terms, (between, 1)])
        target = array_text(
            group[0].buffer, access, runs=context.runs(joint, rows, {}), fixed=context.variables
        )
        lines.add(transfer_text(target, context.view(joint, rows, free)))


def _lies_as_stored(store: Store, tile: Tile, free: Sequence[Atom]) -> bool:
    """Whether a tile has the elements of a store in the order in which they lie in HBM."""
    strides = [store.access.stride(atom) for atom in free]
    is_column = not free and not tile.free
    return not tile.places and (is_column or (tile.free == tuple(free) and strides == sorted(strides)[::-1]))


def _rewritten(
    context: StageContext, store: Store, tile: Tile, *, lines: Lines, free: tuple[Atom, ...]
) -> Tile:
    """The tile's elements in the order and type of the array that they are written to."""
    result = context.new_tile("result", tile.partition, free, lines, dtype=store.buffer.dtype)
    with context.rows(lines, tile.partition) as rows:
        target, source = (context.view(item, rows, free) for item in (result, tile))
        lines.add(f"nisa.tensor_copy(dst={target}, src={source})")
    return result


def _turned_for_store(context: StageContext, store: Store, tile: Tile) -> tuple[Store, Tile]:
    """The tile as it is, or transposed if its partitions would be written element by element."""
    wide = [atom for atom in tile.free if store.access.stride(atom) > 1]
    if tile.partition is None or store.access.stride(tile.partition) != 1 or not wide:
        return store, tile
    if store.value not in {held for held, _ in context.tiles} or tile.partition not in store.value.atoms:
        return store, tile
    widest = max(wide, key=lambda atom: atom.size)
    joined = _join_loops(context, store, tile) if widest.size < PARTITIONS else None
    if joined is not None and joined[1].free[0].size > widest.size:
        store, whole = joined
        (loop,) = whole.free
        return store, turn_across(context, whole, loop, context.lines(store.value))
    free = context.nest.free_atoms(store.value, widest)
    return store, context.transpose(context, store.value, widest, free)


def _join_loops(context: StageContext, store: Store, tile: Tile) -> tuple[Store, Tile] | None:
    """A store and its tile with all free loops as one, if they are one both there and in HBM."""
    strides = [store.access.stride(atom) for atom in tile.free]
    is_even = all(
        stride == inner.size * step
        for stride, inner, step in zip(strides, tile.free[1:], strides[1:], strict=False)
    )
    is_whole = tile.chunks == 1 and not (tile.places or tile.windows or tile.in_psum)
    if len(tile.free) < 2 or not is_even or not is_whole or {*tile.free} & context.ranges.keys():
        return None
    loop = Atom("*".join(atom.name for atom in tile.free), prod(atom.size for atom in tile.free))
    terms = [term for term in store.access.terms if term[0] not in tile.free]
    access = make_access(store.access.offset, [*terms, (loop, strides[-1])])
    name = f"{tile.name}.flatten_dims(1, {len(tile.free)})"
    return replace(store, access=access), replace(tile, name=name, free=(loop,))
