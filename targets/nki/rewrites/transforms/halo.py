"""Halo: shifted windows of an array are loaded once, as one window with a border, and named as parts of it.

A convolution or a stencil that loads each of its taps, one by one or in a loop, reads nearly the same
elements once for each. A window of every second element, as of even columns in pooling, is moved element by
element; all elements between its ends are moved faster. They are then another such window's halo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import names_in, substitute_names
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.elementwise import find_sole_writer
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind, loop_contains
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import TensorView


@dataclass(frozen=True, eq=False)
class ShiftedWindows:
    """Loads of one array that differ in where they begin along one of its dimensions."""

    loads: tuple[Statement, ...]
    """In the order of the source."""
    dimension: int
    offsets: tuple[int, ...]
    """How far each window begins behind the one that begins first."""

    @property
    def size(self) -> int:
        """Elements of a window along the dimension."""
        return _source(self.loads[0]).view.box[self.dimension].size

    @property
    def ends(self) -> tuple[Statement, Statement]:
        """The loads of the window that begins first and of the one that ends last."""
        by_offset = dict(zip(self.offsets, self.loads, strict=True))
        return by_offset[0], by_offset[max(self.offsets)]


@dataclass(frozen=True, eq=False)
class MovingWindow:
    """A load whose window moves by `step` with each iteration of a loop, by less than its size."""

    load: Statement
    loop: Loop
    dimension: int
    step: int


@dataclass(frozen=True, eq=False)
class StridedWindow:
    """A load of every `step`-th element along the last dimension of an array."""

    load: Statement

    @property
    def step(self) -> int:
        return _source(self.load).view.box[-1].step

    @property
    def extent(self) -> int:
        """Elements from the first to the last one that is loaded."""
        return _source(self.load).view.box[-1].extent


Windows = ShiftedWindows | MovingWindow | StridedWindow


class LoadHalo(Transform[Windows]):
    """Loads overlapping windows as one, and strided windows with what lies between."""

    id: ClassVar[str] = "halo"
    counter: ClassVar[str] = "hbm_read_bytes"
    keeps: ClassVar[str] = (
        "the windows are parts of what is loaded, and nothing writes to the array or to them"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Windows]:
        del target
        found: dict[str, Windows] = {}
        groups: dict[object, list[Statement]] = {}
        for item in kernel.operations():
            if _loads_tile(kernel, item):
                tile, source = _tile(item), _source(item)
                key = (item.path, item.guards, source.tensor.id, tile.tensor.shape, tile.tensor.dtype)
                groups.setdefault(key, []).append(item)
        for loads in groups.values():
            windows = _find_shifts(loads)
            if windows is not None:
                first = kernel.unique_label(_tile(loads[0]).tensor)
                found[f"{len(loads)} windows of {_source(loads[0]).tensor.name} from {first}"] = windows
        for item in kernel.operations():
            moving = _find_moving_window(kernel, item)
            if moving is not None:
                told, loop = (kernel.unique_label(one) for one in (_tile(item).tensor, moving.loop))
                found[f"windows of {_source(item).tensor.name} in {told} over {loop}"] = moving
            if _is_strided(kernel, item):
                told = kernel.unique_label(_tile(item).tensor)
                found[f"every {_source(item).view.box[-1].step} of {told}"] = StridedWindow(item)
        return found

    def list_choices(self, kernel: Kernel, target: Target, place: Windows) -> tuple[Choice, ...]:
        del target
        if isinstance(place, StridedWindow):
            _load_between(kernel, place)
        elif isinstance(place, MovingWindow):
            _moving_hull_texts(kernel, place)
        else:
            _hull_texts(kernel, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Windows, choice: Choice) -> str:
        del target, choice
        if isinstance(place, StridedWindow):
            return _load_between(kernel, place)
        if isinstance(place, MovingWindow):
            return _load_before_loop(kernel, place)
        source, shape = _hull_texts(kernel, place)
        first, axis = place.loads[0], _tile_axis(place)
        dtype = kernel.declarations[_tile(first).tensor.id].texts["dtype"]
        hull = kernel.fresh_name("windows")
        made = [
            f"{hull} = {kernel.nl}.ndarray(({', '.join(shape)}), dtype={dtype}, buffer={kernel.nl}.sbuf)",
            f"{kernel.nisa}.dma_copy(dst={hull}, src={source})",
        ]
        lines: list[cst.BaseStatement] = [syntax.parse_statement(line) for line in made]
        gone = {kernel.declarations[_tile(load).tensor.id] for load in place.loads}
        size = shape_texts(kernel, kernel.declarations[_tile(first).tensor.id])[axis]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node in gone:
                return []
            if not isinstance(node, Statement) or node not in place.loads:
                return None
            offset = place.offsets[place.loads.index(node)]
            part = f"{offset} : {offset} + {size}" if offset else f"0 : {size}"
            window = f"{_tile(node).tensor.name} = {hull}[{':, ' * axis}{part}]"
            named = [*(lines if node is first else []), syntax.parse_statement(window)]
            told = syntax.merge_leading_lines(kernel.declarations[_tile(node).tensor.id].node, node.node)
            return [syntax.with_leading_lines(named[0], told), *named[1:]]

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _tile(load: Statement) -> Access:
    found = load.find_access("dst")
    assert found is not None
    return found


def _source(load: Statement) -> Access:
    found = load.find_access("src")
    assert found is not None
    return found


def _loads_tile(kernel: Kernel, item: Statement) -> bool:
    """Whether an instruction loads a whole tile of its own from part of an array in HBM, and nothing else."""
    if item.op != "dma_copy" or not item.texts.keys() <= {"dst", "src"}:
        return False
    tile, source = item.find_access("dst"), item.find_access("src")
    if tile is None or source is None or tile.tensor.buffer != "sbuf" or source.tensor.is_on_chip:
        return False
    is_own = find_sole_writer(kernel, tile.tensor) is item
    return is_own and source.view.plain and not source.view.picks and not source.tensor.copies


def _find_shifts(loads: Sequence[Statement]) -> ShiftedWindows | None:
    """The loads as windows, if they differ in one dimension by known steps and overlap there."""
    first = _source(loads[0]).view
    shifts = [_shift(first, _source(load).view) for load in loads]
    dimensions = {found[0] for found in shifts if found is not None and found[1]}
    if None in shifts or len(dimensions) != 1:
        return None
    (dimension,) = dimensions
    places = [found[1] for found in shifts if found is not None]
    offsets = tuple(place - min(places) for place in places)
    size, steps = first.box[dimension].size, sorted(offsets)
    is_distinct = len({*offsets}) == len(offsets)
    overlap = all(after - before < size for before, after in pairwise(steps))
    inside = any(axis.source == dimension and at for at, axis in enumerate(first.axes))
    fits = is_distinct and overlap and inside and first.box[dimension].step == 1
    return ShiftedWindows(tuple(loads), dimension, offsets) if fits else None


def _shift(one: TensorView, two: TensorView) -> tuple[int, int] | None:
    """The dimension in which two views begin apart, and by how much; (0, 0) for the same; None otherwise."""
    if one.axes != two.axes or len(one.box) != len(two.box):
        return None
    found = (0, 0)
    for dimension, (a, b) in enumerate(zip(one.box, two.box, strict=True)):
        if a == b:
            continue
        apart = b.start - a.start
        if not apart.is_const or (a.size, a.step) != (b.size, b.step) or found != (0, 0):
            return None
        found = dimension, apart.const
    return found


def _tile_axis(windows: ShiftedWindows) -> int:
    """The axis of the tiles that walks the dimension in which windows differ."""
    axes = _source(windows.loads[0]).view.axes
    return next(at for at, axis in enumerate(axes) if axis.source == windows.dimension)


def _hull_texts(kernel: Kernel, windows: ShiftedWindows) -> tuple[str, list[str]]:
    """The source of what holds all windows, and the sizes of its tile.

    Raises:
        RewriteRefused: it cannot be written where the first window is loaded.
    """
    first, last = windows.loads[0], windows.loads[-1]
    low, high = windows.ends
    array = _source(first).tensor
    if kernel.may_change(array, first, last):
        raise RewriteRefused(f"{array.name} changes between the loads")
    declared = kernel.declarations[_tile(first).tensor.id]
    shape = shape_texts(kernel, declared)
    for text, item in ((low.texts["src"], low), (high.texts["src"], high), (", ".join(shape), last)):
        if kernel.may_rebind(text, first, item):
            raise RewriteRefused(f"{text} means something else where the first window is loaded")
    for load in windows.loads:
        tile = _tile(load).tensor
        if tile.id in kernel.escaping_ids or kernel.may_rebind(tile.name, kernel.declarations[tile.id], load):
            raise RewriteRefused(f"{tile.name} has a second name, or another meaning")
    if len(shape) != len(_source(first).view.axes):
        raise RewriteRefused(f"{_tile(first).tensor.name} has other dimensions than what is loaded")
    axis = _tile_axis(windows)
    shape[axis] = f"{shape[axis]} + {max(windows.offsets)}"
    return _join_slices(kernel, low.texts["src"], high.texts["src"], dimension=windows.dimension), shape


def _join_slices(kernel: Kernel, low: str, high: str, *, dimension: int) -> str:
    """The part of an array from where one window begins to where another one ends."""
    parts = []
    for text in (low, high):
        found = syntax.parse_expression(text)
        if not isinstance(found, cst.Subscript) or len(found.slice) <= dimension:
            raise RewriteRefused(f"{text} does not say where the window lies")
        parts.append(found)
    begin, end = (found.slice[dimension].slice for found in parts)
    if not isinstance(begin, cst.Slice) or not isinstance(end, cst.Slice) or begin.step or end.step:
        raise RewriteRefused(f"{low} or {high} does not say where the window lies")
    joined = begin.with_changes(upper=end.upper)
    slices = list(parts[0].slice)
    slices[dimension] = slices[dimension].with_changes(slice=joined)
    return kernel.module.code_for_node(parts[0].with_changes(slice=slices))


# --- a window that a loop moves -------------------------------------------------------------------------


def _find_moving_window(kernel: Kernel, item: Statement) -> MovingWindow | None:
    """The window of a load, if the loop around it moves it along one dimension, and windows overlap."""
    if not item.path or item.guards or not _loads_tile(kernel, item):
        return None
    loop, view = item.path[-1], _source(item).view
    moved = [dim for dim, window in enumerate(view.box) if window.start.coefficient(loop.id)]
    if len(moved) != 1 or loop.index_text != loop.var or loop.trips == 1:
        return None
    (dim,) = moved
    window, step = view.box[dim], view.box[dim].start.coefficient(loop.id)
    inside = any(axis.source == dim and at for at, axis in enumerate(view.axes))
    fits = inside and window.step == 1 and 0 < step < window.size
    return MovingWindow(item, loop, dim, step) if fits else None


def _load_before_loop(kernel: Kernel, moving: MovingWindow) -> str:
    """The source in which a loop's windows are parts of what is loaded before it."""
    source, shape, axis = _moving_hull_texts(kernel, moving)
    load, loop = moving.load, moving.loop
    declared = kernel.declarations[_tile(load).tensor.id]
    size = shape_texts(kernel, declared)[axis]
    hull, nl = kernel.fresh_name("windows"), kernel.nl
    made = f"{hull} = {nl}.ndarray(({', '.join(shape)}), dtype={declared.texts['dtype']}, buffer={nl}.sbuf)"
    first = loop.var if moving.step == 1 else f"{loop.var} * {moving.step}"
    window = f"{_tile(load).tensor.name} = {hull}[{':, ' * axis}{first} : {first} + {size}]"

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is declared:
            return []
        if node is load:
            told = syntax.merge_leading_lines(declared.node, load.node)
            return [syntax.with_leading_lines(syntax.parse_statement(window), told)]
        if node is not loop:
            return None
        body = syntax.replace_body(loop.node, syntax.rebuild_block(loop.body, emit))
        lines = (made, f"{kernel.nisa}.dma_copy(dst={hull}, src={source})")
        return [*map(syntax.parse_statement, lines), body]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _moving_hull_texts(kernel: Kernel, moving: MovingWindow) -> tuple[str, list[str], int]:
    """The source of what holds all windows of a loop, the sizes of its tile, and the axis that grows.

    Raises:
        RewriteRefused: it cannot be written before the loop.
    """
    load, loop, tile, array = moving.load, moving.loop, _tile(moving.load).tensor, _source(moving.load).tensor
    inner = [item for item in kernel.statements if loop_contains(loop, item)]
    declared = kernel.declarations[tile.id]
    shape = shape_texts(kernel, declared)
    if any(item.kind is StatementKind.OPAQUE or item.writes_tensor(array) for item in inner):
        raise RewriteRefused(f"{array.name} may change in the loop over {loop.var}")
    if tile.id in kernel.escaping_ids or any(item not in inner for item in kernel.users_of(tile)):
        raise RewriteRefused(f"{tile.name} has a second name, or is used after the loop over {loop.var}")
    bound = frozenset[str]().union(*(item.binds for item in inner))
    bound |= {
        other.var for item in inner for other in item.path if other is not loop and other not in loop.path
    }
    used = names_in(load.texts["src"]).union(*map(names_in, shape))
    if used & bound or loop.var in frozenset[str]().union(*map(names_in, shape)):
        raise RewriteRefused(
            f"what {array.name}'s windows are cut by is known only in the loop over {loop.var}"
        )
    if len(shape) != len(_source(load).view.axes):
        raise RewriteRefused(f"{tile.name} has other dimensions than what is loaded")
    axes = _source(load).view.axes
    axis = next(at for at, one in enumerate(axes) if one.source == moving.dimension)
    shape[axis] = f"{shape[axis]} + {moving.step * (loop.trips - 1)}"
    last = substitute_names("n - 1", {"n": loop.count_text})
    ends = [substitute_names(load.texts["src"], {loop.var: text}) for text in ("0", last)]
    return _join_slices(kernel, ends[0], ends[1], dimension=moving.dimension), shape, axis


# --- a window with gaps -----------------------------------------------------------------------------------


def _is_strided(kernel: Kernel, item: Statement) -> bool:
    """Whether a load leaves out elements along the last dimension of an array, and walks that last."""
    if not _loads_tile(kernel, item):
        return False
    view = _source(item).view
    return view.box[-1].step > 1 and len(view.axes) > 1 and view.axes[-1].source == len(view.box) - 1


def _load_between(kernel: Kernel, window: StridedWindow) -> str:
    """The source in which the elements between those of a window are loaded, too.

    Raises:
        RewriteRefused: the source does not say where the window lies.
    """
    load, tile = window.load, _tile(window.load).tensor
    declared = kernel.declarations[tile.id]
    shape = shape_texts(kernel, declared)
    if len(shape) != len(_source(load).view.axes) or kernel.may_rebind(tile.name, declared, load):
        raise RewriteRefused(f"{tile.name} has other dimensions than what is loaded, or another meaning")
    source = _dense_text(kernel, window)
    between, nl = kernel.fresh_name("windows"), kernel.nl
    sizes = ", ".join((*shape[:-1], str(window.extent)))
    view = f"{between}[{':, ' * (len(shape) - 1)}0 : {window.extent} : {window.step}]"
    made = (
        f"{between} = {nl}.ndarray(({sizes}), dtype={declared.texts['dtype']}, buffer={nl}.sbuf)",
        f"{kernel.nisa}.dma_copy(dst={between}, src={source})",
        f"{tile.name} = {view}",
    )

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is declared:
            return []
        if node is not load:
            return None
        told = syntax.merge_leading_lines(declared.node, load.node)
        first, *others = map(syntax.parse_statement, made)
        return [syntax.with_leading_lines(first, told), *others]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _dense_text(kernel: Kernel, window: StridedWindow) -> str:
    """The source of the part of the array between the ends of a window."""
    text = window.load.texts["src"]
    found = syntax.parse_expression(text)
    if not isinstance(found, cst.Subscript) or len(found.slice) != len(_source(window.load).view.box):
        raise RewriteRefused(f"{text} does not say where the window lies")
    last = found.slice[-1]
    if not isinstance(last.slice, cst.Slice):
        raise RewriteRefused(f"{text} does not say where the window lies")
    lower = kernel.module.code_for_node(last.slice.lower) if last.slice.lower else "0"
    upper = substitute_names("_start + _extent", {"_start": lower, "_extent": str(window.extent)})
    dense = cst.Slice(syntax.parse_expression(lower), syntax.parse_expression(upper))
    slices = [*found.slice[:-1], last.with_changes(slice=dense)]
    return kernel.module.code_for_node(found.with_changes(slice=slices))
