"""Detects precision below the problem's: inputs that reach an output only through coarse types.

A kernel may hold an input as a sum of narrow parts, each the remainder of the ones before. A part counts if a
narrow copy of a value is subtracted from that very value and the remainder reaches the same output; other
subtractions of a narrow number from a wide one prove nothing. The numeric stage decides whether the parts are
accurate enough. Paths on which an input is multiplied by almost zero do not count. Nor is one wide path
enough where an input goes through many products: most of them must have it wide, or in parts. Products of all
parts add up to one number, and further products of it count neither way. Moves without a cast keep bits,
whatever type they call them.

Where a problem allows MX, its products lose nothing by definition: whatever reaches their operands counts as
whole after them. Scales are powers of two and hold nothing of a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, pairwise, takewhile

from nki_sim.flow.graph import DataFlow, trace_data_flow
from nki_sim.flow.provenance import SIGNIFICANT_BITS
from nki_sim.forms import PRODUCTS, Form, Operand
from nki_sim.operators.rules.shapes import SCALE_ROLES
from nki_sim.program.ir import Program
from nki_sim.timing.traffic import form_flops, is_transpose

TypeRank = tuple[int, str]
"""Significant bits of a data type, and its name."""

InputPart = tuple[int, int]
"""An input's tensor, and the number of one of its parts: 0 holds its leading bits."""

PrecisionWays = dict[InputPart, TypeRank]
"""For each part that reaches a place, the coarsest type on the best of its paths there."""

_FLOATS = frozenset(name for name in SIGNIFICANT_BITS if "float" in name)
_MOVES = frozenset({"dma_copy", "tensor_copy", "dma_transpose", "nc_transpose"})
_FACTORS = ("scale", "operand0", "operand1")
_NEGLIGIBLE_FACTOR = 2.0**-20
_ENOUGH_BITS_RATIO = 2 / 3
"""The share of the required bits that the parts must have together; then the numeric stage decides."""

_WHOLE: TypeRank = (SIGNIFICANT_BITS["float32"], "float32")

_MAX_COPIES = 16

_MAX_NARROW_SHARE = 1 / 8
"""The share of an input's products that may have it in narrow parts without their remainders."""

_NARROW_PER_REMAINDER = 2
"""Products of a leading part for one of its remainder: by both parts of the other operand."""


def find_lost_precision(program: Program, *, mx: bool = False) -> tuple[str, int] | None:
    """Return the first input that reaches an output in less precision than both have, and its line.

    None if there is none. With `mx`, products of MX operands are allowed.
    """
    floats = {item.dtype for form in program.forms for item in form.operands} & _FLOATS
    if len(floats) < 2:  # with one type nothing is coarser than the arguments
        return None
    traced = trace_data_flow(program)
    flow = _PrecisionFlow(program, traced, mx=mx)
    followed = flow.follow_inputs()
    for output, cells in traced.finals.items():
        for cell in cells:
            for number, way in _coarse_inputs(program, output, followed.get(cell, {})):
                text = f"input {program.site(number).name} reaches {program.site(output).name} only as {way}"
                return text, int(program.lines[program.cells.instruction[cell]])
    return _find_narrow_products(program, flow)


@dataclass
class _ProductShares:
    """FLOPs of the products that an input goes through: wide enough, narrow, and as remainders.

    `line` and `dtype` are those of a narrow one.
    """

    wide: int = 0
    narrow: int = 0
    remainders: int = 0
    line: int = 0
    dtype: str = ""

    @property
    def narrow_share(self) -> float:
        """The share of products that have the input narrow, and nothing of what rounding left over."""
        alone = self.narrow - _NARROW_PER_REMAINDER * self.remainders
        return max(0, alone) / (self.wide + self.narrow) if self.narrow else 0.0


def _find_narrow_products(program: Program, flow: _PrecisionFlow) -> tuple[str, int] | None:
    """Return the first input that too many products have narrow, and the line of one; None if none is."""
    due = min(SIGNIFICANT_BITS[program.site(output).dtype] for output in program.outputs)
    shares: dict[int, _ProductShares] = {}
    for number in range(len(program)):
        form = program.forms[program.form_ids[number]]
        if form.op in PRODUCTS and not is_transpose(form) and not flow.is_allowed(form):
            _add_product(program, flow, number, due=due, shares=shares)
    for tensor, found in sorted(shares.items()):
        if found.narrow_share > _MAX_NARROW_SHARE:
            text = f"{100 * found.narrow_share:.0f} % of the products have input {program.site(tensor).name}"
            return f"{text} only as {found.dtype}", found.line
    return None


def _add_product(
    program: Program, flow: _PrecisionFlow, number: int, *, due: int, shares: dict[int, _ProductShares]
) -> None:
    """Count one product for every input that reaches its operands."""
    form = program.forms[program.form_ids[number]]
    for tensor, ways in flow.operand_ways(number):
        if program.site(tensor).dtype not in _FLOATS:
            continue
        found = shares.setdefault(tensor, _ProductShares())
        bits, name = ways.get(0, (0, ""))
        enough = _ENOUGH_BITS_RATIO * min(due, SIGNIFICANT_BITS[program.site(tensor).dtype])
        if not name:
            found.remainders += form_flops(form)
        elif bits >= enough:
            found.wide += form_flops(form)
        elif _sum_bits(ways) < enough:  # else products of its parts came before, and were counted
            found.narrow += form_flops(form)
            found.line, found.dtype = int(program.lines[number]), name


def _coarse_inputs(program: Program, output: int, ways: PrecisionWays) -> Iterator[tuple[int, str]]:
    """Inputs that reach an output in a coarser type than required, and that type."""
    for number, parts in sorted(_group_parts(ways).items()):
        bits, name = parts.get(0, _WHOLE)
        due = min(SIGNIFICANT_BITS[program.site(number).dtype], SIGNIFICANT_BITS[program.site(output).dtype])
        if name in _FLOATS and bits < due and _sum_bits(parts) < _ENOUGH_BITS_RATIO * due:
            yield number, name


def _group_parts(ways: PrecisionWays) -> dict[int, dict[int, TypeRank]]:
    """The parts of each input, by the input's tensor."""
    found: dict[int, dict[int, TypeRank]] = {}
    for (tensor, part), rank in ways.items():
        found.setdefault(tensor, {})[part] = rank
    return found


def _sum_bits(parts: Mapping[int, TypeRank]) -> int:
    """The bits that parts hold together; a part counts if no part before it is missing."""
    return sum(parts[part][0] for part in takewhile(parts.__contains__, count()))


class _PrecisionFlow:
    """Passes over a program; stores the paths to each written cell."""

    def __init__(self, program: Program, traced: DataFlow, *, mx: bool) -> None:
        self._program = program
        self._mx = mx
        self._flow = traced
        self._ranks: list[TypeRank] = [
            (SIGNIFICANT_BITS[item.dtype], item.dtype) for item in program.operands
        ]
        self._inputs = frozenset(program.inputs)
        self._ways: dict[int, PrecisionWays] = {}

    def is_allowed(self, form: Form) -> bool:
        """Whether the problem lets a product round its operands."""
        return self._mx and form.op == "nc_matmul_mx"

    def follow_inputs(self) -> dict[int, PrecisionWays]:
        # In data-dependent loops values also flow backward: repeat until nothing changes.
        while self._run_pass() and self._program.loop_partners:
            pass
        return self._ways

    def operand_ways(self, number: int) -> Iterator[tuple[int, dict[int, TypeRank]]]:
        """The inputs that reach each operand of a product, with the paths of their parts."""
        cells, operands = self._program.cells, self._program.operands
        for cell in range(cells.first[number], cells.first[number + 1]):
            if cells.reads[cell] and not cells.writes[cell] and not _is_scale(operands[cells.operand[cell]]):
                yield from _group_parts(self._ways_at(cell)).items()

    def _run_pass(self) -> bool:
        cells, grown = self._program.cells, False
        reads, writes = cells.reads.tolist(), cells.writes.tolist()
        for number, (start, end) in enumerate(pairwise(cells.first.tolist())):
            form = self._program.forms[self._program.form_ids[number]]
            moved = _keeps_bits(form)
            here = self._gather_ways(form, [cell for cell in range(start, end) if reads[cell]], moved=moved)
            for cell in range(start, end):
                if writes[cell]:
                    rank = self._ranks[cells.operand[cell]]
                    narrowed = {part: way if moved else min(way, rank) for part, way in here.items()}
                    grown |= self._ways.get(cell) != narrowed
                    self._ways[cell] = narrowed
        return grown

    def _gather_ways(self, form: Form, read: list[int], *, moved: bool) -> PrecisionWays:
        if _scales_to_nothing(form):
            return {}
        wide = self._find_minuend(form, read)
        if wide is not None:
            return {(number, part + 1): rank for (number, part), rank in self._ways_at(wide).items()}
        here: PrecisionWays = {}
        allowed = self.is_allowed(form)
        for cell in read:
            item = self._program.operands[self._program.cells.operand[cell]]
            if _is_scale(item):
                continue
            for part, way in self._ways_at(cell, moved=moved).items():
                kept = _WHOLE if allowed and item.role != "dst" else way
                here[part] = max(here.get(part, kept), kept)
        return here

    def _ways_at(self, cell: int, *, moved: bool = False) -> PrecisionWays:
        """The paths to the value that a cell reads, as the number that it reads; to its bits if `moved`."""
        cells = self._program.cells
        tensor = int(cells.tensor[cell])
        name = self._program.site(tensor).dtype
        rank = (SIGNIFICANT_BITS[name], name) if moved else self._ranks[cells.operand[cell]]
        found: PrecisionWays = {(tensor, 0): rank} if tensor in self._inputs else {}
        for writer in self._flow.sources(cell):
            for part, way in self._ways.get(writer, {}).items():
                here = min(way, rank)
                found[part] = max(found.get(part, here), here)
        return found

    def _find_minuend(self, form: Form, read: list[int]) -> int | None:
        """The wide operand of an instruction that subtracts its narrow copy from it."""
        operands, operand = self._program.operands, self._program.cells.operand
        floats = [
            cell
            for cell in read
            if operands[operand[cell]].role != "dst" and operands[operand[cell]].dtype in _FLOATS
        ]
        widths = {self._ranks[operand[cell]][0] for cell in floats}
        if len(floats) != 2 or len(widths) != 2 or not _is_subtraction(form):
            return None
        narrow, wide = sorted(floats, key=lambda cell: self._ranks[operand[cell]][0])
        return wide if self._find_root_tensor(narrow) == self._find_root_tensor(wide) else None

    def _find_root_tensor(self, cell: int) -> int:
        """The tensor from which the value that a cell reads was copied, through any types."""
        for _ in range(_MAX_COPIES):
            writer = next(iter(self._flow.sources(cell)), None)
            source = None if writer is None else self._find_copied_cell(writer)
            if source is None:
                break
            cell = source
        return int(self._program.cells.tensor[cell])

    def _find_copied_cell(self, writer: int) -> int | None:
        """The cell that a cell's writer copies; None if the writer computes."""
        cells = self._program.cells
        number = int(cells.instruction[writer])
        form = self._program.forms[self._program.form_ids[number]]
        reads = [cell for cell in range(cells.first[number], cells.first[number + 1]) if cells.reads[cell]]
        return reads[0] if _is_copy(form) and len(reads) == 1 else None


def _keeps_bits(form: Form) -> bool:
    """Whether an instruction moves numbers without a cast."""
    return form.op in _MOVES and len({item.dtype for item in form.operands}) == 1


def _is_copy(form: Form) -> bool:
    plain = form.op == "activation" and form.param("op") == "copy" and form.param("scale") in {None, 1.0}
    return form.op in _MOVES or plain


def _is_subtraction(form: Form) -> bool:
    """Whether an instruction subtracts, or adds the negative."""
    names = {value for _, value in form.params if isinstance(value, str)}
    negative = any(form.param(name) == -1.0 for name in _FACTORS)
    return "subtract" in names or (negative and {"multiply", "add"} <= names)


def _scales_to_nothing(form: Form) -> bool:
    """Whether an instruction multiplies its only operand by a constant near zero."""
    if len([item for item in form.operands if _is_source(item)]) != 1:
        return False
    scale = form.param("scale")
    factors = [scale] if form.op == "activation" else []
    for op, factor in (("op0", "operand0"), ("op1", "operand1")):
        if form.param(op) == "multiply":
            factors.append(form.param(factor))
    return any(isinstance(factor, int | float) and abs(factor) < _NEGLIGIBLE_FACTOR for factor in factors)


def _is_scale(item: Operand) -> bool:
    """Whether an operand holds the scales of MX operands."""
    return item.role.rstrip("0123") in SCALE_ROLES


def _is_source(item: Operand) -> bool:
    return item.role.startswith(("data", "src"))
