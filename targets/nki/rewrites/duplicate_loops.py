"""Finds loops that repeat an earlier loop: the same instructions on the same operands, into other tiles.

Two loops are compared as they were read, so names and spelling do not matter. Tiles and loops inside the one
correspond to tiles and loops inside the other. Their results are tiles that are declared outside and that
nothing else writes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from targets.nki.rewrites.kernel_ir import (
    Kernel,
    Loop,
    Node,
    Statement,
    StatementKind,
    loop_contains,
    walk_nodes,
)
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, Slice, Tensor, TensorView, Value, make_affine


@dataclass(frozen=True, slots=True)
class DuplicateLoops:
    """`second` repeats `first`; `results` are pairs of tiles that hold the same afterwards."""

    first: Loop
    second: Loop
    results: tuple[tuple[Tensor, Tensor], ...]


def find_duplicate_loops(kernel: Kernel) -> list[DuplicateLoops]:
    """Loops of one block that make again what an earlier loop of it has made, in source order."""
    blocks = [kernel.body, *(loop.body for loop in kernel.loops)]
    return [found for block in blocks for found in _find_in_block(kernel, block)]


def _find_in_block(kernel: Kernel, block: Sequence[Node]) -> Iterator[DuplicateLoops]:
    alike: dict[Hashable, list[Loop]] = {}
    for second in (node for node in block if isinstance(node, Loop)):
        earlier = alike.setdefault(_describe_loop(second), [])
        for first in earlier:
            results = _match_results(kernel, first, second)
            if results:
                yield DuplicateLoops(first, second, results)
                break
        earlier.append(second)


def _describe_loop(loop: Loop) -> Hashable:
    """What loops that do the same have in common, so that most others need not be compared with it."""
    items = _statements_in(loop)
    inside = {item.tensor.id for item in items if item.tensor is not None}
    reads = (
        (access.tensor.id, tuple((window.start.const, window.size) for window in access.view.box))
        for item in items
        for access in item.accesses
        if not access.writes and access.tensor.id not in inside
    )
    return loop.trips, tuple((item.kind, item.op) for item in items), tuple(reads)


def _match_results(kernel: Kernel, first: Loop, second: Loop) -> tuple[tuple[Tensor, Tensor], ...]:
    """The pairs of results; empty if the loops do not do the same."""
    match = _Correspondence()
    if not match.is_same_node(first, second):
        return ()
    inside = {item.tensor.id for item in _statements_in(second) if item.tensor is not None}
    results = tuple((one, other) for one, other in match.pairs.values() if other.id not in inside)
    only = all(
        _is_only_result(kernel, one, first) and _is_only_result(kernel, other, second)
        for one, other in results
    )
    return results if only and all(_are_declared_alike(kernel, *pair) for pair in results) else ()


def _is_only_result(kernel: Kernel, tile: Tensor, loop: Loop) -> bool:
    """Whether nothing but a loop writes a tile, and only the loop, or what follows, reads it."""
    inside = [item.order for item in _statements_in(loop)]
    return all(
        min(inside) <= item.order if not item.writes_tensor(tile) else loop_contains(loop, item)
        for item in kernel.users_of(tile)
    )


def _are_declared_alike(kernel: Kernel, one: Tensor, other: Tensor) -> bool:
    declared = [kernel.declarations.get(tile.id) for tile in (one, other)]
    return (
        None not in declared
        and len({(item.path, item.guards) for item in declared if item is not None}) == 1
        and not {one.id, other.id} & kernel.escaping_ids
        and one.is_on_chip
    )


def check_same_results(kernel: Kernel, loops: DuplicateLoops) -> None:
    """Check that the first loop's results can take the place of the second one's.

    Raises:
        RewriteRefused: an operand changes in between, or a name means something else.
    """
    mine, second = _statements_in(loops.first), _statements_in(loops.second)
    gone = {item.tensor.id for item in second if item.tensor is not None}
    made = gone | {tile.id for _, tile in loops.results}
    first = {access.tensor.id for item in mine for access in item.accesses if access.writes}
    for tensor in (access.tensor for item in second for access in item.accesses):
        changes = tensor.id in first or kernel.may_change(tensor, mine[0], second[-1])
        if tensor.id not in made and changes:
            raise RewriteRefused(f"{tensor.name} changes in between")
    bound = {node.var for node in walk_nodes([loops.second]) if isinstance(node, Loop)}
    bound |= {name for item in second for name in item.binds}
    for item in kernel.statements:
        if item.order <= second[-1].order:
            continue
        lost = any(access.tensor.id in gone for access in item.accesses)
        used = (item.uses - item.binds if item.kind is StatementKind.DECLARE else item.uses) & bound
        if lost or (used and not used <= _names_bound_again(kernel, item, after=second[-1])):
            raise RewriteRefused(f"the loop over {loops.second.var} binds a name that is used after it")


def _names_bound_again(kernel: Kernel, item: Statement, *, after: Statement) -> frozenset[str]:
    """The names that are bound between two statements in blocks around the latter."""
    earlier = (
        one
        for one in kernel.statements
        if after.order < one.order < item.order and item.path[: len(one.path)] == one.path and not one.guards
    )
    loops = {loop.var for loop in item.path if loop not in after.path}
    return frozenset(loops).union(*(one.binds for one in earlier))


def _statements_in(loop: Loop) -> list[Statement]:
    return [node for node in walk_nodes(loop.body) if isinstance(node, Statement)]


@dataclass(slots=True)
class _Correspondence:
    """Which loop and tile of the first nest stand for those of the second one."""

    loops: dict[str, str] = field(default_factory=dict)
    pairs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """By the id of the second tile."""

    def is_same_node(self, first: Node, second: Node) -> bool:
        """Whether two nodes do the same, if the tiles that they read hold the same."""
        if isinstance(first, Statement) and isinstance(second, Statement):
            return self._is_same_statement(first, second)
        if not (isinstance(first, Loop) and isinstance(second, Loop)):
            return False
        if (first.trips, first.step, first.start) != (second.trips, second.step, self._affine(second.start)):
            return False
        self.loops[second.id] = first.id
        return len(first.body) == len(second.body) and all(map(self.is_same_node, first.body, second.body))

    def _is_same_statement(self, first: Statement, second: Statement) -> bool:
        if first.kind is not second.kind:
            return False
        if first.kind is StatementKind.DECLARE:
            assert first.tensor is not None
            assert second.tensor is not None
            return self._pair_up(first.tensor, second.tensor)
        if first.kind is StatementKind.BIND:
            return self._have_same_arguments(first, second)
        return (
            first.kind is StatementKind.OPERATE
            and first.op == second.op
            and len(first.accesses) == len(second.accesses)
            and self._have_same_operands(first, second)
            and self._have_same_arguments(first, second)
        )

    def _have_same_operands(self, first: Statement, second: Statement) -> bool:
        for one, other in zip(first.accesses, second.accesses, strict=True):
            if (one.role, one.writes, one.reads) != (other.role, other.writes, other.reads):
                return False
            if one.writes and (
                one.tensor.id == other.tensor.id or not self._pair_up(one.tensor, other.tensor)
            ):
                return False
            if one.view != self._view(other.view):
                return False
        return True

    def _have_same_arguments(self, first: Statement, second: Statement) -> bool:
        mapped = {name: self._value(value) for name, value in second.arguments.items()}
        # 0.0 and -0.0 are equal but give different results.
        return repr(dict(first.arguments)) == repr(mapped)

    def _pair_up(self, one: Tensor, other: Tensor) -> bool:
        """Let a tile stand for another one; False if they differ or already stand for others."""
        known = self.pairs.get(other.id)
        if known is not None:
            return known[0].id == one.id
        alike = (one.shape, one.dtype, one.buffer, one.copies) == (
            other.shape, other.dtype, other.buffer, other.copies
        )  # fmt: skip
        if not alike or any(pair[0].id == one.id for pair in self.pairs.values()):
            return False
        self.pairs[other.id] = (one, other)
        return True

    # --- the first nest's values for those of the second one ---------------------------------------

    def _affine(self, value: Affine) -> Affine:
        return make_affine(value.const, {self.loops.get(name, name): factor for name, factor in value.terms})

    def _tensor(self, tensor: Tensor) -> Tensor:
        return self.pairs[tensor.id][0] if tensor.id in self.pairs else tensor

    def _view(self, view: TensorView) -> TensorView:
        return replace(
            view,
            tensor=self._tensor(view.tensor),
            picks=tuple(map(self._affine, view.picks)),
            box=tuple(replace(item, start=self._affine(item.start)) for item in view.box),
            within=tuple(map(self._affine, view.within)),
        )

    def _value(self, value: Value) -> Value:
        match value:
            case Affine():
                return self._affine(value)
            case TensorView():
                return self._view(value)
            case Tensor():
                return self._tensor(value)
            case Slice(start=Affine() as start):
                return replace(value, start=self._affine(start))
            case tuple():
                return tuple(map(self._value, value))
        return value
