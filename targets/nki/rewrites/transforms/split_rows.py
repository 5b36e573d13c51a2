"""Splitting by rows: a tile that instructions use in parts of its partitions becomes a tile for each part.

People load both halves of rotated rows into one tile and compute with each half. Instructions take operands
on the same partitions only, so one half is copied first. Tiles that begin at partition 0 need no copy, and
`stack` can put them beside those of the next iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substitute_names
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.kernel_ir import Access, Kernel, Node, Statement
from targets.nki.rewrites.partitions import partition_window
from targets.nki.rewrites.slices import parse_windows
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Affine, Tensor, TensorView

MAX_PARTS = 4
"""Most tiles that one becomes; the parts of more are too small to be worth a transfer each."""


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows first to stop - 1 of a tile, and the name of their own tile."""

    first: int
    stop: int
    name: str


@dataclass(frozen=True, slots=True)
class RowSplit:
    """The declaration of a tile, and the parts of it that are used, in order."""

    declared: Statement
    parts: tuple[RowPart, ...]

    @property
    def tensor(self) -> Tensor:
        assert self.declared.tensor is not None
        return self.declared.tensor

    def find_part(self, access: Access) -> RowPart | None:
        """The part that an operand uses; None for the whole tile."""
        rows = access.view.box[0]
        return next((one for one in self.parts if one.first == rows.start.const and _is_part(access)), None)


class SplitRows(Transform[str]):
    """Gives each part of a tile's rows a tile of its own, in all tiles where that is possible.

    It is one rewrite, because `stack` wants all tiles of a loop to have equally many partitions.
    """

    id: ClassVar[str] = "split_rows"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "every instruction uses one part, and transfers of the whole move part after part"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, str]:
        del target
        return {"all tiles": "all tiles"} if next(_list_parted_tiles(kernel), None) is not None else {}

    def list_choices(self, kernel: Kernel, target: Target, place: str) -> tuple[Choice, ...]:
        del target, place
        _plan_splits(kernel)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: str, choice: Choice) -> str:
        del target, place, choice
        splits = {one.tensor.id: one for one in _plan_splits(kernel)}

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if not isinstance(node, Statement):
                return None
            if node.tensor is not None and node.tensor.id in splits:
                return list(_declare_parts(kernel, splits[node.tensor.id]))
            mine = [access for access in node.accesses if access.tensor.id in splits]
            whole = next((one for one in mine if splits[one.tensor.id].find_part(one) is None), None)
            if whole is not None:
                return list(_move_parts(kernel, splits[whole.tensor.id], node))
            return [_use_parts(splits, node, mine)] if mine else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _list_parted_tiles(kernel: Kernel) -> Iterator[Statement]:
    """The declarations of tiles of which an instruction takes some rows."""
    for item in kernel.declarations.values():
        if item.tensor is not None and any(_is_part(access) for _, access in kernel.uses_of(item.tensor)):
            yield item


def _plan_splits(kernel: Kernel) -> list[RowSplit]:
    """The splits that are possible.

    Raises:
        RewriteRefused: there are none; the message says why for the first tile.
    """
    made, taken = list[RowSplit](), set(kernel.identifiers)
    refusals = list[RewriteRefused]()
    for item in _list_parted_tiles(kernel):
        try:
            made.append(_plan_split(kernel, item, taken))
        except RewriteRefused as refusal:
            refusals.append(refusal)
    if not made:
        raise refusals[0] if refusals else RewriteRefused("no instruction takes some rows of a tile")
    return made


def _is_part(access: Access) -> bool:
    """Whether an operand is some of a tile's rows, the same in every iteration."""
    rows = access.view.box[0]
    whole = (rows.start, rows.size) == (Affine(0), access.tensor.shape[0])
    return access.tensor.buffer == "sbuf" and rows.start.is_const and rows.step == 1 and not whole


def _plan_split(kernel: Kernel, declared: Statement, taken: set[str]) -> RowSplit:
    tensor = declared.tensor
    assert tensor is not None
    name = tensor.name
    if tensor.copies or tensor.id in kernel.escaping_ids or kernel.binding_counts[name] != 1:
        raise RewriteRefused(f"{name} is a list of tiles, or has a second name")
    windows, moved = set[tuple[int, int]](), False
    for item, access in kernel.uses_of(tensor):
        if _is_part(access):
            _check_part(item, access)
            rows = access.view.box[0]
            windows.add((rows.start.const, rows.start.const + rows.size))
        else:
            _check_transfer(kernel, item, access)
            moved = True
    bounds = sorted({0, tensor.shape[0], *(bound for window in windows for bound in window)})
    parts = list(pairwise(bounds))
    if not windows <= set(parts) or not 1 < len(parts) <= MAX_PARTS:
        raise RewriteRefused(f"the parts of {name} overlap, or are more than {MAX_PARTS}")
    used = parts if moved else sorted(windows)  # rows that nothing uses, as of a masked tile, are left out
    return RowSplit(declared, tuple(_name_parts(name, used, taken)))


def _name_parts(name: str, parts: list[tuple[int, int]], taken: set[str]) -> Iterator[RowPart]:
    for first, stop in parts:
        made, count = f"{name}_{first}", 2
        while made in taken:
            made, count = f"{name}_{first}_{count}", count + 1
        taken.add(made)
        yield RowPart(first, stop, made)


def _check_part(item: Statement, access: Access) -> None:
    text = syntax.parse_expression(item.texts.get(access.role, "0"))
    named = isinstance(text, cst.Subscript) and isinstance(text.value, cst.Name)
    if not named or not access.view.plain or access.view.within:
        raise RewriteRefused(f"{access.role} of {item.op} takes {access.tensor.name} rearranged")


def _check_transfer(kernel: Kernel, item: Statement, access: Access) -> None:
    """Check that a transfer moves the whole tile, and between which rows of which array is plain to see."""
    other = next((one for one in item.accesses if one is not access), None)
    if item.op != "dma_copy" or other is None or other.tensor.is_on_chip:
        raise RewriteRefused(f"{item.op} takes all of {access.tensor.name}")
    plain = access.view.is_whole and access.view.plain and other.view.plain
    if not plain or access.view.shape != other.view.shape:
        raise RewriteRefused(f"a transfer rearranges {access.tensor.name}")
    _find_row_window(kernel, item, other)


def _find_row_window(kernel: Kernel, item: Statement, other: Access) -> tuple[list[str], int, str]:
    """The windows of the array of a transfer, which of them walks the tile's rows, and where it begins."""
    text = item.texts[other.role]
    if text == other.tensor.name:
        return [":"] * len(other.tensor.shape), 0, "0"
    windows = parse_windows(kernel, text, len(other.tensor.shape))
    rows = next(number for number, one in enumerate(windows) if one.kept)
    if _row_step(other.view) != 1:
        raise RewriteRefused(f"a transfer of {other.tensor.name} skips rows")
    return [one.text for one in windows], rows, windows[rows].lower


def _row_step(view: TensorView) -> int:
    source = view.axes[0].source
    return 0 if source is None else view.box[source].step


def _declare_parts(kernel: Kernel, split: RowSplit) -> Iterator[cst.BaseStatement]:
    _, *rest = shape_texts(kernel, split.declared)
    texts = split.declared.texts
    words = ", ".join(f"{key}={texts[key]}" for key in ("dtype", "buffer") if key in texts)
    for number, part in enumerate(split.parts):
        shape = f"({', '.join([str(part.stop - part.first), *rest])}{'' if rest else ','})"
        made = syntax.parse_statement(f"{part.name} = {kernel.nl}.ndarray({shape}, {words})")
        lines = [] if number else syntax.leading_lines(split.declared.node)
        yield syntax.with_leading_lines(made, lines)


def _move_parts(kernel: Kernel, split: RowSplit, item: Statement) -> Iterator[cst.BaseStatement]:
    """A transfer of each part."""
    tile = next(access for access in item.accesses if access.tensor.id == split.tensor.id)
    other = next(access for access in item.accesses if access is not tile)
    windows, rows, lower = _find_row_window(kernel, item, other)
    for number, part in enumerate(split.parts):
        ends = [substitute_names(f"low + {end}", {"low": lower}) for end in (part.first, part.stop)]
        window = cst.Module([]).code_for_node(partition_window(*ends))
        places = [window if place == rows else text for place, text in enumerate(windows)]
        changes: dict[str, str | None] = {
            tile.role: part.name,
            other.role: f"{other.tensor.name}[{', '.join(places)}]",
        }
        made = syntax.replace_arguments(item.node, changes)
        yield syntax.with_leading_lines(made, []) if number else made


def _use_parts(splits: Mapping[int, RowSplit], item: Statement, mine: list[Access]) -> cst.BaseStatement:
    changes: dict[str, str | None] = {}
    for access in mine:
        part = splits[access.tensor.id].find_part(access)
        text = syntax.parse_expression(item.texts[access.role])
        assert part is not None
        assert isinstance(text, cst.Subscript)
        rest = [syntax.code_of(element.slice) for element in text.slice[1:]]
        whole = all(place == ":" for place in rest)
        changes[access.role] = part.name if whole else f"{part.name}[{', '.join([':', *rest])}]"
    return syntax.replace_arguments(item.node, changes)
