"""Unpeeling: a first iteration that stands before its loop, as it begins a total, joins the loop.

People write `if k == 0: total = part` and `else: total += part`. Once loops are found, that is an iteration
before a loop over the others. With a total that begins as the operator's neutral number all iterations are
alike, and what works on whole loops, such as wider tiles or sums in PSUM, sees all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substitute_names
from targets.nki.rewrites.elementwise import LOWEST_FLOAT32, NEUTRAL_OPERANDS
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.tile_reductions import find_totals
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Affine, LibrarySymbol, Tensor, make_affine

_FIRST_NUMBERS = NEUTRAL_OPERANDS | {"maximum": LOWEST_FLOAT32, "minimum": -LOWEST_FLOAT32}


@dataclass(frozen=True, eq=False)
class PeeledIteration:
    """The statements of a loop's first iteration, which come before it; `totals` begin with these numbers."""

    loop: Loop
    nodes: frozenset[Statement]
    totals: Mapping[int, float]


class Unpeel(Transform[str]):
    """Lets first iterations join their loops."""

    id: ClassVar[str] = "unpeel"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "the first iteration takes what it begins a total with together with a neutral number"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, str]:
        del target
        return {"all loops": "all loops"} if _find_all_peeled(kernel) else {}

    def list_choices(self, kernel: Kernel, target: Target, place: str) -> tuple[Choice, ...]:
        del kernel, target, place
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: str, choice: Choice) -> str:
        del target, place, choice
        found = {one.loop.id: one for one in _find_all_peeled(kernel)}
        if not found:
            raise RewriteRefused("no loop has its first iteration before it")
        gone = {node for one in found.values() for node in one.nodes}

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node in gone:
                return []
            if isinstance(node, Loop) and node.id in found:
                return _write_loop(kernel, found[node.id])
            return None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _find_all_peeled(kernel: Kernel) -> list[PeeledIteration]:
    found = (find_peeled(kernel, loop) for loop in kernel.loops)
    return [one for one in found if one is not None]


def find_peeled(kernel: Kernel, loop: Loop) -> PeeledIteration | None:
    """Return the first iteration that stands before a loop; None if there is none that could join it."""
    block = loop.path[-1].body if loop.path else kernel.body
    plain = loop.stop.isdigit() and loop.index_text == loop.var and loop in block
    if not plain or not all(isinstance(item, Statement) for item in loop.body):
        return None
    totals = find_totals(kernel, loop)
    before = _statements_before(block, loop)
    if not totals or not before:
        return None
    match = _IterationMatch(kernel, loop, before)
    body = [item for item in loop.body if isinstance(item, Statement) and item.kind is StatementKind.OPERATE]
    if not match.match_body(body, totals) or not _may_move(kernel, before, match):
        return None
    nodes = {*match.matched, *(kernel.declarations[key] for key in match.own_tiles)}
    return PeeledIteration(loop, frozenset(nodes), match.first_numbers)


def _statements_before(block: Sequence[Node], loop: Loop) -> list[Statement]:
    """The statements right before a loop, as far as they are instructions and declarations."""
    found: list[Statement] = []
    for node in reversed(block[: block.index(loop)]):
        if not isinstance(node, Statement) or node.kind in {StatementKind.OPAQUE, StatementKind.BIND}:
            break
        found.append(node)
    return found[::-1]


@dataclass(eq=False)
class _IterationMatch:
    """Finds the iteration before a loop's first one among the statements before the loop."""

    kernel: Kernel
    loop: Loop
    before: Sequence[Statement]
    matched: list[Statement] = field(default_factory=list)
    tiles: dict[int, int] = field(default_factory=dict)
    """By the id of a tile of the loop's body: the tile of the iteration before."""
    first_numbers: dict[int, float] = field(default_factory=dict)
    """By the id of a total: the number that it begins with."""

    @property
    def own_tiles(self) -> frozenset[int]:
        """The tiles that only the iteration before has."""
        return frozenset(self.tiles.values()) - self.first_numbers.keys()

    def match_body(self, body: Sequence[Statement], totals: frozenset[int]) -> bool:
        left = [item for item in self.before if item.kind is StatementKind.OPERATE]
        for item in reversed(body):
            total = next(
                (access for access in item.accesses if access.tensor.id in totals and access.writes), None
            )
            if total is not None:
                beginner = self._match_adder(item, total)
                if beginner is None:
                    return False
                if beginner:
                    self.matched.append(beginner[0])
                    left = left[: left.index(beginner[0])] if beginner[0] in left else []
                continue
            while left and not self._matches(item, left[-1]):
                left.pop()
            if not left:
                return False
            self.matched.append(left.pop())
        return bool(self.first_numbers)

    def _match_adder(self, adder: Statement, total: Access) -> tuple[Statement, ...] | None:
        """The copy that begins a total; () if the part itself is the total; None if it begins otherwise."""
        op = adder.arguments.get("op")
        parts = [access for access in adder.accesses if access.tensor.id != total.tensor.id]
        writers = [item for item in self.before if item.writes_tensor(total.tensor)]
        number = _FIRST_NUMBERS.get(op.leaf) if isinstance(op, LibrarySymbol) else None
        declared = self.kernel.declarations.get(total.tensor.id)
        if (
            adder.op != "tensor_tensor"
            or number is None
            or len(parts) != 1
            or len(writers) != 1
            or declared is None
        ):
            return None
        (writer,), (part,) = writers, parts
        whole = all(view.is_whole and view.plain for view in (total.view, part.view))
        if not whole or declared.path != self.loop.path or part.tensor.id not in self._body_tiles:
            return None
        self.first_numbers[total.tensor.id] = number
        source = _copied_access(writer)
        if source is not None and self._pair_tiles(part.tensor, source.tensor):
            return (writer,)
        return () if self._pair_tiles(part.tensor, total.tensor) else None

    @property
    def _body_tiles(self) -> frozenset[int]:
        return frozenset(
            item.tensor.id for item in self.loop.body if isinstance(item, Statement) and item.tensor
        )

    def _pair_tiles(self, inner: Tensor, outer: Tensor) -> bool:
        """Whether a tile of the body can be that tile in the iteration before."""
        if inner.id not in self._body_tiles:
            return inner.id == outer.id
        if inner.id in self.tiles:
            return self.tiles[inner.id] == outer.id
        declared = self.kernel.declarations.get(outer.id)
        alike = (inner.shape, inner.dtype, inner.buffer) == (outer.shape, outer.dtype, outer.buffer)
        if not alike or inner.copies or outer.copies or declared is None or declared.path != self.loop.path:
            return False
        if outer.id in self.kernel.escaping_ids or outer.id in self.tiles.values():
            return False
        self.tiles[inner.id] = outer.id
        return True

    def _matches(self, item: Statement, other: Statement) -> bool:
        roles = [access.role for access in item.accesses]
        if (item.op, item.engine, roles) != (other.op, other.engine, [one.role for one in other.accesses]):
            return False
        mine, theirs = ({k: v for k, v in one.texts.items() if k not in roles} for one in (item, other))
        if mine != theirs or any(self.loop.var in text for text in mine.values()):
            return False
        known = dict(self.tiles)
        if all(self._match_access(a, b) for a, b in zip(item.accesses, other.accesses, strict=True)):
            return True
        self.tiles = known
        return False

    def _match_access(self, one: Access, other: Access) -> bool:
        first, second = one.view, other.view
        if (one.reads, one.writes, first.plain, first.axes) != (
            other.reads,
            other.writes,
            second.plain,
            second.axes,
        ):
            return False
        places = [*zip((*first.picks, *first.within), (*second.picks, *second.within), strict=False)]
        places += [(a.start, b.start) for a, b in zip(first.box, second.box, strict=False)]
        sizes = [(item.size, item.step) for item in first.box] == [
            (item.size, item.step) for item in second.box
        ]
        same = (
            sizes and len(first.picks) == len(second.picks) and all(self._earlier(a) == b for a, b in places)
        )
        return same and self._pair_tiles(one.tensor, other.tensor)

    def _earlier(self, value: Affine) -> Affine:
        """A place in the iteration before the loop's first one."""
        others = {name: factor for name, factor in value.terms if name != self.loop.id}
        return make_affine(value.const - value.coefficient(self.loop.id), others)


def _copied_access(item: Statement) -> Access | None:
    """What an instruction copies as it is; None if it does something else."""
    if item.op == "tensor_copy":
        return item.find_access("src")
    op = item.arguments.get("op")
    plain = item.op == "activation" and item.texts.keys() <= {"dst", "op", "data", "engine", "name"}
    return item.find_access("data") if plain and isinstance(op, LibrarySymbol) and op.leaf == "copy" else None


def _may_move(kernel: Kernel, before: Sequence[Statement], match: _IterationMatch) -> bool:
    """Whether the matched statements can run right before the loop, and nothing else needs their tiles."""
    mine = set(match.matched)
    tiles = [kernel.declarations[key].tensor for key in match.own_tiles]
    if any(user not in mine for tile in tiles if tile is not None for user in kernel.users_of(tile)):
        return False
    first = min(item.order for item in mine)
    early = [item for item in kernel.operations() if item not in mine and item.path == match.loop.path]
    early = [item for item in early if item.order <= before[-1].order]
    if match.first_numbers.keys() & _tensor_ids(early):
        return False
    others = [item for item in before if item.order > first and item not in mine]
    written, touched = _tensor_ids(mine, writes=True), _tensor_ids(mine)
    return not (written & _tensor_ids(others) or touched & _tensor_ids(others, writes=True))


def _tensor_ids(items: Iterable[Statement], *, writes: bool = False) -> frozenset[int]:
    return frozenset(
        access.tensor.id for item in items for access in item.accesses if access.writes or not writes
    )


def _write_loop(kernel: Kernel, found: PeeledIteration) -> list[cst.BaseStatement]:
    """The totals' first numbers, and the loop with one more iteration."""
    loop, earlier = found.loop, {found.loop.var: f"{found.loop.var} - 1"}
    body = []
    for item in loop.body:
        assert isinstance(item, Statement)
        moved = {name: substitute_names(text, earlier) for name, text in item.texts.items()}
        changes: dict[str, str | None] = {
            name: text for name, text in moved.items() if text != item.texts[name]
        }
        operates = item.kind is StatementKind.OPERATE
        body.append(syntax.replace_arguments(item.node, changes) if changes and operates else item.node)
    started = [
        syntax.make_call(f"{kernel.nisa}.memset", {"dst": _name_of(kernel, key), "value": repr(number)})
        for key, number in found.totals.items()
    ]
    made = syntax.make_loop(loop.var, f"{kernel.nl}.affine_range({loop.trips + 1})", body)
    return [*started, syntax.with_leading_lines(made, syntax.leading_lines(loop.node))]


def _name_of(kernel: Kernel, key: int) -> str:
    tensor = kernel.declarations[key].tensor
    assert tensor is not None
    return tensor.name
