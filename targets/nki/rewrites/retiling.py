"""Writes a kernel with other tiles of a dimension, and takes a last, smaller tile into the loop before it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import check_independent
from targets.nki.rewrites.kernel_ir import Access, Guard, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.loop_ranges import range_name
from targets.nki.rewrites.tile_classes import TileClass
from targets.nki.rewrites.tile_reductions import find_totals
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, Tensor, TensorView, make_affine


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles of `width`, of which there are `trips`."""

    width: int
    trips: int


def write_tiling(found: TileClass, tiling: Tiling, dropped: frozenset[Node] = frozenset()) -> str:
    """Return the source with other tiles of a class, without the nodes in `dropped`.

    Raises:
        RewriteRefused: a source does not say a size or a window in a way that can be changed.
    """
    writer = _TilingWriter(found, tiling)
    for name in found.backwards:
        loop = found.loops[name]
        check_independent(found.kernel, loop, but=find_totals(found.kernel, loop))

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node in dropped:
            return []
        if isinstance(node, Loop) and node.id in found.loops:
            body = syntax.rebuild_block(node.body, emit)
            head = f"{range_name(found.kernel, node)}({tiling.trips})"
            changed = node.node.with_changes(iter=syntax.parse_expression(head))
            return [syntax.replace_body(changed, body)]
        return writer.write_statement(node) if isinstance(node, Statement) else None

    return syntax.render_module(found.kernel, syntax.rebuild_block(found.kernel.body, emit))


class _TilingWriter:
    def __init__(self, found: TileClass, tiling: Tiling) -> None:
        self._found, self._tiling = found, tiling

    def write_statement(self, item: Statement) -> list[cst.BaseStatement] | None:
        if item.tensor is not None:
            return self._write_declaration(item, item.tensor)
        changes: dict[str, str | None] = {}
        for access in item.accesses:
            text = self._operand_text(item, access)
            if text is not None:
                changes[access.role] = text
        return [syntax.replace_arguments(item.node, changes)] if changes else None

    def _write_declaration(self, item: Statement, tensor: Tensor) -> list[cst.BaseStatement] | None:
        found = self._found
        (shared,) = found.kernel.tree.find_line(item.place)
        line = deepcopy(shared)
        assert isinstance(line, ast.Assign)
        value = line.value
        changed = False
        if tensor.id in found.lists:
            if not isinstance(value, ast.ListComp) or len(tensor.copies) != 1:
                raise RewriteRefused(f"{tensor.name} is a list of lists")
            _set_integer(value.generators[0].iter, 0, self._tiling.trips, name=tensor.name)
            changed = True
        call = value
        while isinstance(call, ast.ListComp):
            call = call.elt
        assert isinstance(call, ast.Call)
        for dim in range(len(tensor.shape)):
            key = tensor.id, dim
            size = self._tiling.width if key in found.tiles else self._tiling.trips
            if key in found.tiles | found.counters:
                _set_integer(call.args[0], dim, size, name=tensor.name)
                changed = True
        if not changed:
            return None
        made = syntax.parse_statement(ast.unparse(line))
        return [syntax.with_leading_lines(made, syntax.leading_lines(item.node))]

    def _operand_text(self, item: Statement, access: Access) -> str | None:
        """The source of an operand with the new tiles; None if it stays as it is."""
        found, view = self._found, access.view
        walked = {dim: w for dim, w in enumerate(view.box) if found.is_walked(w)}
        filled = {dim for dim in range(len(view.box)) if found.fills(access, dim)}
        flipped = found.backwards & view.loops
        sized = any(axis.source is None for axis in view.axes) and self._sizes_differ(item, access)
        if not walked and not sized and not flipped and not (filled and self._names_sizes(item, access)):
            return None
        text = item.texts.get(access.role)
        if text is None:
            raise RewriteRefused(f"{item.op} takes {access.tensor.name} in a list of operands")
        tree = ast.parse(text, mode="eval")
        self._change_windows(tree, item, access)
        self._change_methods(tree, item, access)
        return ast.unparse(tree)

    def _names_sizes(self, item: Statement, access: Access) -> bool:
        """Whether an operand's source says a size of a tile that it takes whole."""
        text = item.texts.get(access.role, "")
        return any(character in text for character in "[(")

    def _sizes_differ(self, item: Statement, access: Access) -> bool:
        """Whether an axis without a declared dimension has the size of a tile."""
        return any(axis.source is None and axis.count == self._found.width for axis in access.view.axes) and (
            self._names_sizes(item, access)
        )

    def _change_windows(self, tree: ast.Expression, item: Statement, access: Access) -> None:
        """Write the windows of the innermost full subscript anew."""
        found, view = self._found, access.view
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
        base = [node for node in nodes if _rank_of(node) == len(view.box) and _is_named(node)]
        picks = [node for node in nodes if node not in base and isinstance(node.value, ast.Name)]
        names = {loop.id: loop.var for loop in item.path}
        if view.picks and view.loops & found.backwards and len(picks) == 1:
            picks[0].slice = _parse(self._affine_text(view.picks[0], names))
        for dim, window in enumerate(view.box):
            key = access.tensor.id, dim
            moved = found.is_walked(window) or (
                key in found.counters and window.start.loops & found.backwards
            )
            whole_tile = found.fills(access, dim)
            if not moved and not (whole_tile and base):
                continue
            if len(base) != 1:
                raise RewriteRefused(f"{item.texts[access.role]} is not indexed in every dimension")
            elements = _elements(base[0])
            if whole_tile:
                _set_whole(elements, dim)
            else:
                size = self._tiling.width if found.is_walked(window) else 1
                elements[dim] = self._window_node(window.start, size, names, old=elements[dim])
            _set_elements(base[0], elements)

    def _window_node(self, start: Affine, size: int, names: Mapping[str, str], *, old: ast.expr) -> ast.expr:
        first = self._affine_text(start, names)
        if not isinstance(old, ast.Slice | ast.Call):
            return _parse(first)
        moved = self._move(start)
        if not moved.const and [factor for _, factor in moved.terms] == [size]:
            return _parse_slice(f"{first} : ({names[moved.terms[0][0]]} + 1) * {size}")
        return _parse_slice(f"{first} : {self._affine_text(start + Affine(size), names)}")

    def _affine_text(self, value: Affine, names: Mapping[str, str]) -> str:
        """The source of a place, with the new step for each loop of the class, all of them forwards."""
        moved = self._move(value)
        terms = [names[name] if factor == 1 else f"{names[name]} * {factor}" for name, factor in moved.terms]
        if moved.const or not terms:
            terms.append(str(moved.const))
        return " + ".join(terms).replace("+ -", "- ")

    def _move(self, value: Affine) -> Affine:
        """A place as it is with the new tiles."""
        found = self._found
        const, terms = value.const, dict(value.terms)
        for name, factor in value.terms:
            if name in found.loops:
                const += min(factor, 0) * (found.trips - 1)
                walks = abs(factor) == found.width > 1
                terms[name] = self._tiling.width if walks else abs(factor)
        return make_affine(const, terms)

    def _change_methods(self, tree: ast.Expression, item: Statement, access: Access) -> None:
        """Change the sizes in broadcasts and reshapes of a tile."""
        found = self._found
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name, width = access.tensor.name, self._tiling.width
            if node.func.attr == "broadcast" and _is_repeated_tile(found, item, access, node=node):
                _set_argument(node, 1, width, name=name)
            elif node.func.attr == "reshape" and (access.tensor.id, 0) in found.tiles:
                _set_integer(node.args[0], 0, width, name=name)
            elif node.func.attr == "reshape" and any(
                found.fills(access, d) for d in range(len(access.view.box))
            ):
                raise RewriteRefused(f"{name} is reshaped along its tiles")


def _is_repeated_tile(found: TileClass, item: Statement, access: Access, *, node: ast.Call) -> bool:
    """Whether a broadcast repeats its operand along a dimension that holds one tile."""
    first = node.args[0]
    if not isinstance(first, ast.Constant) or not isinstance(first.value, int):
        return False
    dst, axis = item.find_access("dst"), first.value
    if dst is None or access is dst or len(dst.view.axes) != len(access.view.axes):
        return False
    source = dst.view.axes[axis].source
    return source is not None and access.view.axes[axis].step == 0 and found.is_tiled(dst, source)


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _parse_slice(text: str) -> ast.expr:
    found = ast.parse(f"x[{text}]", mode="eval").body
    assert isinstance(found, ast.Subscript)
    return found.slice


def _elements(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _set_elements(node: ast.Subscript, elements: Sequence[ast.expr]) -> None:
    node.slice = elements[0] if len(elements) == 1 else ast.Tuple(list(elements), ast.Load())


def _set_whole(elements: list[ast.expr], dim: int) -> None:
    if isinstance(elements[dim], ast.Slice):
        elements[dim] = ast.Slice()


def _rank_of(node: ast.Subscript) -> int:
    return len(_elements(node))


def _is_named(node: ast.Subscript) -> bool:
    """Whether a subscript follows a name, or a name and the index into its list."""
    base = node.value
    return isinstance(base, ast.Name) or (
        isinstance(base, ast.Subscript) and isinstance(base.value, ast.Name)
    )


def _set_integer(node: ast.expr, place: int, value: int, *, name: str) -> None:
    """Set one integer of a tuple, or of a call's arguments."""
    items = node.elts if isinstance(node, ast.Tuple | ast.List) else getattr(node, "args", [])
    if place >= len(items) or not isinstance(items[place], ast.Constant):
        raise RewriteRefused(f"a size of {name} has a name: change that")
    items[place] = ast.Constant(value)


def _set_argument(node: ast.Call, place: int, value: int, *, name: str) -> None:
    if len(node.args) <= place or not isinstance(node.args[place], ast.Constant):
        raise RewriteRefused(f"a size of {name} has a name: change that")
    node.args[place] = ast.Constant(value)


# --- a last, smaller tile -----------------------------------------------------------------------------


@dataclass(eq=False)
class _TailMatch:
    """Compares the nodes after a loop with its body: the same, for a last tile of another width."""

    found: TileClass
    loop: Loop
    width: int = 0
    tensors: dict[int, int] = field(default_factory=dict)
    loops: dict[str, str] = field(default_factory=dict)

    def match_nodes(self, body: Iterable[Node], tail: Iterable[Node]) -> bool:
        pairs = zip(body, tail, strict=True)
        return all(self._match_node(one, other) for one, other in pairs)

    def _match_node(self, one: Node, other: Node) -> bool:
        if isinstance(one, Loop) and isinstance(other, Loop):
            self.loops[one.id] = other.id
            same = (one.trips, one.step) == (other.trips, other.step) and one.start == other.start
            return same and len(one.body) == len(other.body) and self.match_nodes(one.body, other.body)
        if not isinstance(one, Statement) or not isinstance(other, Statement):
            return False
        if one.kind is not other.kind:
            return False
        if one.tensor is not None and other.tensor is not None:
            return self._match_declarations(one.tensor, other.tensor)
        return one.kind is StatementKind.OPERATE and self._match_operations(one, other)

    def _match_declarations(self, one: Tensor, other: Tensor) -> bool:
        self.tensors[one.id] = other.id
        same = (one.dtype, one.buffer, one.copies) == (other.dtype, other.buffer, other.copies)
        return (
            same
            and len(one.shape) == len(other.shape)
            and all(
                self._match_sizes(a, b, tiled=(one.id, dim) in self.found.tiles)
                for dim, (a, b) in enumerate(zip(one.shape, other.shape, strict=True))
            )
        )

    def _match_sizes(self, one: int, other: int, *, tiled: bool) -> bool:
        if not tiled:
            return one == other
        self.width = self.width or other
        return one == self.found.width and other == self.width

    def _match_operations(self, one: Statement, other: Statement) -> bool:
        roles = [access.role for access in one.accesses]
        if (one.op, one.engine, roles) != (other.op, other.engine, [item.role for item in other.accesses]):
            return False
        if {k: v for k, v in one.texts.items() if k not in roles} != {
            k: v for k, v in other.texts.items() if k not in roles
        }:
            return False
        return all(self._match_accesses(a, b) for a, b in zip(one.accesses, other.accesses, strict=True))

    def _match_accesses(self, one: Access, other: Access) -> bool:
        same = self.tensors.get(one.tensor.id, one.tensor.id) == other.tensor.id
        first, second = one.view, other.view
        if not same or len(first.box) != len(second.box) or not self._match_axes(one, second):
            return False
        places = zip((*first.picks, *first.within), (*second.picks, *second.within), strict=True)
        if not all(self._at_end(a) == b for a, b in places):
            return False
        return all(
            a.step == b.step
            and self._at_end(a.start) == b.start
            and self._match_sizes(a.size, b.size, tiled=self.found.is_tiled(one, dim))
            for dim, (a, b) in enumerate(zip(first.box, second.box, strict=True))
        )

    def _match_axes(self, one: Access, other: TensorView) -> bool:
        pairs = list(zip(one.view.axes, other.axes, strict=False))
        if len(one.view.axes) != len(other.axes) or one.view.plain != other.plain:
            return False
        return all(
            a.source == b.source
            and (a.count == b.count or (a.count == self.found.width and b.count == self.width))
            for a, b in pairs
        )

    def _at_end(self, value: Affine) -> Affine:
        """A place of the body, in the iteration after the loop's last."""
        step = value.coefficient(self.loop.id)
        others = {self.loops.get(name, name): factor for name, factor in value.terms if name != self.loop.id}
        return make_affine(value.const + step * self.loop.trips, others)


def find_tails(found: TileClass) -> tuple[int, frozenset[Node]]:
    """Return the width of the last, smaller tile after each loop of a class, and its nodes; 0 if none.

    Raises:
        RewriteRefused: only some of the loops have such a tile after them.
    """
    matches = [_match_tail(found, loop) for loop in found.loops.values()]
    widths = {width for width, _ in matches}
    if len(widths) != 1:
        raise RewriteRefused("only some of the loops are followed by a smaller last tile")
    return widths.pop(), frozenset(node for _, nodes in matches for node in nodes)


def _match_tail(found: TileClass, loop: Loop) -> tuple[int, Sequence[Node]]:
    block = _block_of(found.kernel, loop)
    place = block.index(loop) + 1
    tail = block[place : place + len(loop.body)]
    match = _TailMatch(found, loop)
    if found.backwards or len(tail) < len(loop.body) or not match.match_nodes(loop.body, tail):
        return 0, ()
    return match.width, tail


def _block_of(kernel: Kernel, loop: Loop) -> list[Node]:
    blocks = [loop.path[-1].body if loop.path else kernel.body]
    todo = list(blocks)
    for block in todo:
        if loop in block:
            return block
        todo += [node.body for node in block if isinstance(node, Guard)]
    raise RewriteRefused(f"the loop over {loop.var} is in no block")
