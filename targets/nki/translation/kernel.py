"""Joins loop nests into a kernel: splits loops, stores what is needed in another layout, tries layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import prod

from remote.judge.identity.expression import (
    ArrayExpression,
    AxisAlignment,
    Shape,
    align_view,
    name_function,
    strides_of,
)
from targets.base import UntranslatableError
from targets.nki.translation import combine, elementwise, loads, moments, packed_tiles, products
from targets.nki.translation.access import (
    Atom,
    AxisIndex,
    SplitNeededError,
    join_axes,
    make_access,
    match_axes,
)
from targets.nki.translation.activations import ActivationFinder
from targets.nki.translation.bank_reads import read_banks
from targets.nki.translation.chunk_loops import join_chunk_loops
from targets.nki.translation.delay import delay_last
from targets.nki.translation.demand import Demand, LoopTable, StoredNeededError
from targets.nki.translation.direct_copies import write_copies
from targets.nki.translation.epilogues import fuse_epilogues
from targets.nki.translation.equal_products import find_equal
from targets.nki.translation.function_tables import order_functions
from targets.nki.translation.hidden_blocks import find_ranges, split_into_blocks
from targets.nki.translation.interleave import interleave_kernel, share_copies
from targets.nki.translation.kernel_layout import Choices, KernelLayout
from targets.nki.translation.known import KnownArrays
from targets.nki.translation.layout import SHORT_RUN, Nest, count_elements, is_batch, is_summed_by_vector
from targets.nki.translation.masks import make_select
from targets.nki.translation.merge import (
    group_sums,
    merge_loops,
    split_rows,
)
from targets.nki.translation.patterns import find_cut, scale_behind_maxima, use_moments
from targets.nki.translation.renaming import find_alike
from targets.nki.translation.source import KnownTables, join_kernel
from targets.nki.translation.spread_sums import make_spread_sum
from targets.nki.translation.stacked_rows import make_stacked_rows
from targets.nki.translation.stage import (
    SBUF_BYTES,
    Maker,
    StageContext,
    Store,
)
from targets.nki.translation.stage_layouts import StageLayout, cut_tiles, find_layouts, usual_layouts
from targets.nki.translation.stores import write_stores
from targets.nki.translation.text import INDENT, NameTable
from targets.nki.translation.totals import find_parts_of_sums, find_row_results
from targets.nki.translation.transposes import make_transposed
from targets.nki.translation.values import (
    Assembled,
    BandedWeights,
    Binary,
    Buffer,
    Contract,
    KeptRows,
    Load,
    Moment,
    Moments,
    Number,
    PairedLoad,
    Reduce,
    Scan,
    Select,
    SpreadSum,
    StackedRows,
    Table,
    TilePart,
    Unary,
    Value,
    count_uses,
    find_readers,
)
from targets.nki.translation.warm_up import uses_tensor, warm_up
from targets.nki.translation.windows import find_windows

_HELD_OPERANDS = (12 * 1024, 2 * 1024, 0)
"""Sizes, in float32 per partition, up to which an operand of a product is held; tried until all fits."""
_MAX_RESTARTS = 200
_SPARED_TILES = 3
"""How many tiles an engine that is spared is taken to work on already."""
_MOST_CUTS = 4
"""Operations behind which a kernel may be cut."""
_MOST_IN_ONE = 1 << 11
"""Elements up to which a single partition does what would otherwise need results in HBM."""
RESERVED = frozenset({"nki", "nisa", "nl", "np", "min", "max", "float", "read_table", "rows", "i_row"})
"""Names that mean something in every kernel that is written here."""

_MAKERS: Mapping[type[Value], Maker] = {
    Assembled: combine.make_assembled,
    BandedWeights: packed_tiles.make_banded_weights,
    Binary: elementwise.make_binary,
    Contract: products.make_contraction,
    KeptRows: combine.make_kept_rows,
    Load: loads.make_load,
    Moment: moments.make_moment,
    Moments: moments.make_moments,
    Number: elementwise.make_number,
    PairedLoad: loads.make_paired_load,
    Reduce: combine.make_reduction,
    Scan: combine.make_scan,
    Select: make_select,
    SpreadSum: make_spread_sum,
    StackedRows: make_stacked_rows,
    Table: elementwise.make_table,
    TilePart: packed_tiles.make_part,
    Unary: elementwise.make_unary,
}


class TilesTooLargeError(UntranslatableError):
    """A stage's tiles do not fit on the chip together."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A kernel's arguments and results."""

    name: str
    arguments: tuple[str, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class _Target:
    """Where an operation's result goes: an array, and the piece of it that the operation is."""

    node: int
    buffer: Buffer
    strides: Shape
    offset: int


@dataclass
class KernelWriter:
    """Writes a kernel for one expression."""

    expression: ArrayExpression
    signature: Signature
    layout: KernelLayout = field(default_factory=KernelLayout)
    choices: Choices = field(default_factory=Choices)

    def write(self) -> str:
        """Return the kernel's source.

        Raises:
            UntranslatableError: there is no translation; the message names what is in the way.
        """
        self.known = KnownArrays(self.expression)
        self.activations = ActivationFinder(self.expression, self.known)
        self.stored: dict[int, Buffer] = {}
        for node in dict.fromkeys((*find_row_results(self.expression), *self.layout.stored)):
            if node not in self.expression.outputs and not self.known.is_known(node):
                self._store(node)
        self.loops = LoopTable()
        self.block_loops: tuple[Atom, ...] = ()
        self.choices = Choices(cuts=self._find_cuts())
        self.parts_of_sums = find_parts_of_sums(self.expression)
        cause = ""
        for _ in range(_MAX_RESTARTS):
            try:
                source = self._write_once()
                source = fuse_epilogues(source) or source
                source = join_chunk_loops(source) or source
                direct = read_banks(source)
                self.choices.has_whole_banks = direct is not None
                source = direct or source if self.layout.reads_banks else source
                ordered = order_functions(source)
                self.choices.has_other_order = ordered is not None
                source = ordered or source if self.layout.orders_functions else source
                source = interleave_kernel(source, self.layout.ways) or source
                if self.layout.shared is not None:
                    source = share_copies(source, self.layout.shared) or source
                source = delay_last(source, self.layout.late, self.layout.later) or source
                self.choices.uses_tensor = uses_tensor(source)
                return warm_up(source, self.layout.warm_products) or source
            except SplitNeededError as split:
                self.loops.splits[split.atom], cause = split.inner, f"the loop {split} would be split"
            except StoredNeededError as needed:
                self._store(needed.node)
                cause = f"{self._describe(needed.node)} would be stored"
        raise UntranslatableError(f"no layout fits all operations; after {_MAX_RESTARTS} changes {cause}")

    def _describe(self, node: int) -> str:
        """A result in words: its function, its shape, and where the reference uses that function first."""
        nodes = self.expression.nodes
        node = self._behind_views(node)
        name = name_function(nodes[node])
        line = self.expression.lines.get(name)
        is_only = sum(name_function(one) == name for one in nodes) == 1
        place = f" ({'' if is_only else 'first used in '}{line})" if line else ""
        return f"the result {list(nodes[node].shape)} of `{name}`{place}"

    def _find_cuts(self) -> list[int]:
        """Products of matrices and their operands that are computed and no results themselves."""
        nodes, outputs = self.expression.nodes, {*self.expression.outputs}
        seen, todo, found = set[int](), [*outputs], set[int]()
        while todo:
            number = todo.pop()
            if number in seen or self.known.is_known(number):
                continue
            seen.add(number)
            todo += nodes[number].args
            if nodes[number].kind == "matmul":
                found |= {number, *(self._behind_views(at) for at in nodes[number].args)}
        is_computed = {at for at in found if nodes[at].kind != "input" and not self.known.is_known(at)}
        return sorted(is_computed - outputs)[-_MOST_CUTS:]

    def _behind_views(self, number: int) -> int:
        while self.expression.nodes[number].kind == "view":
            (number,) = self.expression.nodes[number].args
        return number

    def _store(self, node: int) -> None:
        """Store a result in HBM; for one that reduces products, these.

        A product that is computed again, in another layout, has other roundings: a softmax would subtract
        a maximum that is not the largest of what it exponentiates.
        """
        own = self.expression.nodes[node]
        if own.kind == "reduce" and node not in self.stored and self._reaches_product(own.args[0]):
            node = own.args[0]
        if node in self.stored:
            raise UntranslatableError("a stored result is needed in a layout that no load gives")
        shape = tuple(size for size in self.expression.nodes[node].shape)
        self.stored[node] = Buffer(f"stored_{len(self.stored)}", shape or (1,))

    def _reaches_product(self, node: int) -> bool:
        """Whether a result that is not stored is computed from a product of matrices."""
        todo, seen = [node], {node}
        while todo:
            at = todo.pop()
            if at in self.stored:
                continue
            if self.expression.nodes[at].kind == "matmul":
                return True
            fresh = {*self.expression.nodes[at].args} - seen
            seen |= fresh
            todo += fresh
        return False

    def _write_once(self) -> str:
        self.names = NameTable(Counter([*RESERVED, *(buffer.name for buffer in self._buffers())]))
        self.tables = KnownTables(self.names)
        self.kept: dict[Buffer, KeptRows] = {}
        body: list[str] = []
        for node in sorted(self.stored):
            body += self._write_result(node, self.stored[node])
        outputs = list(zip(self.expression.outputs, self.signature.outputs, strict=True))
        together = self._write_together(outputs)
        if together is not None:
            return self._joined(body + together)
        for node, buffer in outputs:
            body += self._write_result(node, buffer)
        return self._joined(body)

    def _write_together(self, outputs: Sequence[tuple[int, Buffer]]) -> list[str] | None:
        """One stage that writes all outputs, if there are several and their loops are the same."""
        targets = [target for node, buffer in outputs for target in self._targets(node, buffer)]
        if len(outputs) == 1 or len(targets) != len(outputs):
            return None
        try:
            return self._write_stage(targets)
        except (UntranslatableError, StoredNeededError):
            return None

    def _buffers(self) -> list[Buffer]:
        return [*self.signature.inputs, *self.signature.outputs, *self.stored.values()]

    def _joined(self, body: Sequence[str]) -> str:
        stored = [buffer for buffer in self.stored.values() if buffer not in self.kept]
        name, arguments = self.signature.name, self.signature.arguments
        outputs = self.signature.outputs
        return join_kernel(name, arguments, outputs, stored=stored, tables=self.tables, body=body)

    def _write_result(self, node: int, buffer: Buffer) -> list[str]:
        body: list[str] = []
        targets = self._targets(node, buffer)
        if len({self.expression.nodes[target.node].shape for target in targets}) == 1 < len(targets):
            try:
                return self._write_stage(targets)
            except (UntranslatableError, StoredNeededError):
                pass  # each in a stage of its own
        for target in targets:
            body += self._write_stage([target])
        return body

    def _targets(self, number: int, buffer: Buffer) -> list[_Target]:
        """The stages that write a result: one for each piece, if it is assembled of pieces."""
        shape = self.expression.nodes[number].shape
        whole = _Target(number, buffer, strides_of(shape), 0)
        return self._pieces(whole)

    def _pieces(self, target: _Target) -> list[_Target]:
        node = self.expression.nodes[target.node]
        if node.kind != "assemble" or self.known.is_known(target.node):
            return [target]
        found = []
        base, *pieces = node.args
        if self.expression.nodes[base].kind != "unknown" and not self._covers(node.shape, pieces):
            found.append(_Target(base, target.buffer, target.strides, target.offset))
        if strides_of(node.shape) != target.strides and not all(map(self._is_moved, pieces)):
            return [target]
        for piece, (strides, offset) in zip(pieces, node.params, strict=True):
            shape = self.expression.nodes[piece].shape
            placed = align_view(node.shape, shape, strides, offset)
            if placed is None:
                return [target]
            found += self._pieces(_place_piece(target, piece, len(shape), placed))
        return found

    def _is_moved(self, number: int) -> bool:
        """Whether an operation takes elements of an input as they are, or is known."""
        node = self.expression.nodes[number]
        if node.kind == "view":
            return self._is_moved(node.args[0])
        return node.kind == "input" or self.known.is_known(number)

    def _covers(self, shape: Shape, pieces: Sequence[int]) -> bool:
        return sum(prod(self.expression.nodes[piece].shape) for piece in pieces) >= prod(shape)

    def _write_stage(self, targets: Sequence[_Target]) -> list[str]:
        """The lines of one stage, which writes results whose axes are among those of the first."""
        first = targets[0]
        shape = self.expression.nodes[first.node].shape
        written = {target.buffer for target in targets}
        stored = {node: buffer for node, buffer in self.stored.items() if buffer not in written}
        axes = [self.loops.index(f"o{first.node}_{at}", size) for at, size in enumerate(shape)]
        demand: Demand | None = None
        for _ in range(2):  # the second time it is known which loops run along which axes
            demand = Demand(
                self.expression,
                inputs=self.signature.inputs,
                stored=stored,
                kept=self.kept,
                loops=self.loops,
                known=self.known,
                activations=self.activations,
                before=demand,
                vectors=self.layout.vectors,
            )
            stores = [self._store_of(demand, target, shape, axes) for target in targets]
            self.choices.vectors |= demand.found_vectors
            self.choices.matrices |= demand.found_matrices
        self.layout.require_one_way(self.choices)
        return self._write_nest(first.node, stores, [atom for index in axes for atom, _ in index.terms])

    def _store_of(self, demand: Demand, target: _Target, shape: Shape, axes: Sequence[AxisIndex]) -> Store:
        own = self.expression.nodes[target.node].shape
        indices = match_axes(own, shape, axes)
        terms = [
            (atom, step * stride)
            for index, stride in zip(indices, target.strides, strict=True)
            for atom, step in index.terms
        ]
        value = demand.value(target.node, join_axes(own, indices))
        may_stay = target.node in self.parts_of_sums and self.stored.get(target.node) == target.buffer
        return Store(value, target.buffer, make_access(target.offset, terms), may_stay=may_stay)

    def _write_nest(self, node: int, stores: Sequence[Store], atoms: Sequence[Atom]) -> list[str]:
        """Write a stage with the chosen loop on the partitions, else with the first that can be written."""
        stores, atoms = merge_loops(scale_behind_maxima(stores), atoms)
        copied = write_copies(stores, self.names)
        if copied is not None:
            return copied
        for atom, inner in self.loops.splits.items():
            if atom in atoms:  # of merged loops: the table, which splits all others, does not have it
                stores, atoms, _ = split_rows(stores, atoms, atom, inner)
        grouped = group_sums(stores, atoms)
        self.choices.has_sum_groups |= grouped != stores
        blocks, loops = split_into_blocks(stores)
        self.choices.has_hidden_blocks |= bool(loops)
        self.block_loops = loops
        if self.layout.leaves_out and loops:
            stores = blocks
        elif not self.layout.keeps_sums:
            stores = grouped
        spreads_first = self.layout.whole_totals
        choices = find_layouts(stores, atoms, spreads_first=spreads_first)
        self.choices.rows[node] = [*choices]
        rows = self.layout.rows
        usual = usual_layouts(choices, spreads_first=spreads_first)
        wanted = [rows[node]] if rows.get(node, "") in choices else usual
        return self._write_first(node, stores, {name: choices[name] for name in wanted})

    def _write_first(
        self, node: int, stores: Sequence[Store], wanted: Mapping[str | None, Callable[[], StageLayout]]
    ) -> list[str]:
        """Write a stage in the first of these layouts that can be written."""
        failures: list[Exception] = []
        unstored: list[StoredNeededError] = []
        is_long = count_elements([store.value for store in stores]) > _MOST_IN_ONE
        for name, make in wanted.items():
            if name is None and len(wanted) > 1 and unstored and is_long:
                break
            try:
                return self._write_layout(make())
            except SplitNeededError as split:
                if split.atom not in self.loops.splits:
                    raise
                failures.append(UntranslatableError(f"a loop that cannot be split, {split}"))
            except (UntranslatableError, StoredNeededError) as failure:
                failures.append(failure)
                if isinstance(failure, StoredNeededError) and failure.node not in {*self.stored, node}:
                    unstored.append(failure)
        first = (unstored or failures)[0]
        large = find_cut(stores) if isinstance(failures[0], TilesTooLargeError) else None
        if large is not None and large not in self.stored:
            raise StoredNeededError(large) from failures[0]
        if isinstance(first, TilesTooLargeError):
            raise TilesTooLargeError(f"{first}, for {self._describe(node)}") from first
        raise first

    def _write_layout(self, layout: StageLayout) -> list[str]:
        layout = cut_tiles(layout, self.layout.parts)
        stores, row, atoms = layout.stores, layout.row, layout.atoms
        measured = use_moments(stores)
        self.choices.has_variance |= measured is not None
        stores = measured if measured is not None and self.layout.has_moments else stores
        if row is not None and not all(row in store.atoms for store in stores):
            raise UntranslatableError("results that do not share the loop on the partitions")
        values = [store.value for store in stores]
        items = {item for value in values for item in value.walk()}
        functions = {item.function for item in items if isinstance(item, Unary)}
        self.choices.has_roots |= not functions.isdisjoint(elementwise.ROOTS)
        bound = frozenset().union(*(item.bound for item in items))
        bound |= {item.along for item in items if isinstance(item, Scan)}
        outer = tuple(
            atom
            for atom in atoms
            if atom in layout.outside or (atom not in {row, layout.inside} and is_batch(values, atom))
        )
        if bound & {*outer}:
            raise UntranslatableError("a loop of independent products that is also walked inside")
        if any(is_summed_by_vector(values, atom) for atom in atoms if atom not in {row, layout.inside}):
            raise UntranslatableError("a loop of the result over which a product with a vector sums")
        used = 0
        lengths = self.layout.tile_lengths if layout.is_plain else [self.layout.tile_length]
        for longest in lengths:
            free = _limit_free(outer, row, atoms, bound, longest=longest)
            if layout.grouped in free:
                raise UntranslatableError("rows of a partition that do not lie side by side")
            leaves_out = self.layout.leaves_out
            order = (*atoms, *self.block_loops) if leaves_out else atoms
            nest = Nest(free, row, order, self.layout.loads_again, is_even=leaves_out)
            self.choices.has_shared_rows |= nest.row_tiles > 1 and any(map(_lacks_outer, items))
            for max_held in _HELD_OPERANDS:
                names, tables = deepcopy((self.names, self.tables))
                context = self._make_context(nest, stores, names=names, tables=tables, max_held=max_held)
                write_stores(context, stores)
                self.choices.has_uneven_banks |= context.has_uneven_banks
                self.choices.has_columns_of_rows |= context.has_columns_of_rows
                used = context.used_bytes
                if used <= SBUF_BYTES:
                    self.names, self.tables = names, tables
                    self.kept |= context.kept
                    return _join_levels(context)
        raise TilesTooLargeError(f"tiles of {used} bytes per partition, {SBUF_BYTES} are there")

    def _make_context(
        self,
        nest: Nest,
        stores: Sequence[Store],
        *,
        names: NameTable,
        tables: KnownTables,
        max_held: int,
    ) -> StageContext:
        """A stage in the making, with the engine that is spared at work already."""
        values = [store.value for store in stores]
        items = {item for value in values for item in value.walk()}
        context = StageContext(
            nest=nest,
            names=names,
            tables=tables,
            makers=_MAKERS,
            transpose=make_transposed,
            make_bank=products.make_bank,
            find_equal=find_equal,
            alike=find_alike(items),
            readers=find_readers(values),
            uses=count_uses(values),
            sums={i.value: i for i in items if isinstance(i, Reduce) and i.function == "add"},
            windows=find_windows(values, frozenset({*nest.outer, *([nest.row] if nest.row else [])})),
            max_held=max_held,
            blocks=self.block_loops if self.layout.leaves_out else (),
            ranges=find_ranges(stores, nest, self.block_loops) if self.layout.leaves_out else {},
            hides_in_banks=self.layout.hides_in_banks,
            holds_rows=self.layout.holds_rows,
            pads_banks=self.layout.pads_banks or self.layout.hides_in_banks,
            turned_length=self.layout.turned_length,
            roots_by_vector=self.layout.has_powers,
        )
        if self.layout.spared is not None:
            context.busy[self.layout.spared] = _SPARED_TILES * _longest_tile(nest, items)
        return context


def _place_piece(target: _Target, piece: int, axes: int, placed: AxisAlignment) -> _Target:
    """Where a piece of an assembled result goes, whose axes run along those of the result."""
    strides = [0] * axes
    for axis, (own, step) in placed.axes.items():
        strides[own] = step * target.strides[axis]
    starts = sum(start * stride for start, stride in zip(placed.starts, target.strides, strict=True))
    return _Target(piece, target.buffer, tuple(strides), target.offset + starts)


def _lacks_outer(item: Value) -> bool:
    """Whether an array is the same for all steps of the outer of two loops on the partitions."""
    return isinstance(item, PairedLoad) and item.outer not in item.load.atoms


def _longest_tile(nest: Nest, items: Iterable[Value]) -> int:
    """The most elements that a tile of a nest has in each partition."""
    return max(
        prod(nest.width(atom) for atom in nest.free_atoms(item, nest.row) if atom != nest.row)
        for item in items
    )


def _limit_free(
    outer: tuple[Atom, ...], row: Atom | None, atoms: Sequence[Atom], bound: frozenset[Atom], *, longest: int
) -> tuple[Atom, ...]:
    """Move free loops outside until a tile is not too long; loops that are summed over stay inside."""
    found = [*outer]
    inside = [atom for atom in atoms if atom != row and atom not in found]
    movable = [atom for atom in inside if atom not in bound]
    while prod(atom.size for atom in inside) > longest and movable:
        first = movable.pop(0)
        rest = prod(atom.size for atom in inside if atom != first)
        run = max((part for part in range(1, longest // rest + 1) if first.size % part == 0), default=0)
        if not movable and SHORT_RUN <= run < first.size and len(inside) > 1:
            raise SplitNeededError(first, run)
        if len(inside) > 1:
            found.append(first)
            inside.remove(first)
            continue
        divisor = max(part for part in range(1, longest + 1) if first.size % part == 0)
        if divisor > 1:
            raise SplitNeededError(first, divisor)
    return tuple(atom for atom in atoms if atom in found)


def _join_levels(context: StageContext) -> list[str]:
    """The lines of a stage: each level inside the loop of the level before."""
    nest = context.nest
    found: list[str] = []
    for level, lines in enumerate(context.levels):
        if level and level <= len(nest.outer):
            atom = nest.outer[level - 1]
            found.append(
                f"{INDENT * (level - 1)}for {context.variables[atom]} in nl.affine_range({atom.size}):"
            )
        elif level and nest.row is not None:
            found.append(f"{INDENT * (level - 1)}for i_row in nl.affine_range({nest.row_tiles}):")
            if nest.is_ragged(nest.row):
                count = f"rows = min({nest.row_tile}, {nest.row.size} - {context.row_start()})"
                found.append(INDENT * level + count)
        found += lines.lines
    return found
