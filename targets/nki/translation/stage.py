"""One loop nest in the making: its loops and lines, its tiles, and how an instruction names parts of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from targets.base import UntranslatableError
from targets.nki.translation.access import Access, Atom, make_access
from targets.nki.translation.demand import StoredNeededError
from targets.nki.translation.hbm import Run
from targets.nki.translation.layout import (
    BANK,
    MOST_STEP,
    PARTITIONS,
    BlockRange,
    Nest,
    blocker,
    is_scattered,
    padded_width,
)
from targets.nki.translation.renaming import Alike
from targets.nki.translation.source import KnownTables
from targets.nki.translation.text import Lines, NameTable, product_text, slice_text, sum_text
from targets.nki.translation.values import (
    Buffer,
    Contract,
    KeptRows,
    Load,
    Number,
    Reduce,
    Scan,
    SpreadSum,
    Value,
)
from targets.nki.translation.windows import Window

Box = Mapping[Atom, tuple[str, str | int]]
"""Parts of free loops that an instruction works on: by loop the start (text) and the count."""

_COSTS = {"vector": 1, "scalar": 1, "gpsimd": 3.2}
"""What an element costs, relative to each other."""

MOST_BANKS = 4
"""Banks of PSUM for products and masks: the others are for transposes and further iterations."""
_BANK_BYTES = 4 * BANK
_LONGEST_IN_PSUM = 4096
"""Elements in each partition that one instruction may touch there."""

SBUF_BYTES = 176 * 1024
"""Bytes of a partition that a stage's tiles may take, less than there are: loops overlap."""


@dataclass(frozen=True, slots=True)
class Store:
    """A value, and the elements of an array in HBM that it is written to."""

    value: Value
    buffer: Buffer
    access: Access
    pair: RowPair | None = None
    """Two loops of the access that are one on the partitions, though the array does not lie that way."""
    may_stay: bool = False
    """Whether a tile can take the array's place, because all that follows is the sum of its elements."""

    @property
    def atoms(self) -> frozenset[Atom]:
        """The loops that it walks."""
        if self.pair is None:
            return self.access.atoms
        return self.access.atoms - {self.pair.outer, self.pair.inner} | {self.pair.both}


@dataclass(frozen=True, slots=True)
class RowPair:
    """Two loops, and the loop over both of them."""

    outer: Atom
    inner: Atom
    both: Atom


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile on the chip: its name, the loop on its partitions, its free loops, and its number of chunks."""

    name: str
    partition: Atom | None
    free: tuple[Atom, ...]
    chunks: int
    places: tuple[tuple[Atom, int | str], ...] = ()
    """Loops of the tile of which only one element is meant; they are no free loops of the value."""
    windows: tuple[tuple[Atom, int | str, int], ...] = ()
    """Free loops that walk a part of the tile's dimension: the first place (number or text) and the step."""
    in_psum: bool = False
    padded: frozenset[Atom] = frozenset()
    """Free loops with elements behind them that nothing uses, so that steps do not cross banks of PSUM."""

    @property
    def walked(self) -> list[Atom]:
        """The free loops of which more than one element is meant."""
        fixed = {atom for atom, _ in self.places}
        return [atom for atom in self.free if atom not in fixed]

    def at(self, loop: Atom, place: int) -> Tile:
        """Return the elements at one place of a free loop."""
        return replace(self, places=(*self.places, (loop, place)))


@dataclass(frozen=True, slots=True)
class Rows:
    """The partitions that an instruction works on: how many (text or number), and the chunk's variable."""

    count: str | int
    chunk: str | None
    start: str
    first: int = 0
    """The first partition of the tile."""
    limits: Box = field(default_factory=dict)
    """The parts of free loops that are computed at all."""


@dataclass
class StageContext:
    """What the makers of tiles share: loops, lines by level, names, known tables, and the tiles so far."""

    nest: Nest
    names: NameTable
    tables: KnownTables
    makers: Mapping[type[Value], Maker]
    transpose: Maker
    make_bank: BankMaker
    find_equal: BankMaker
    """Finds a tile of a product that is the same along other loops, if there is one."""
    alike: Alike
    readers: Mapping[Value, Sequence[Value]]
    """The operations that use each value."""
    uses: Counter[Value]
    sums: Mapping[Value, Reduce]
    windows: Mapping[Value, Window]
    """Loads that are parts of larger ones."""
    max_held: int
    """float32 per partition of the largest operand of a product that is loaded as a whole."""
    blocks: Sequence[Atom] = ()
    """Free loops over blocks of what masks hide in part."""
    ranges: Mapping[Atom, BlockRange] = field(default_factory=dict)
    """The blocks of free loops that count in each tile of rows: masks hide the others."""
    roots_by_vector: bool = False
    """Whether VectorE takes roots of columns, so that ScalarE need not load their table."""
    turned_length: int = BANK
    """float32 per partition of a bank that transposed blocks fill before it is copied."""
    loads: dict[tuple[Buffer, Access], Load] = field(default_factory=dict)
    tiles: dict[tuple[Value, Atom | None], Tile] = field(default_factory=dict)
    banks: dict[tuple[Value, Atom | None], Tile] = field(default_factory=dict)
    """Products that are read where the tensor engine left them."""
    used_banks: int = 0
    holds_rows: bool = False
    """Whether whole rows are loaded before the loop over tiles that take columns of them."""
    has_columns_of_rows: bool = False
    """Whether tiles do that."""
    pads_banks: bool = False
    """Whether products in PSUM may have unused elements between them, so that they fit in banks."""
    has_uneven_banks: bool = False
    """Whether a product does not fit in banks without that."""
    hides_in_banks: bool = False
    """Whether known masks are applied to products in PSUM."""
    choices: dict[tuple[Value, Atom | None, tuple[Atom, ...]], Tile] = field(default_factory=dict)
    """Masks of choices, as bytes."""
    levels: list[Lines] = field(default_factory=list)
    used_bytes: int = 0
    numbers: dict[float, Number] = field(default_factory=dict)
    kept: dict[Buffer, KeptRows] = field(default_factory=dict)
    """What stays on the chip in the place of arrays."""
    set_aside: dict[tuple[Value, Atom | None], Tile] = field(default_factory=dict)
    """Parts of larger tiles that values are to be written to."""
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_COSTS, 0.0))
    """Elements in each partition that VectorE and ScalarE work on."""

    def __post_init__(self) -> None:
        depth = len(self.nest.outer) + (self.nest.row_tiles > 1)
        self.levels = [Lines(depth=level) for level in range(depth + 1)]

    def tile(self, value: Value, partition: Atom | None) -> Tile:
        """Return a tile with this loop on the partitions that holds a value; make it if there is none.

        Raises:
            StoredNeededError: an operation has to be stored by a stage before this one.
            UntranslatableError: no instructions make it.
        """
        key = value, partition
        if key not in self.tiles:
            self.tiles[key] = self._make(value, partition)
        return self.tiles[key]

    def operand(self, value: Value, partition: Atom | None) -> Tile:
        """Return a tile that VectorE or ScalarE may read: a product need not leave PSUM for that."""
        key = value, partition
        if isinstance(value, Contract) and not {key} & (self.tiles.keys() | self.banks.keys()):
            alike = self.find_equal(self, value, partition)
            if alike is not None:
                self.tiles[key] = alike
                return alike
            bank = None if blocker(value, partition) else self.make_bank(self, value, partition)
            if bank is not None:
                self.banks[key] = bank
        return self.tiles.get(key) or self.banks.get(key) or self.tile(value, partition)

    def _make(self, value: Value, partition: Atom | None) -> Tile:
        window = self.windows.get(value)
        if window is not None and (partition is None or partition in window.hull.common):
            return self._part_of_hull(window, partition)
        held = None
        if isinstance(value, Load):
            held = self._part_of_held(value, partition) or self._part_of_rows(value, partition)
        elif isinstance(value, Contract):
            held = self.find_equal(self, value, partition)
        return held or self._make_whole(value, partition)

    @cached_property
    def spread_along(self) -> frozenset[Atom]:
        """The loops on the partitions over which sums are products with ones."""
        return frozenset(value.along for value in self.uses if isinstance(value, SpreadSum))

    def _part_of_held(self, load: Load, partition: Atom | None) -> Tile | None:
        """A load as a part of one that is there before the loops around begin, as sums over them need it."""
        around = [atom for atom in load.atoms if atom in self.nest.outer]
        if partition is None or partition != self.nest.row or load.access.backward:
            return None
        for other in self.uses:
            names = _walked_alike(load, other) if isinstance(other, Load) and other is not load else None
            on = next((atom for atom, own in (names or {}).items() if own == partition), None)
            if names is None or on is None:
                continue
            is_inside = self.nest.level(other) < self.nest.level(load)
            if on != partition and not (on in self.spread_along and (is_inside or not around)):
                continue
            if on == partition and not (around and is_inside):
                continue
            tile = self.tile(other, on)
            walked = {atom: own for atom, own in names.items() if own not in around}
            places = tuple((atom, self.variables[own]) for atom, own in names.items() if own in around)
            return replace(
                tile,
                partition=partition,
                free=tuple(walked.get(atom, atom) for atom in tile.free),
                places=(*tile.places, *places),
                windows=tuple((names.get(atom, atom), first, step) for atom, first, step in tile.windows),
            )
        return None

    def _part_of_rows(self, load: Load, partition: Atom | None) -> Tile | None:
        """A load as a part of one of whole rows, made before the loop over tiles that take columns of them.

        The row loop then walks along rows of the array, and each tile would have short runs of it.
        """
        row = self.nest.row
        if row is None or self.nest.row_tiles == 1 or partition in {row, None} or load.access.backward:
            return None
        if load.access.stride(row) != 1:
            return None
        self.has_columns_of_rows = True
        if not self.holds_rows:
            return None
        whole = Atom(f"{row.name}_whole", row.size)
        terms = [(whole if atom == row else atom, stride) for atom, stride in load.access.terms]
        key = load.buffer, make_access(load.access.offset, terms)
        tile = self.tile(self.loads.setdefault(key, Load(load.node, *key)), partition)
        free = tuple(row if atom == whole else atom for atom in tile.free)
        return replace(tile, free=free, windows=(*tile.windows, (row, self.row_start(), 1)))

    def _part_of_hull(self, window: Window, partition: Atom | None) -> Tile:
        """A window, as a part of the tile that holds all of them."""
        tile = self.tile(window.hull.value, partition)
        names = {span: atom for span, atom, _, _ in window.axes}
        return replace(
            tile,
            free=tuple(names.get(atom) or atom for atom in tile.free),
            places=tuple((span, start) for span, atom, start, _ in window.axes if atom is None),
            windows=tuple((atom, start, step) for _, atom, start, step in window.axes if atom is not None),
        )

    def _make_whole(self, value: Value, partition: Atom | None) -> Tile:
        free = self.nest.free_atoms(value, partition)
        row = self.nest.row
        along = value.bound | ({value.along} if isinstance(value, Scan) else frozenset())
        if row in along and self.nest.row_tiles > 1:
            raise StoredNeededError(value.node)  # a tile holds part of the rows only
        blocking = blocker(value, partition)
        if blocking is not None and (partition not in value.atoms or partition == row):
            raise StoredNeededError(blocking.node)
        scattered = isinstance(value, Load) and is_scattered(value, partition, free)
        if blocking is not None or scattered:
            return self.transpose(self, value, partition, free)
        return self.makers[type(value)](self, value, partition, free)

    def forward_load(self, load: Load) -> Load:
        """Return a load of the same elements with all loops going forward; the same one each time."""
        key = load.buffer, load.access.turned()
        return self.loads.setdefault(key, Load(load.node, *key))

    def whole_runs(
        self, load: Load, partition: Atom | None, free: tuple[Atom, ...]
    ) -> tuple[Load, Atom, int] | None:
        """Return a load of whole runs of HBM that holds every n-th element of them, and which one is wanted.

        Single elements that lie a few apart cost a descriptor each. With those between them they are runs.
        """
        steps = [load.access.stride(atom) for atom in free]
        step = min(steps, default=1)
        row = 1 if partition is None else load.access.stride(partition)
        if load.buffer.dtype != "float32" or not 2 <= step <= MOST_STEP or 0 < row < step:
            return None
        offset, place = divmod(load.access.offset, step)
        strides = [stride for _, stride in load.access.terms]
        if any(stride % step for stride in strides):
            return None
        between = Atom(f"n{step}", step)
        access = make_access(offset * step, [*load.access.terms, (between, 1)])
        key = load.buffer, access
        return self.loads.setdefault(key, Load(load.node, *key)), between, place

    def is_absorbable(self, value: Value) -> bool:
        """Whether the instruction that uses a value may compute it on the way: no tile holds it yet."""
        return not any(held == value for held, _ in self.tiles)

    def column_of(self, number: float, partition: Atom | None) -> Tile:
        """A column of one number, made once; biases of ScalarE are columns."""
        held = self.numbers.setdefault(number, Number(-1, number))
        return self.tile(held, partition)

    def prefers_scalar(self, width: int) -> bool:
        """Book work of this many elements in each partition; return whether ScalarE has less to do so far."""
        return self.least_busy(("vector", "scalar"), width) == "scalar"

    def least_busy(self, engines: Sequence[str], width: int) -> str:
        """Book work of this many elements in each partition on the engine with the least so far."""
        found = min(reversed(engines), key=lambda engine: self.busy[engine] + width * _COSTS[engine])
        self.busy[found] += width * _COSTS[found]
        return found

    def result_tile(
        self,
        value: Value,
        stem: str,
        partition: Atom | None,
        free: Sequence[Atom],
        *,
        dtype: str = "float32",
    ) -> Tile:
        """Declare the tile of a value, or return the part of a larger tile that was set aside for it."""
        held = self.set_aside.get((value, partition))
        if held is not None and dtype == "float32" and held.free == tuple(free):
            return held
        in_psum = dtype == "uint8" and self._takes_banks(partition, free)
        return self.new_tile(stem, partition, free, self.lines(value), dtype, in_psum=in_psum)

    def _takes_banks(self, partition: Atom | None, free: Sequence[Atom]) -> bool:
        """Whether bytes get room in PSUM, where choices read them in half the time; products come first."""
        size = self.width(partition, free)
        banks = -(-size // _BANK_BYTES)
        has_room = size <= _LONGEST_IN_PSUM and self.used_banks + banks <= MOST_BANKS
        if not has_room or any(isinstance(value, Contract) for value in self.uses):
            return False
        self.used_banks += banks
        return True

    def width(self, partition: Atom | None, free: Sequence[Atom]) -> int:
        """How many elements of a value each partition has."""
        return prod(self.nest.width(atom) for atom in free) * self.nest.chunks(partition)

    def is_single_use(self, value: Value) -> bool:
        """Whether one operation uses a value, which a hull's part counts as none, and no tile holds it."""
        return self.uses[value] <= 1 and not any(held == value for held, _ in self.tiles)

    def is_column(self, value: Value, partition: Atom | None) -> bool:
        """Whether a value is one number for each partition."""
        return not self.nest.free_atoms(value, partition)

    def stored_needed(self, value: Value) -> StoredNeededError:
        """The error that asks for an operation's result to be stored by a stage before."""
        return StoredNeededError(value.node)

    def lines(self, value: Value) -> Lines:
        """The lines of the level that a value is made at."""
        return self.levels[self.nest.level(value)]

    @property
    def variables(self) -> Mapping[Atom, str]:
        """The variables of the outer loops."""
        return {atom: f"i_{at}" for at, atom in enumerate(self.nest.outer)}

    def row_start(self) -> str:
        """The first row of the present tile, as text."""
        return f"i_row * {self.nest.row_tile}" if self.nest.row_tiles > 1 else "0"

    def row_count(self) -> str | int:
        """The rows of the present tile."""
        row = self.nest.row
        return "rows" if row is not None and self.nest.is_ragged(row) else self.nest.row_tile

    def new_tile(
        self,
        stem: str,
        partition: Atom | None,
        free: Sequence[Atom],
        lines: Lines,
        dtype: str = "float32",
        *,
        in_psum: bool = False,
        chunks: int | None = None,
        padded: frozenset[Atom] = frozenset(),
    ) -> Tile:
        """Declare a tile, in SBUF if nothing else is said; of the row loop it has one chunk, or so many."""
        name, chunks = self.names.new(stem), chunks or self.nest.chunks(partition)
        height = self.height(partition)
        widths = [padded_width(atom.size) if atom in padded else self.nest.width(atom) for atom in free]
        sizes = [height, *([chunks] if chunks > 1 else []), *widths]
        sizes += [1] if not free else []
        self.used_bytes += 0 if in_psum else 4 * prod(sizes[1:])
        shape, memory = ", ".join(map(str, sizes)), "psum" if in_psum else "sbuf"
        lines.add(f"{name} = nl.ndarray(({shape}), dtype=nl.{dtype}, buffer=nl.{memory})")
        return Tile(name, partition, tuple(free), chunks, in_psum=in_psum, padded=padded)

    def height(self, partition: Atom | None) -> int:
        """How many partitions a tile has."""
        if partition == self.nest.row:
            return self.nest.row_tile
        return 1 if partition is None else min(PARTITIONS, partition.size)

    @contextmanager
    def rows(self, lines: Lines, partition: Atom | None) -> Iterator[Rows]:
        """Go through the chunks of the partitions; instructions added meanwhile work on one chunk."""
        limits = self.limits_at(lines)
        with ExitStack() as stack:
            if partition is None:
                yield Rows(1, None, "0", limits=limits)
            elif partition == self.nest.row and lines is not self.levels[-1]:
                yield Rows(self.nest.row_tile, None, "0")  # the same in every row
            elif partition == self.nest.row:
                chunk = "i_row" if self.nest.row_tiles > 1 else None
                yield Rows(self.row_count(), chunk, self.row_start(), limits=limits)
            elif self.nest.chunks(partition) == 1:
                yield Rows(partition.size, None, "0", limits=limits)
            else:
                yield replace(self._enter_chunks(stack, lines, partition), limits=limits)

    def limits_at(self, lines: Lines) -> Box:
        """The parts of free loops that instructions of these lines work on, where masks hide the others."""
        return self._limits if lines is self.levels[-1] else {}

    @cached_property
    def _limits(self) -> Box:
        return {loop: found.box for loop, found in self.ranges.items()}

    def _enter_chunks(self, stack: ExitStack, lines: Lines, partition: Atom) -> Rows:
        chunk = self.names.new("i_chunk")
        stack.enter_context(lines.loop(chunk, self.nest.chunks(partition)))
        start = f"{chunk} * {PARTITIONS}"
        if not self.nest.is_ragged(partition):
            return Rows(PARTITIONS, chunk, start)
        count = self.names.new("count")
        lines.add(f"{count} = min({PARTITIONS}, {partition.size} - {start})")
        return Rows(count, chunk, start)

    def runs(self, tile: Tile, rows: Rows, boxes: Box) -> list[Run | int]:
        """The loops that an instruction walks over a tile, for an array in HBM."""
        boxes = {**rows.limits, **boxes}
        found: list[Run | int] = [Run(tile.partition, rows.start, rows.count)] if tile.partition else [1]
        found += [self.run(atom, boxes) for atom in tile.free]
        return found if tile.free else [*found, 1]

    def run(self, atom: Atom, boxes: Box) -> Run:
        """The walk over a free loop: a box of it, the present tile of the row loop, or all of it."""
        if atom in boxes:
            return Run(atom, *boxes[atom])
        if atom == self.nest.row:
            return Run(atom, self.row_start(), self.row_count())
        return Run(atom, "0", atom.size)

    def view(
        self,
        tile: Tile,
        rows: Rows,
        free: Sequence[Atom],
        boxes: Box | None = None,
        fixed: Mapping[Atom, str] | None = None,
    ) -> str:
        """A tile for one instruction whose free loops are these; it is repeated along those it lacks.

        A box takes a part of a free loop, (start, count); `fixed` takes one element of a loop.
        """
        boxes = {**rows.limits, **(boxes or {})}
        fixed = {**(fixed or {}), **{atom: str(at) for atom, at in tile.places}}
        height = self.height(tile.partition)
        whole = str(rows.count) == str(height)
        texts = [":" if whole else f"{rows.first}:{sum_text(rows.count, rows.first)}"]
        texts += [rows.chunk or "0"] if tile.chunks > 1 else []
        texts += [self._place_text(tile, atom, boxes, fixed) for atom in tile.free]
        texts += [":"] if not tile.free else []
        own = [atom for atom in tile.free if atom not in fixed]
        name = tile.name if all(text == ":" for text in texts) else f"{tile.name}[{', '.join(texts)}]"
        wanted = [atom for atom in free if atom in own]
        if wanted != own and len(wanted) == len(own):
            name += f".permute({[0, *(1 + own.index(atom) for atom in wanted)]})"
            own = wanted
        return self._repeated(name, own, free, boxes, has_unit=not tile.free)

    def _place_text(self, tile: Tile, atom: Atom, boxes: Box, fixed: Mapping[Atom, str]) -> str:
        window = next((one for one in tile.windows if one[0] == atom), None)
        if window is None:
            if atom in tile.padded and atom not in {*fixed, *boxes}:
                return f"0:{atom.size}"
            return fixed[atom] if atom in fixed else self._free_text(atom, boxes)
        _, first, step = window
        if atom in fixed:
            return sum_text(product_text(fixed[atom], step), first)
        start, count = boxes.get(atom, ("0", self.row_count() if atom == self.nest.row else atom.size))
        return slice_text(sum_text(product_text(start, step), first), count, -1, step)

    def _free_text(self, atom: Atom, boxes: Box) -> str:
        if atom in boxes:
            start, count = boxes[atom]
            return f"{start} : {sum_text(start, count)}" if start != "0" else f"0:{count}"
        ragged = atom == self.nest.row and self.nest.is_ragged(atom)
        return f"0:{self.row_count()}" if ragged else ":"

    def _repeated(
        self,
        name: str,
        own: Sequence[Atom],
        free: Sequence[Atom],
        boxes: Box,
        *,
        has_unit: bool,
    ) -> str:
        left = list(own)
        for at, atom in enumerate(free):
            if left and left[0] == atom:
                left.pop(0)
                continue
            count = (
                boxes[atom][1] if atom in boxes else self.row_count() if atom == self.nest.row else atom.size
            )
            name += (
                f".broadcast({at + 1}, {count})"
                if has_unit
                else f".expand_dim({at + 1}).broadcast({at + 1}, {count})"
            )
            has_unit = False
        if left:
            raise UntranslatableError(f"loops in an order that no instruction reads: {own} as {free}")
        return name


def _walked_alike(load: Load, other: Load) -> dict[Atom, Atom] | None:
    """By loop of another load the loop that walks the same elements here; None if they differ."""
    if load.buffer != other.buffer or load.access.offset != other.access.offset:
        return None
    strides = {stride: atom for atom, stride in load.access.terms}
    names = {atom: strides.get(stride) for atom, stride in other.access.terms}
    found = {atom: own for atom, own in names.items() if own is not None and own.size == atom.size}
    is_same = len(found) == len(strides) == len(load.access.terms) == len(other.access.terms)
    return found if is_same else None


Maker = Callable[[StageContext, Value, Atom | None, tuple[Atom, ...]], Tile]
"""Makes a tile of a value, with a loop on the partitions and the free loops inside."""
BankMaker = Callable[[StageContext, Value, Atom | None], Tile | None]
"""Gives a tile of a product, such as one that stays in PSUM, or refuses."""
