"""A program's instructions as rows: a key for what stays the same in a loop, and integers for what moves.

Two instructions have the same key if one call in a loop could issue both. The integers are which tile an
operand lies in, where its access begins along each dimension, and integer parameters.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from nki_sim.forms import HBM_BUFFERS, Dims, Form, Operand, ParamValue, Site
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program


class NotRaised(Exception):  # noqa: N818  a limit of raising, not a fault of the kernel
    """A kernel cannot be written in the canonical form; the message says why."""


@dataclass(frozen=True, slots=True)
class TileClass:
    """What a declaration says: tensors of the same class are interchangeable."""

    shape: tuple[int, ...]
    dtype: str
    buffer: str
    address: tuple[int, int] | None

    @property
    def on_chip(self) -> bool:
        return self.buffer not in HBM_BUFFERS

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))


@dataclass(frozen=True, slots=True)
class RowOperand:
    """An operand of a call: `tensor` is an argument's or output's number, None for tiles.

    If `flat`, its place is one number, an offset; otherwise one number for each dimension. `column_step` is
    nonzero if an index chooses its columns, that many elements apart (`.indirect`).
    """

    role: str
    dims: Dims
    dtype: str
    home: TileClass
    tensor: int | None
    flat: bool
    column_step: int = 0

    @property
    def places(self) -> int:
        """How many numbers say where it begins."""
        return 1 if self.flat else len(self.home.shape)

    @property
    def numbers(self) -> int:
        """How many numbers it has: its tile, unless it is fixed, and its place."""
        return self.places + (self.tensor is None)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter's value; `text` distinguishes what Python calls equal, such as 1, 1.0 and True."""

    value: ParamValue
    text: str


@dataclass(frozen=True, slots=True)
class RowKey:
    """What the instructions of one call have in common."""

    op: str
    engine: str
    params: tuple[tuple[str, Parameter], ...]
    operands: tuple[RowOperand, ...]
    counted: tuple[str, ...]
    """Integer parameters, which may move."""

    @property
    def tile_numbers(self) -> tuple[bool, ...]:
        """For each number, whether it says which tile (and not where)."""
        found: list[bool] = []
        for item in self.operands:
            found += [True] * (item.tensor is None) + [False] * item.places
        return (*found, *[False] * len(self.counted))


@dataclass(frozen=True, slots=True)
class InstructionRow:
    """One instruction: its key, its numbers, and its line in the kernel's source."""

    key: RowKey
    numbers: tuple[int, ...]
    line: int


def read_rows(program: Program) -> list[InstructionRow]:
    """Return all instructions of a program as rows.

    A tile's number is its declaration's place in the program times the number of
    tensors, plus how many tiles that
    declaration made before it. So the numbers of the tiles of one declaration, or of declarations that
    follow one another, grow evenly.

    Raises:
        NotRaised: the program uses what canonical source does not express.
    """
    _require_expressible(program)
    return _RowReader(program).read()


def _require_expressible(program: Program) -> None:
    if program.loops:
        raise NotRaised("a loop of the device, whose bounds depend on data")
    if program.cores.any():
        raise NotRaised("a launch on several cores")
    for form in program.forms:
        operator = OPERATORS[form.op]
        state = operator.state.name if operator.state is not None else ""
        if operator.internal:
            raise NotRaised(f"the internal instruction {form.op}")
        gathered = {item.role: item for item, _ in form.column_lookups}
        for item in form.operands:
            if item.index_step and item.role not in gathered:
                raise NotRaised(f"{form.op} with an address that depends on data")
            if item.role in gathered and form.op == "nc_matmul_mx":
                raise NotRaised(f"{form.op} of columns that an index chooses, as quadrants share its scales")
            if item.buffer == "register" and item.role != state:
                raise NotRaised(f"{form.op} with a register")


def held_constants(program: Program) -> list[int]:
    """The tensors in HBM that hold data from the start."""
    return [number for number in program.constants if program.site(number).buffer in HBM_BUFFERS]


def number_tiles(program: Program) -> list[int]:
    """Return the number of each tensor, as `read_rows` uses it."""
    sites = program.tensor_sites.tolist()
    order: dict[int, int] = {}
    made: dict[int, int] = {}
    found = []
    for site in sites:
        order.setdefault(site, len(order))
        made[site] = made.get(site, -1) + 1
        found.append(order[site] * len(sites) + made[site])
    return found


class _RowReader:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._fixed = frozenset({*program.inputs, *program.outputs, *held_constants(program)})
        self._classes = [_class_of(site) for site in program.sites]
        self._numbers = number_tiles(program)
        self._keys: dict[Hashable, RowKey] = {}
        self._flat = frozenset(self._reshaped_tensors())
        self._implied = frozenset(_sites_with_implied_accumulation(program))

    def read(self) -> list[InstructionRow]:
        """Return the rows in program order."""
        program = self._program
        first = program.cells.first.tolist()
        tensors, offsets = program.tensors.tolist(), program.offsets.tolist()
        forms, lines = program.form_ids.tolist(), program.lines.tolist()
        found = []
        for number, form_id in enumerate(forms):
            span = slice(first[number], first[number + 1])
            key, numbers = self._read_row(form_id, tensors[span], offsets[span])
            found.append(InstructionRow(key, numbers, lines[number]))
        return found

    def _reshaped_tensors(self) -> Iterator[int]:
        """Tensors with an access that is no window along their declared dimensions."""
        program, cells = self._program, self._program.cells
        pairs = set(zip(cells.tensor.tolist(), cells.operand.tolist(), strict=True))
        for tensor, operand in pairs:
            item, home = program.operands[operand], self._class(tensor)
            if item.buffer != "register" and match_dimensions(home, item.dims) is None:
                yield tensor

    def _class(self, tensor: int) -> TileClass:
        return self._classes[int(self._program.tensor_sites[tensor])]

    def _read_row(
        self, form_id: int, tensors: Sequence[int], offsets: Sequence[int]
    ) -> tuple[RowKey, tuple[int, ...]]:
        form = self._program.forms[form_id]
        fixed = tuple(tensor if tensor in self._fixed else None for tensor in tensors)
        homes = tuple(int(self._program.tensor_sites[tensor]) for tensor in tensors)
        flat = tuple(tensor in self._flat for tensor in tensors)
        signature = form_id, fixed, homes, flat
        key = self._keys.get(signature)
        if key is None:
            made = self._make_key(form, fixed=fixed, homes=homes, flat=flat)
            # Forms that differ only in where they begin have equal keys; one object makes comparing cheap.
            key = self._keys[signature] = self._keys.setdefault(made, made)
        numbers: list[int] = []
        for item, tensor, offset in zip(form.operands, tensors, offsets, strict=True):
            if item.buffer == "register":
                continue
            if tensor not in self._fixed:
                numbers.append(self._numbers[tensor])
            home = self._class(tensor)
            numbers += [offset] if tensor in self._flat else locate(home, offset)
        counted = dict(form.params)
        return key, (*numbers, *(int(counted[name]) for name in key.counted))  # type: ignore[arg-type]

    def _make_key(
        self,
        form: Form,
        *,
        fixed: tuple[int | None, ...],
        homes: tuple[int, ...],
        flat: tuple[bool, ...],
    ) -> RowKey:
        kinds = OPERATORS[form.op].arguments_by_name
        counted = tuple(name for name, _ in form.params if kinds[name].kind == "int")
        params = tuple(
            (name, Parameter(value, repr(value)))
            for name, value in form.params
            if name not in counted and not (name == "accumulate" and homes[0] in self._implied)
        )
        operands = tuple(
            RowOperand(
                item.role, item.dims, item.dtype, self._classes[home], tensor, is_flat, item.index_step
            )
            for item, home, tensor, is_flat in zip(form.operands, homes, fixed, flat, strict=True)
            if item.buffer != "register"
        )
        return RowKey(form.op, form.engine, params, operands, counted)


def _sites_with_implied_accumulation(program: Program) -> set[int]:
    """The declarations whose tiles accumulate products exactly where the language would by itself."""
    first, tensors, offsets = (
        column.tolist() for column in (program.cells.first, program.tensors, program.offsets)
    )
    started: dict[int, int] = {}
    sites, explicit = set[int](), set[int]()
    for number, form_id in enumerate(program.form_ids.tolist()):
        form = program.forms[form_id]
        if form.op != "nc_matmul":
            continue
        tensor = tensors[first[number]]
        region = _element_bits(form.operands[0]) << offsets[first[number]]
        covered = started.get(tensor, 0) & region
        started[tensor] = started.get(tensor, 0) | region
        site = int(program.tensor_sites[tensor])
        sites.add(site)
        if covered not in {0, region} or bool(form.param("accumulate")) is not (covered != 0):
            explicit.add(site)
    return sites - explicit


@lru_cache(maxsize=256)
def _element_bits(operand: Operand) -> int:
    """A bit for each element of an access, counted from its first."""
    made = 1
    for step, count in operand.dims:
        made = _repeat_bits(made, step, count)
    return made


def _repeat_bits(bits: int, step: int, count: int) -> int:
    if step < 0:
        raise NotRaised("a product that is written backwards")
    have, made = 1, bits
    while have < count:
        more = min(have, count - have)
        made |= made << step * more
        have += more
    return made


def _class_of(site: Site) -> TileClass:
    return TileClass(site.shape, site.dtype, site.buffer, site.address)


def locate(home: TileClass, offset: int) -> list[int]:
    """Return an offset as an index along each declared dimension."""
    return [offset // stride % size for stride, size in zip(home.strides, home.shape, strict=True)]


@lru_cache(maxsize=4096)
def match_dimensions(home: TileClass, dims: Dims) -> tuple[int | None, ...] | None:
    """For each declared dimension, which pair of a pattern walks it; None for one that is indexed.

    The result is None if the pattern is no window: if it mixes dimensions, goes backwards or leaves its row.
    """
    strides = home.strides

    def match(axis: int, pair: int) -> tuple[int | None, ...] | None:
        if axis == len(strides):
            return () if pair == len(dims) else None
        if pair < len(dims) and _walks(dims[pair], strides[axis], home.shape[axis]):
            rest = match(axis + 1, pair + 1)
            if rest is not None:
                return (pair, *rest)
        if axis == 0 and home.on_chip:
            return None
        rest = match(axis + 1, pair)
        return None if rest is None else (None, *rest)

    return match(0, 0)


def _walks(pair: tuple[int, int], stride: int, size: int) -> bool:
    step, count = pair
    if step == 0:
        return count > 1  # a broadcast of one index
    if count == 1:
        return step == stride
    return step > 0 and step % stride == 0 and step // stride * (count - 1) < size
