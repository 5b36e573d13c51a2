"""How a kernel is laid out: what a small search changes, judged by predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from targets.base import UntranslatableError

_ROWS = 8
"""Choices of what lies on the partitions that are tried for each loop nest."""
_TILE_LENGTHS = (8192, 2048, 512)
"""float32 in one partition of a tile, up to which loops stay inside."""
_TURNED_LENGTHS = (512, 256)
"""float32 in one partition of a bank of PSUM that transposed blocks fill."""
_HALVES = 4
"""Lengths of tiles, each half of the one before, of which the longest is taken that fits."""
_PARTS = (2, 4, 8, 1)
"""Parts that tiles are cut in."""
_WAYS = (4, 2, 8, 1)
"""Iterations of outer loops that are side by side."""

_MANY_WAYS, _LATE_WITH_ROWS = (4, 8), 6
"""Iterations side by side, and late instructions, that are tried with another loop on the partitions."""
_FEWER_ROWS = 5
"""Choices of what lies on the partitions that are tried with those."""

_LATE = (2, 3, 5, 6, 8, 0)
_BETWEEN = (1, 2, 3)
"""Instructions of the stage between the first one and what is two iterations late."""
_WARM = (8, 5, 2, 0)
"""Products of zeros at the beginning: eight take the 3 us after which the clock is high."""
_SPARED = (None, "vector", "scalar", "gpsimd")
_SHARED = (None, "scalar", "vector")


@dataclass
class Choices:
    """What another layout of a kernel may choose; known once the kernel is written."""

    rows: dict[int, list[str | None]] = field(default_factory=dict)
    """What may lie on the partitions, by operation."""
    cuts: Sequence[int] = ()
    """Products of matrices and their operands, where these are computed: a kernel may be cut behind them."""
    vectors: dict[int, None] = field(default_factory=dict)
    """Products of a matrix and a vector."""
    matrices: dict[int, None] = field(default_factory=dict)
    """Products of two matrices; one with a column taken from it elsewhere is a product with a vector too."""
    has_variance: bool = False
    has_roots: bool = False
    has_shared_rows: bool = False
    """Whether tiles of rows share what lacks the outer of two loops on the partitions."""
    has_uneven_banks: bool = False
    """Whether products are copied because they do not fit in banks of PSUM."""
    has_hidden_blocks: bool = False
    """Whether masks hide blocks of products that are summed over."""
    has_sum_groups: bool = False
    """Whether products sum over short rows, of which a partition may have several."""
    has_columns_of_rows: bool = False
    """Whether tiles take columns of the rows of an array."""
    has_running_sums: bool = False
    has_whole_banks: bool = False
    """Whether a tile is a copy of a whole bank, in which its readers could read it."""
    has_other_order: bool = False
    """Whether functions of one table can follow each other more often."""
    uses_tensor: bool = False
    """Whether the tensor engine has work, so that its clock matters."""
    has_split_totals: bool = False
    """Whether reductions around and inside of others may go row by row, through HBM, or at once."""


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """What lies on the partitions, by operation; how long tiles are; what goes side by side."""

    rows: Mapping[int, str | None] = field(default_factory=dict)
    has_moments: bool = False
    """Whether means and variances are taken by the instruction for both."""
    leaves_out: bool = False
    """Whether blocks that masks hide from all rows of a tile are not computed; sums then run over blocks."""
    hides_in_banks: bool = False
    """Whether masks hide products where these are in PSUM, and not in a copy."""
    pads_banks: bool = False
    """Whether products may have unused elements between them, so that they fit in banks of PSUM."""
    keeps_sums: bool = False
    """Whether the rows that products sum over are 128 apart in a partition, and no neighbours."""
    loads_again: bool = False
    """Whether what tiles of rows share is loaded for each of them, after their rows, and not before all."""
    holds_rows: bool = False
    """Whether whole rows are loaded before tiles take columns of them, and not the columns for each tile."""
    tile_length: int = _TILE_LENGTHS[0]
    parts: int = 1
    """Parts, at most, that tiles are cut in, so that engines work on one while others are moved."""
    ways: int = 1
    stored: tuple[int, ...] = ()
    """Operations whose results go through HBM, so that what follows has a layout of its own."""
    late: int = 0
    """Instructions at the end of a loop that are issued after the beginning of the next iteration."""
    later: int = 0
    """Those of them that are issued another iteration later."""
    orders_functions: bool = False
    """Whether functions of ScalarE wait for others that need the table that is there."""
    warm_products: int = 0
    """Products of zeros before all others: the clock of the tensor engine rises during the first loads."""
    turned_length: int = _TURNED_LENGTHS[0]
    """float32 in one partition of PSUM that transposes fill before they are copied."""
    reads_banks: bool = False
    """Whether engines read transposed tiles in PSUM, where all of a tile is in one bank."""
    spared: str | None = None
    """An engine that gets less of what others can do as well."""
    shared: str | None = None
    """An engine of whose copies in loops another one does every second."""
    has_powers: bool = False
    """Whether VectorE takes roots of columns, as powers: ScalarE then need not load their table."""
    vectors: tuple[int, ...] = ()
    """Products of matrices and vectors by VectorE, which needs no operand transposed."""
    scans_sums: bool = False
    """Whether VectorE makes running sums, as recurrences, and not the tensor engine, with a triangle."""
    whole_totals: bool = False
    """Whether reductions around and inside of others are made at once, from all that they need in SBUF."""

    @property
    def name(self) -> str:
        """The layout as text, from which `from_name` makes it again."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def tile_lengths(self) -> Sequence[int]:
        """The tiles' length, and shorter ones for when such tiles do not fit together."""
        return [self.tile_length >> halves for halves in range(_HALVES)]

    @classmethod
    def from_name(cls, name: str) -> KernelLayout:
        """Return the layout of a name."""
        given = json.loads(name)
        rows = {int(node): row for node, row in given["rows"].items()}
        lists = {name: tuple(given[name]) for name in ("stored", "vectors")}
        return cls(**{**given, "rows": rows, **lists})

    @property
    def arithmetic(self) -> str:
        """What of the layout decides how results are rounded, as text; the rest is order and memory."""
        order = KernelLayout()
        kept = replace(
            self, parts=1, ways=1, late=0, later=0, shared=None, orders_functions=False, warm_products=0,
            turned_length=order.turned_length, reads_banks=False, loads_again=order.loads_again,
        )  # fmt: skip
        return kept.name

    def require_one_way(self, written: Choices) -> None:
        """Refuse products that would be summed up in two orders.

        The exponential of the difference of both may be infinite where that of the reference is 1.
        """
        if written.vectors.keys() & written.matrices.keys() & {*self.vectors}:
            raise UntranslatableError("a product is needed by two engines, which sum it up in other orders")

    def neighbours(self, written: Choices, *, is_first: bool) -> Iterator[KernelLayout]:
        """Layouts that differ in one thing; at first only in what decides about transfers and engines."""
        yield from self._other_forms(written)
        yield from self._other_sequences(written)
        if not is_first:
            yield from self._other_orders(written)
        for node, rows in written.rows.items():
            for row in rows[:_ROWS]:
                if row != self.rows.get(node, rows[0]):
                    yield replace(self, rows={**self.rows, node: row})
        if not is_first:
            yield from self._other_cuts(written)
            yield from self._other_batches(written)
            yield from self._other_copies(written)
            yield from self._other_tiles(written)

    def _other_sequences(self, written: Choices) -> Iterator[KernelLayout]:
        """Layouts that compute some of it by other instructions."""
        if written.has_variance:
            yield replace(self, has_moments=not self.has_moments)
        if written.has_hidden_blocks:
            yield replace(self, leaves_out=not self.leaves_out)
            yield replace(self, leaves_out=True, hides_in_banks=not self.hides_in_banks)
        if written.has_uneven_banks:
            yield replace(self, pads_banks=not self.pads_banks)
        if written.has_other_order:
            yield replace(self, orders_functions=not self.orders_functions)
        if written.has_roots:
            yield replace(self, has_powers=not self.has_powers)
        if written.has_sum_groups:
            yield replace(self, keeps_sums=not self.keeps_sums)
        if written.has_shared_rows:
            yield replace(self, loads_again=not self.loads_again)
        if written.has_columns_of_rows:
            yield replace(self, holds_rows=not self.holds_rows)

    def _other_forms(self, written: Choices) -> Iterator[KernelLayout]:
        """Layouts that sum in the other way; they number operations otherwise, so nothing else is kept."""
        plain = replace(self, rows={}, stored=(), vectors=())
        if written.has_split_totals:
            other = replace(plain, whole_totals=not self.whole_totals)
            yield from (replace(other, has_moments=has_moments) for has_moments in (False, True))
        if written.has_running_sums:
            yield replace(plain, scans_sums=not self.scans_sums)

    def _other_orders(self, written: Choices) -> Iterator[KernelLayout]:
        """Layouts in which the same is done in another order, by other engines, or in longer parts."""
        if written.uses_tensor:
            yield from (replace(self, warm_products=count) for count in _WARM if count != self.warm_products)
        yield from (replace(self, ways=ways) for ways in _WAYS if ways != self.ways)
        yield from (replace(self, parts=parts) for parts in _PARTS if parts != self.parts)
        yield from (replace(self, late=late, later=0) for late in _LATE if late != self.late)
        if self.late and not self.later:
            yield from (replace(self, late=self.late + more, later=self.late) for more in _BETWEEN)
        yield from (replace(self, spared=engine) for engine in _SPARED if engine != self.spared)
        lengths = (length for length in _TILE_LENGTHS if length != self.tile_length)
        yield from (replace(self, tile_length=length) for length in lengths)

    def _other_batches(self, written: Choices) -> Iterator[KernelLayout]:
        """Layouts with more or fewer iterations in a tile, and others side by side for that."""
        for node, rows in written.rows.items():
            for row in rows[:_ROWS]:
                if row is not None and " with " in row and row != self.rows.get(node, rows[0]):
                    ways = (ways for ways in (1, 2) if ways != self.ways)
                    yield from (replace(self, rows={**self.rows, node: row}, ways=way) for way in ways)

    def _other_tiles(self, written: Choices) -> Iterator[KernelLayout]:
        """Layouts with shorter tiles or other loops on the partitions, and other orders for that.

        A single tile has no iterations to go side by side. Smaller tiles may be slower until theirs do.
        """
        for length in (length for length in _TILE_LENGTHS if length < self.tile_length):
            yield replace(self, tile_length=length, ways=_WAYS[0], late=0, later=0)
        for node, rows in written.rows.items():
            for row in rows[:_FEWER_ROWS]:
                if row is not None and " with " not in row and row != self.rows.get(node, rows[0]):
                    other = replace(self, rows={**self.rows, node: row}, late=0, later=0)
                    yield from (replace(other, ways=ways) for ways in _MANY_WAYS if ways != self.ways)
                    yield replace(other, ways=1, late=_LATE_WITH_ROWS)

    def _other_copies(self, written: Choices) -> Iterator[KernelLayout]:
        """Layouts in which results leave PSUM in other parts, by both engines, or not at all."""
        if written.has_whole_banks:
            yield replace(self, reads_banks=not self.reads_banks)
            yield replace(self, reads_banks=not self.reads_banks, late=0, later=0)
        yield from (replace(self, shared=engine) for engine in _SHARED if engine != self.shared)
        lengths = (length for length in _TURNED_LENGTHS if length != self.turned_length)
        yield from (replace(self, turned_length=length) for length in lengths)

    def _other_cuts(self, written: Choices) -> Iterator[KernelLayout]:
        """Layouts with other results in HBM, or with products by VectorE instead of the tensor engine."""
        for node in (node for node in written.vectors if node not in written.matrices):
            vectors = _toggled(self.vectors, node)
            yield replace(self, vectors=vectors)
            yield replace(self, vectors=vectors, stored=tuple(written.cuts))
        if len(written.cuts) > 1:
            yield replace(self, stored=() if self.stored else tuple(written.cuts))
        for node in written.cuts:
            yield replace(self, stored=_toggled(self.stored, node))


def _toggled(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    """The operations with this one, or without it if it is there."""
    return tuple(one for one in nodes if one != node) if node in nodes else (*nodes, node)
