"""Cutting columns: the body of a loop that computes with whole rows goes through pieces of their columns.

Tiles of whole rows are so large that few of them fit on chip, and that nothing overlaps: the next row waits
for the room of this one. Tiles of pieces are small, so transfers and engines work on several at once, and
sums over them fit in PSUM. A scan along the row goes on in each piece from where the one before ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.elementwise import has_plain_arguments
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind, walk_nodes
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Affine, Tensor

MIN_COLUMNS, MAX_COLUMNS = 512, 2048
"""Columns of a piece: less does not fill an instruction, and more leaves little room."""
MAX_CHOICES = 3

_SCAN = "tensor_tensor_scan"
_SCAN_ARGUMENTS = frozenset({"dst", "data0", "data1", "initial", "op0", "op1", "name"})
_TRANSFER_ARGUMENTS = frozenset({"dst", "src", "dge_mode", "name"})
_FILL_ARGUMENTS = frozenset({"dst", "value", "engine", "name"})
_COLUMN_WISE = {_SCAN: _SCAN_ARGUMENTS, "dma_copy": _TRANSFER_ARGUMENTS, "memset": _FILL_ARGUMENTS}
"""Instructions besides the elementwise ones, and the arguments that they may have."""


class CutColumns(Transform[Loop]):
    """Goes through the columns of whole rows in pieces."""

    id: ClassVar[str] = "cut_columns"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = "columns do not depend on each other, but for scans, which carry their state on"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Loop]:
        del target
        return {
            kernel.unique_label(loop): loop
            for loop in kernel.loops
            if any(_is_wide_tile(item.tensor) for item in loop.body if isinstance(item, Statement))
        }

    def list_choices(self, kernel: Kernel, target: Target, place: Loop) -> tuple[Choice, ...]:
        del target
        width = _plan_cut(kernel, place).width
        fitting = [size for size in range(MIN_COLUMNS, MAX_COLUMNS + 1, 32) if width % size == 0]
        fitting = [size for size in fitting if size < width]
        if not fitting:
            raise RewriteRefused(f"{width} columns have no equal pieces of {MIN_COLUMNS} to {MAX_COLUMNS}")
        fitting.sort(key=lambda size: (size % MIN_COLUMNS != 0, -size))
        return tuple({"columns": size} for size in fitting[:MAX_CHOICES])

    def apply(self, kernel: Kernel, target: Target, place: Loop, choice: Choice) -> str:
        del target
        plan = _plan_cut(kernel, place)
        columns = int(choice["columns"])
        if plan.width % columns:
            raise RewriteRefused(f"{plan.width} columns have no equal pieces of {columns}")
        return _PieceWriter(kernel, plan, columns).write_module()


@dataclass(frozen=True, slots=True)
class _Cut:
    """A loop whose body is cut: the columns of its rows, its tiles of whole rows by id, and its scans."""

    loop: Loop
    width: int
    tiles: Mapping[int, Tensor]
    scans: tuple[Statement, ...]

    def is_wide(self, access: Access) -> bool:
        """Whether an operand has all columns."""
        if access.tensor.id in self.tiles:
            return True
        view = access.view
        return not access.tensor.is_on_chip and access.tensor.shape[-1] == view.shape[-1] == self.width


def _is_wide_tile(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_on_chip and tensor.shape[-1] > MIN_COLUMNS


def _plan_cut(kernel: Kernel, loop: Loop) -> _Cut:
    """Plan to cut the columns of a loop's body.

    Raises:
        RewriteRefused: columns depend on each other there, or rows are used in part.
    """
    nodes = list(walk_nodes(loop.body))
    if any(not isinstance(node, Statement | Loop) for node in nodes):
        raise RewriteRefused(f"the loop over {loop.var} holds a condition")
    statements = [node for node in nodes if isinstance(node, Statement)]
    strange = [item for item in statements if item.kind not in {StatementKind.DECLARE, StatementKind.OPERATE}]
    if strange:
        raise RewriteRefused(f"the loop over {loop.var} holds more than tiles and instructions")
    declared = [item.tensor for item in statements if item.tensor is not None]
    width = max((one.shape[-1] for one in declared if _is_wide_tile(one)), default=0)
    tiles = {one.id: one for one in declared if one.is_on_chip and one.shape[-1] == width}
    cut = _Cut(loop, width, tiles, tuple(item for item in statements if item.op == _SCAN))
    for tensor in tiles.values():
        _check_tile(kernel, tensor)
    own = {one.id for one in declared}
    for item in statements:
        if item.kind is StatementKind.OPERATE:
            _check_instruction(cut, item, own)
    _check_transfers(statements)
    for item in cut.scans:
        _check_scan(cut, item)
    return cut


def _check_tile(kernel: Kernel, tensor: Tensor) -> None:
    if tensor.copies or len(tensor.shape) != len(("partitions", "columns")):
        raise RewriteRefused(f"{tensor.name} is a list, or has more dimensions than rows and columns")
    if tensor.id in kernel.escaping_ids or kernel.binding_counts[tensor.name] != 1:
        raise RewriteRefused(f"{tensor.name} has a second name, or its name a second tile")


def _check_instruction(cut: _Cut, item: Statement, own: set[int]) -> None:
    """Check that an instruction computes each column from the same column, or has nothing to do with them."""
    wide = [access for access in item.accesses if cut.is_wide(access)]
    written = [access for access in item.accesses if access.writes]
    if not wide:
        if any(access.tensor.id not in own for access in written):
            raise RewriteRefused(f"{item.op} writes {written[0].tensor.name}, which outlives an iteration")
        return
    allowed = _COLUMN_WISE.get(item.op)
    if not (has_plain_arguments(item) if allowed is None else item.texts.keys() <= allowed):
        raise RewriteRefused(f"{item.op} to {written[0].tensor.name} does not compute column by column")
    for access in item.accesses:
        view = access.view
        if access not in wide:
            if access.writes or view.shape[-1] != 1:
                raise RewriteRefused(f"{item.op} uses {access.tensor.name}, which has other columns")
            continue
        last = view.box[-1]
        full = (last.start, last.size, last.step) == (Affine(0), cut.width, 1)
        if not full or view.axes[-1].source != len(access.tensor.shape) - 1:
            raise RewriteRefused(f"{item.op} uses a part of the columns of {access.tensor.name}")


def _check_transfers(statements: list[Statement]) -> None:
    """Check that nothing is loaded that the loop stores: pieces are stored before others are loaded."""
    accesses = [access for item in statements for access in item.accesses if not access.tensor.is_on_chip]
    stored = {access.tensor.id for access in accesses if access.writes}
    again = next((one for one in accesses if not one.writes and one.tensor.id in stored), None)
    if again is not None:
        raise RewriteRefused(f"{again.tensor.name} is stored and loaded in one iteration")


def _check_scan(cut: _Cut, item: Statement) -> None:
    dst = item.find_access("dst")
    if dst is None or dst.tensor.id not in cut.tiles or dst.tensor.dtype != "float32":
        raise RewriteRefused("a scan does not leave its state in a tile of float32")
    if not isinstance(item.arguments.get("initial"), float | Affine):
        raise RewriteRefused("a scan goes on from a state that is not a number")
    for loop in _inner_loops(cut, item):
        if loop.start != Affine(0) or loop.step != 1:
            raise RewriteRefused(f"the loop over {loop.var} around a scan does not count 0, 1, ...")


def _inner_loops(cut: _Cut, item: Statement) -> tuple[Loop, ...]:
    """The loops between the body that is cut and an instruction."""
    return item.path[len(cut.loop.path) + 1 :]


class _PieceWriter:
    """Writes a kernel in which a loop's body goes through its columns piece by piece."""

    def __init__(self, kernel: Kernel, cut: _Cut, columns: int) -> None:
        self._kernel = kernel
        self._cut = cut
        self._columns = columns
        piece = kernel.fresh_name("piece")
        self._piece = piece
        self._window = f"{piece} * {columns} : ({piece} + 1) * {columns}"
        self._states: dict[Statement, str] = {}
        for item in cut.scans:
            self._states[item] = self._fresh_state(item)

    def _fresh_state(self, item: Statement) -> str:
        dst = item.find_access("dst")
        assert dst is not None
        base, count = f"{dst.tensor.name}_last", 2
        name = self._kernel.fresh_name(base)
        while name in self._states.values():
            name, count = self._kernel.fresh_name(f"{base}_{count}"), count + 1
        return name

    def write_module(self) -> str:
        """The module with the loop's body cut."""
        kernel, loop = self._kernel, self._cut.loop
        kind = "sequential_range" if self._states else "affine_range"
        pieces = f"{kernel.nl}.{kind}({self._cut.width // self._columns})"

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node is loop:
                inner = syntax.make_loop(self._piece, pieces, syntax.rebuild_block(loop.body, emit))
                return [syntax.replace_body(loop.node, [*self._begin_states(), inner])]
            return self._write_statement(node) if isinstance(node, Statement) and loop in node.path else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))

    def _begin_states(self) -> Iterator[cst.BaseStatement]:
        """What declares and fills the states that scans carry from piece to piece."""
        kernel = self._kernel
        for item, name in self._states.items():
            dst = item.find_access("dst")
            assert dst is not None
            count = prod(loop.trips for loop in _inner_loops(self._cut, item))
            shape = f"({dst.tensor.shape[0]}, {count})"
            words = f"dtype={kernel.nl}.float32, buffer={kernel.nl}.sbuf"
            yield syntax.parse_statement(f"{name} = {kernel.nl}.ndarray({shape}, {words})")
            fill = {"dst": name, "value": item.texts["initial"]}
            yield syntax.make_call(f"{kernel.nisa}.memset", fill)

    def _write_statement(self, item: Statement) -> list[cst.BaseStatement] | None:
        if item.tensor is not None:
            return [self._declare_piece(item)] if item.tensor.id in self._cut.tiles else None
        changes: dict[str, str | None] = {
            access.role: self._cut_text(syntax.parse_expression(item.texts[access.role]), access)
            for access in item.accesses
            if self._cut.is_wide(access)
        }
        if item not in self._states:
            return [syntax.replace_arguments(item.node, changes)] if changes else None
        state = self._state_text(item)
        changed = syntax.replace_arguments(item.node, changes | {"initial": state})
        dst = item.find_access("dst")
        assert dst is not None
        last = f"{dst.tensor.name}[:, {self._columns - 1} : {self._columns}]"
        return [changed, syntax.make_call(f"{self._kernel.nisa}.tensor_copy", {"dst": state, "src": last})]

    def _state_text(self, item: Statement) -> str:
        """The column of the state tile that a scan has in these iterations."""
        place = ""
        for loop in _inner_loops(self._cut, item):
            place = f"({place}) * {loop.trips} + {loop.var}" if place else loop.var
        name = self._states[item]
        return f"{name}[:, {place} : {place} + 1]" if place else name

    def _declare_piece(self, item: Statement) -> cst.BaseStatement:
        rows, _ = shape_texts(self._kernel, item)
        texts = item.texts
        words = ", ".join(f"{key}={texts[key]}" for key in ("dtype", "buffer") if key in texts)
        assert item.tensor is not None
        made = f"{item.tensor.name} = {self._kernel.nl}.ndarray(({rows}, {self._columns}), {words})"
        return syntax.with_leading_lines(syntax.parse_statement(made), syntax.leading_lines(item.node))

    def _cut_text(self, node: cst.BaseExpression, access: Access) -> str:
        """The source of an operand with the columns of a piece only.

        Raises:
            RewriteRefused: its columns are not written in a form that can be cut.
        """
        code, rank = self._kernel.module.code_for_node, len(access.tensor.shape)
        window = ":" if access.tensor.is_on_chip else self._window
        if isinstance(node, cst.Name):
            parts = [":"] * (rank - 1)
            return node.value if access.tensor.is_on_chip else f"{node.value}[{', '.join([*parts, window])}]"
        if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name) and len(node.slice) <= rank:
            given = [code(part.slice) for part in node.slice][: rank - 1]
            parts = [*given, *[":"] * (rank - 1 - len(given))]
            return f"{node.value.value}[{', '.join([*parts, window])}]"
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            words = ", ".join(code(part.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for part in node.args)
            if node.func.attr.value == "broadcast":
                return f"{self._cut_text(node.func.value, access)}.broadcast({words})"
        raise RewriteRefused(f"the columns of {code(node)} are not indexed plainly")
