"""Products of float32 in three passes of the tensor engine, not four: both operands in two bfloat16 parts.

A number's high part is the number in bfloat16, and its low part is the rest, in bfloat16 again: 16 bits in
all. High by high, high by low and low by high add up to the product. Each tile is split where it is written,
so that all products that read it share its parts. A tile that was transposed on its way is split after that.
If nothing else reads a tile, only its parts are kept: what is written piece by piece, as a list of tiles is,
gets a tile for each piece, and what is copied, as out of PSUM, is split where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.elementwise import has_plain_arguments
from targets.nki.rewrites.kernel_ir import Access, Kernel, Node, Statement, StatementKind
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, number_site
from targets.nki.rewrites.values import Affine, Tensor

ALL_PRODUCTS = "all products"
"""The site of all products that can be split, so that what they share is split once."""

_SIDES = ("stationary", "moving")
_ARGUMENTS = frozenset({"dst", *_SIDES, "accumulate", "name"})
_PARTS = (("high", "high"), ("high", "low"), ("low", "high"))
"""Of the stationary and the moving operand; low by low is less than what float32 itself rounds off."""

Products = tuple[Statement, ...]


class SplitProducts(Transform[Products]):
    """Replaces products of float32 by three products of bfloat16 parts."""

    id: ClassVar[str] = "split_products"
    counter: ClassVar[str] = "tensor_engine_active_time_percent"
    rounding: ClassVar[float] = 2.0**-16
    keeps: ClassVar[str] = "two bfloat16 parts hold 16 bits of a number, and their products add up in float32"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Products]:
        del target
        sums: dict[int, list[Statement]] = {}
        for item in kernel.operations():
            dst = item.find_access("dst")
            if dst is not None and _is_float32_product(item):
                sums.setdefault(dst.tensor.id, []).append(item)
        found: dict[str, Products] = {}
        for items in sums.values():
            dst = items[0].find_access("dst")
            assert dst is not None
            found[number_site(f"products to {dst.tensor.name}", found)] = tuple(items)
        everything = tuple(item for items in sums.values() for item in items)
        return {ALL_PRODUCTS: everything, **found} if len(found) > 1 else found

    def list_choices(self, kernel: Kernel, target: Target, place: Products) -> tuple[Choice, ...]:
        del target
        _plan_split(kernel, place)
        return ({"rounding": "scalar"}, {"rounding": "vector"})

    def apply(self, kernel: Kernel, target: Target, place: Products, choice: Choice) -> str:
        del target
        plan = _plan_split(kernel, place)
        return _SplitWriter(kernel, plan, str(choice["rounding"])).write_module()


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The products of a site, and by id the tiles that they read."""

    products: frozenset[Statement]
    tiles: Mapping[int, Tensor]


def _is_float32_product(item: Statement) -> bool:
    operands = [item.find_access(side) for side in _SIDES]
    return item.op == "nc_matmul" and all(
        access is not None and access.tensor.dtype == "float32" for access in operands
    )


def _plan_split(kernel: Kernel, place: Products) -> SplitPlan:
    """Plan the products of a site; of several sums, those that can be split.

    Raises:
        RewriteRefused: none of them can.
    """
    kept, tiles, reasons = list[Statement](), dict[int, Tensor](), list[RewriteRefused]()
    for item in place:
        try:
            found = _check_product(kernel, item)
        except RewriteRefused as refusal:
            reasons.append(refusal)
        else:
            kept.append(item)
            tiles |= {tensor.id: tensor for tensor in found}
    if not kept:
        raise reasons[0]
    return SplitPlan(frozenset(kept), tiles)


def _check_product(kernel: Kernel, item: Statement) -> list[Tensor]:
    """Return the tiles of a product, which can be split.

    Raises:
        RewriteRefused: the product has arguments that its parts would not have, or a tile cannot be split.
    """
    strange = sorted(item.texts.keys() - _ARGUMENTS)
    if strange:
        raise RewriteRefused(f"the product says {strange[0]}")
    dst = item.find_access("dst")
    if dst is None or dst.tensor.dtype != "float32" or dst.tensor.buffer != "psum":
        raise RewriteRefused("the product does not add up in float32")
    tiles = [access.tensor for side in _SIDES for access in [item.find_access(side)] if access]
    for tensor in tiles:
        _check_tile(kernel, tensor)
    return tiles


def _check_tile(kernel: Kernel, tensor: Tensor) -> None:
    declared = kernel.declarations.get(tensor.id)
    if declared is None or tensor.buffer != "sbuf":
        raise RewriteRefused(f"{tensor.name} is not declared here in SBUF")
    if tensor.id in kernel.escaping_ids or kernel.binding_counts[tensor.name] != 1:
        raise RewriteRefused(f"{tensor.name} has a second name, or its name a second tile")
    opaque = [item for item in kernel.statements if item.kind is StatementKind.OPAQUE]
    if any(tensor.name in item.uses for item in opaque):
        raise RewriteRefused(f"{tensor.name} is used by what cannot be read")
    if any(access.writes and not access.view.plain for _, access in kernel.uses_of(tensor)):
        raise RewriteRefused(f"{tensor.name} is written rearranged")


def _find_pieces(kernel: Kernel, plan: SplitPlan) -> frozenset[Statement]:
    """The statements that write tiles of which only the parts are read, and so need none of these tiles.

    A statement that writes all of a tile, and is no copy, has use for the tile itself, unless it is one of a
    list: all tiles of a list would live as long as it does.
    """
    found: set[Statement] = set()
    for tensor in plan.tiles.values():
        writers = [(item, access) for item, access in kernel.uses_of(tensor) if item not in plan.products]
        if all(one.writes and not one.reads and _is_piece(kernel, item, one) for item, one in writers):
            found |= {item for item, _ in writers}
    return frozenset(found)


def _is_piece(kernel: Kernel, item: Statement, access: Access) -> bool:
    return _copied_text(item, access) is not None or _piece_shape(kernel, item, access) is not None


def _piece_shape(kernel: Kernel, item: Statement, access: Access) -> str | None:
    """The shape of a tile for a part of another one, from its first partition on; None if no text says it.

    Parts of a list are its tiles and windows of these. In a kernel for any size, only parts along whole
    dimensions have a shape.
    """
    view, declared = access.view, kernel.declarations[access.tensor.id]
    keys = _subscript_keys(item.texts[access.role])
    picks = len(access.tensor.copies)
    if view.box[0].start != Affine(0) or keys is None or len(keys) not in (picks, picks + 1):
        return None
    window = keys[picks:]
    if view.is_whole and (window or not picks):
        return None
    try:
        sizes = shape_texts(kernel, declared)
    except RewriteRefused:
        return None
    if all(size.isdecimal() for size in sizes):
        return str(view.shape)
    parts = [syntax.code_of(part.slice) for key in window for part in key]
    parts += [":"] * (len(sizes) - len(parts))
    if parts[0] != ":" or any(":" in part and part != ":" for part in parts):
        return None
    return f"({', '.join(size for size, part in zip(sizes, parts, strict=True) if part == ':')})"


def _subscript_keys(text: str) -> list[Sequence[cst.SubscriptElement]] | None:
    """The keys of a name's subscripts, the innermost first; None for anything but a name with subscripts."""
    node, found = syntax.parse_expression(text), list[Sequence[cst.SubscriptElement]]()
    while isinstance(node, cst.Subscript):
        found.insert(0, node.slice)
        node = node.value
    return found if isinstance(node, cst.Name) else None


def _copied_text(item: Statement, access: Access) -> str | None:
    """The source of a plain copy of float32 that fits its destination; None for other instructions."""
    source = item.find_access("src")
    if item.op != "tensor_copy" or source is None or not has_plain_arguments(item):
        return None
    is_same = source.tensor.dtype == access.tensor.dtype and source.view.shape == access.view.shape
    return item.texts["src"] if is_same and source.tensor.is_on_chip else None


class _SplitWriter:
    """Writes a kernel with the parts of tiles, each made where its tile is written."""

    def __init__(self, kernel: Kernel, plan: SplitPlan, rounding: str) -> None:
        self._kernel = kernel
        self._plan = plan
        self._rounding = rounding
        self._pieces = _find_pieces(kernel, plan)
        self._names = {
            key: {part: kernel.fresh_name(f"{tensor.name}_{part}") for part in ("high", "low")}
            for key, tensor in plan.tiles.items()
        }

    def write_module(self) -> str:
        """The module with its products split."""
        kernel = self._kernel
        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, self._emit))

    def _emit(self, node: Node) -> list[cst.BaseStatement] | None:
        if not isinstance(node, Statement):
            return None
        if node in self._plan.products:
            first, *others = self._write_products(node)
            return [syntax.with_leading_lines(first, syntax.leading_lines(node.node)), *others]
        if node.tensor is not None and node.tensor.id in self._plan.tiles:
            parts = self._declare_parts(node, node.tensor)
            if not self._pieces.isdisjoint(self._kernel.users_of(node.tensor)):
                return [syntax.with_leading_lines(parts[0], syntax.leading_lines(node.node)), *parts[1:]]
            return [node.node, *parts]
        if node in self._pieces:
            return self._split_piece(node)
        split = [
            line
            for access in node.accesses
            if access.writes and access.tensor.id in self._plan.tiles
            for line in self._split(access.tensor, node.texts[access.role], node.texts[access.role])
        ]
        return [node.node, *split] if split else None

    def _declare_parts(self, item: Statement, tensor: Tensor) -> list[cst.BaseStatement]:
        dtype = f"{self._kernel.nl}.bfloat16"
        named = [
            syntax.rename_variable(item.node, tensor.name, name) for name in self._names[tensor.id].values()
        ]
        return [syntax.with_leading_lines(syntax.retype_declaration(one, dtype), []) for one in named]

    def _split_piece(self, item: Statement) -> list[cst.BaseStatement]:
        """What makes the parts of a window of a tile that is not kept."""
        (access,) = (one for one in item.accesses if one.writes and one.tensor.id in self._plan.tiles)
        text = item.texts[access.role]
        copied = _copied_text(item, access)
        if copied is not None:
            first, *others = self._split(access.tensor, text, copied)
            return [syntax.with_leading_lines(first, syntax.leading_lines(item.node)), *others]
        nl, name = self._kernel.nl, self._kernel.fresh_name(f"{access.tensor.name}_piece")
        shape = _piece_shape(self._kernel, item, access)
        return [
            syntax.parse_statement(f"{name} = {nl}.ndarray({shape}, dtype={nl}.float32, buffer={nl}.sbuf)"),
            syntax.replace_arguments(item.node, {access.role: name}),
            *self._split(access.tensor, text, name),
        ]

    def _split(self, tensor: Tensor, text: str, source: str) -> list[cst.BaseStatement]:
        """What makes the parts of a window of a tile, which the source holds."""
        nisa = self._kernel.nisa
        high, low = (self._part(tensor, part, text) for part in ("high", "low"))
        engine = {"engine": f"{nisa}.engine.scalar"} if self._rounding == "scalar" else {}
        rest = {"dst": low, "data1": source, "data2": high, "op": f"{self._kernel.nl}.subtract"}
        return [
            syntax.make_call(f"{nisa}.tensor_copy", {"dst": high, "src": source, **engine}),
            syntax.make_call(f"{nisa}.tensor_tensor", rest),
        ]

    def _part(self, tensor: Tensor, part: str, text: str) -> str:
        return syntax.rename_in_expression(text, tensor.name, self._names[tensor.id][part])

    def _write_products(self, item: Statement) -> list[cst.BaseStatement]:
        """The products of the parts; the first begins the sum if the product did."""
        lines: list[cst.BaseStatement] = []
        for parts in _PARTS:
            words = {"dst": item.texts["dst"]}
            for side, part in zip(_SIDES, parts, strict=True):
                access = item.find_access(side)
                assert access is not None
                words[side] = self._part(access.tensor, part, item.texts[side])
            if "accumulate" in item.texts:
                words["accumulate"] = "True" if lines else item.texts["accumulate"]
            lines.append(syntax.make_call(f"{self._kernel.nisa}.nc_matmul", words))
        return lines
