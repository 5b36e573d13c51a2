"""Loop fusion: two loops over the same range become one, and data passed between them stays on chip.

Kernels that do one step after another write intermediate results to HBM and load them again. If an iteration
of the second loop needs only what the same iteration of the first loop made, it can run right after it, while
the tile is still on chip. Loops that go through the same rows in another order are first made alike
(`loop_pairs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import staging, syntax
from targets.nki.rewrites.blocking import never_overlap
from targets.nki.rewrites.inlining import replace_names
from targets.nki.rewrites.kernel_ir import (
    Access,
    Kernel,
    Loop,
    Node,
    Statement,
    StatementKind,
    list_statements,
    loop_contains,
    walk_nodes,
)
from targets.nki.rewrites.loop_pairs import (
    LoopPair,
    list_alignments,
    makes_tiles_first,
    pair_loops,
    range_of,
)
from targets.nki.rewrites.round_trips import find_own_loads, replace_load
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, read_rewritten
from targets.nki.rewrites.transforms.buffer_scope import list_tile_scopes, scope_buffer
from targets.nki.rewrites.transforms.dead_code import remove_dead_code
from targets.nki.rewrites.transforms.forward import find_copies, read_copied_source
from targets.nki.rewrites.transforms.reuse import find_duplicates, reuse_result
from targets.nki.rewrites.values import Affine, make_affine

ALL_LOOPS = "all loops"
"""The site of all pairs of loops that hand data on."""
LATE = staging.FIRST_ITERATION
"""The choice to make the tiles of a loop that moves inside another one there, in its first iteration.

Otherwise they are made in front of it, maybe by larger transfers, and the first iteration waits for them.
"""


@dataclass(frozen=True, slots=True)
class _FusedLoops:
    """A kernel with loops fused, and the outermost loop that two became."""

    kernel: Kernel
    loop: Loop


class FuseLoops(Transform[LoopPair | str]):
    """Alternates the iterations of two loops, and reads on chip what went through HBM before.

    A site is a pair of loops, or `ALL_LOOPS` for all pairs that hand data on.
    """

    id: ClassVar[str] = "fuse_loops"
    counter: ClassVar[str] = "hbm_read_bytes"
    keeps: ClassVar[str] = (
        "an iteration of the second loop touches nothing that another iteration of the first one writes; "
        "what it loads is what the same iteration has stored"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, LoopPair | str]:
        del target
        pairs = _list_pairs(kernel)
        sites: dict[str, LoopPair | str] = {
            f"{kernel.unique_label(pair.first)} and {kernel.unique_label(pair.second)}": pair
            for pair in pairs
        }
        if sum(_count_moves(pair) for pair in pairs if _hands_data_on(pair)) > 1:
            sites[ALL_LOOPS] = ALL_LOOPS
        return sites

    def list_choices(self, kernel: Kernel, target: Target, place: LoopPair | str) -> tuple[Choice, ...]:
        pairs = _list_handing_pairs(kernel) if isinstance(place, str) else [place]
        ways = ({}, LATE) if any(makes_tiles_first(pair) for pair in pairs) else ({},)
        if isinstance(place, str):
            return ways
        choices, refusals = list[Choice](), list[RewriteRefused]()
        for way in ways:
            try:
                depth = len(_fuse_nested_loops(kernel, target, place, late=way == LATE))
            except RewriteRefused as refusal:
                refusals.append(refusal)
            else:
                choices += [{"loops": count, **way} for count in range(depth, 0, -1)]
        if not choices:
            raise refusals[0]
        return tuple(choices)

    def apply(self, kernel: Kernel, target: Target, place: LoopPair | str, choice: Choice) -> str:
        late = LATE.items() <= choice.items()
        if isinstance(place, str):
            return _fuse_all_loops(kernel, target, late=late)
        ways, loops = _fuse_nested_loops(kernel, target, place, late=late), int(choice["loops"])
        if not 1 <= loops <= len(ways):
            raise RewriteRefused(f"{len(ways)} loops can be fused, not {loops}")
        fused = ways[loops - 1]
        return _remove_round_trips(fused.kernel, fused.loop, target)


def _fuse_all_loops(kernel: Kernel, target: Target, *, late: bool) -> str:
    """The source with the loops fused that hand data on, one pair after the other.

    Raises:
        RewriteRefused: that takes one move or none; such a pair is a site of its own.
    """
    count, reasons = 0, list[str]()
    pairs = _list_handing_pairs(kernel)
    # A sequence from another kernel may ask for it where `list_choices` would not offer it.
    if late and not any(makes_tiles_first(pair) for pair in pairs):
        raise RewriteRefused("no loop makes tiles before a loop in it")
    while pairs:
        pair = pairs.pop(0)
        try:
            fused = _fuse_nested_loops(kernel, target, pair, late=late)[-1]
            made = read_rewritten(
                _remove_round_trips(fused.kernel, fused.loop, target), kernel.arguments, target
            )
        except RewriteRefused as refusal:
            reasons.append(str(refusal))
            continue
        kernel, count = made, count + _count_moves(pair)
        pairs = _list_handing_pairs(kernel)
    if count < 2:
        raise RewriteRefused(reasons[0] if reasons else "only one pair of loops hands data on")
    return kernel.module.code


def _count_moves(pair: LoopPair) -> int:
    """One to fuse two loops, and one more if they do not go through the same range before.

    The second one counts if an iteration goes from HBM to HBM then. Steps of an iteration that stay on chip
    overlap better in loops of their own.
    """
    apart = range_of(pair.first) != range_of(pair.second)
    return 2 if apart and _moves(pair.first, "src") and _moves(pair.second, "dst") else 1


def _moves(loop: Loop, role: str) -> bool:
    """Whether a loop loads from HBM (`src`), or stores there (`dst`)."""
    accesses = [item.find_access(role) for item in list_statements(loop.body) if item.engine == "dma"]
    return any(access is not None and not access.tensor.is_on_chip for access in accesses)


def _list_pairs(kernel: Kernel) -> list[LoopPair]:
    blocks = [kernel.body, *(loop.body for loop in kernel.loops)]
    return [pair for block in blocks for pair in pair_loops(block)]


def _list_handing_pairs(kernel: Kernel) -> list[LoopPair]:
    return [pair for pair in _list_pairs(kernel) if _hands_data_on(pair)]


def _fuse_nested_loops(kernel: Kernel, target: Target, pair: LoopPair, *, late: bool) -> list[_FusedLoops]:
    """The kernel with the loops fused, then with loops that meet inside fused as well, and so on.

    Raises:
        RewriteRefused: for the reasons of `_fuse_aligned`.
    """
    made, loop, at = _fuse_aligned(kernel, target, pair, late=late)
    number, found = made.loops.index(loop), [_FusedLoops(made, loop)]
    while True:
        met = [
            one
            for one in pair_loops(loop.body)
            if loop.body.index(one.first) < at <= loop.body.index(one.second)
        ]
        met.sort(key=lambda one: (not _hands_data_on(one), one.loops_between))
        if not met:
            return found
        try:
            made, loop, at = _fuse_aligned(made, target, met[0], late=late)
        except RewriteRefused:
            return found
        found.append(_FusedLoops(made, made.loops[number]))


def _fuse_aligned(kernel: Kernel, target: Target, pair: LoopPair, *, late: bool) -> tuple[Kernel, Loop, int]:
    """The fused kernel, the loop, and how many nodes of it come from the first loop.

    If the loops do not go through the same range, ways in which they do are tried.

    Raises:
        RewriteRefused: there are none, or for the reasons of `_fuse_pair`.
    """
    differ = f"the loops over {pair.first.var} and {pair.second.var} do not go through the same range"
    refusal = RewriteRefused(differ)
    for align in list_alignments(kernel, target, pair, late=late):
        try:
            aligned, same = align()
        except RewriteRefused as why:
            refusal = RewriteRefused(f"{differ}: {why}")
            continue
        try:
            made = _fuse_pair(aligned, target, same)
        except RewriteRefused as why:
            refusal = why
            continue
        return made, same.find_fused(aligned, made), len(same.first.body)
    raise refusal


def _remove_round_trips(made: Kernel, loop: Loop, target: Target) -> str:
    """The source without transfers of data that is already on chip because the loop stored or loaded it."""
    number, count, refused = made.loops.index(loop), len(made.loops), set[str]()
    while True:
        if len(made.loops) < count:  # What nothing reads is gone, and with it loops: numbers mean others.
            return remove_dead_code(made)
        ways = [one for one in _removal_options(made, made.loops[number]) if one[0] not in refused]
        if not ways:
            return remove_dead_code(made)
        name, way = ways[0]
        try:
            made = read_rewritten(way(), made.arguments, target)
        except RewriteRefused:
            refused.add(name)


def _removal_options(kernel: Kernel, loop: Loop) -> Iterator[tuple[str, Callable[[], str]]]:
    """Named ways to avoid a list of tiles, a transfer or an on-chip copy in a loop."""
    for tensor, inner in list_tile_scopes(kernel, loop):
        yield f"list {tensor.name}", partial(scope_buffer, kernel, tensor, inner)
    for item in find_own_loads(kernel):
        if loop_contains(loop, item):
            yield f"load {item.order}", partial(replace_load, kernel, item)
    for site, copy in find_copies(kernel).items():
        if loop_contains(loop, copy) and len({access.tensor.buffer for access in copy.accesses}) == 1:
            yield f"forward {site}", partial(read_copied_source, kernel, copy)
    for site, twins in find_duplicates(kernel).items():
        if loop_contains(loop, twins.second) and _loads(twins.second):
            yield f"reuse {site}", partial(reuse_result, kernel, twins)


def _loads(node: Node) -> bool:
    """Whether an instruction is a transfer, or a loop holds one."""
    return any(item.op == "dma_copy" for item in list_statements([node]))


def _hands_data_on(pair: LoopPair) -> bool:
    """Whether the second loop touches what the first one writes."""
    written = {
        item.tensor.id for node in list_statements(pair.first.body) for item in node.accesses if item.writes
    }
    touched = {item.tensor.id for node in list_statements(pair.second.body) for item in node.accesses}
    return not written.isdisjoint(touched)


def _fuse_pair(kernel: Kernel, target: Target, pair: LoopPair) -> Kernel:
    """The fused kernel, read again.

    Raises:
        RewriteRefused: an iteration needs what other iterations of the first loop make, or the result cannot
            be read.
    """
    first, second = pair.first, pair.second
    _check_readable(pair)
    _check_between(pair)
    _check_index(pair)
    _check_assertions(pair)
    made = read_rewritten(_fused_source(kernel, pair), kernel.arguments, target)
    _check_same_accesses(kernel, made, pair)
    loop, at = pair.find_fused(kernel, made), len(first.body)
    before, after = (list_statements(part) for part in (loop.body[:at], loop.body[at:]))
    for a in (access for item in before for access in item.accesses):
        for b in (access for item in after for access in item.accesses):
            met = a.tensor.id == b.tensor.id and (a.writes or b.writes)
            if met and not never_overlap(made, loop, a, b):
                raise RewriteRefused(
                    f"an iteration over {second.var} needs {a.tensor.name} from others over {first.var}"
                )
    return made


def _check_readable(pair: LoopPair) -> None:
    for loop in (pair.first, pair.second):
        opaque = [item for item in list_statements(loop.body) if item.kind is StatementKind.OPAQUE]
        if opaque:
            raise RewriteRefused(f"the loop over {loop.var} holds what cannot be read: {opaque[0].reason}")


def _check_index(pair: LoopPair) -> None:
    """Refuse if the second loop's body binds its own index, which disappears, or the one that replaces it.

    A loop inside that has the name of the first loop's index is renamed.
    """
    first, second = pair.first.var, pair.second.var
    again = {first, second} & (_bound_names(pair.second.body) - ({first} & _loop_names(pair.second.body)))
    if again:
        raise RewriteRefused(f"{min(again)} is bound again in the loop over {second}")


def _check_assertions(pair: LoopPair) -> None:
    """Refuse if an assertion in one loop uses names that the other one binds, because they now alternate."""
    for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
        bound = (_bound_names(other.body) | {other.var}) - {one.var}
        for item in list_statements(one.body):
            if item.kind is StatementKind.INERT and item.uses & bound:
                raise RewriteRefused(f"the loop over {one.var} asserts something of {min(item.uses & bound)}")


def _bound_names(nodes: Sequence[Node]) -> frozenset[str]:
    """The names that nodes bind."""
    return _loop_names(nodes).union(*(item.binds for item in list_statements(nodes)))


def _loop_names(nodes: Sequence[Node]) -> frozenset[str]:
    return frozenset(node.var for node in walk_nodes(list(nodes)) if isinstance(node, Loop))


def _used_names(node: Node) -> frozenset[str]:
    return node.uses if isinstance(node, Statement) else node.mentions


def _check_between(pair: LoopPair) -> None:
    """What is between the loops moves before both, so it must not conflict with the first loop."""
    mine = [access for item in list_statements(pair.first.body) for access in item.accesses]
    bound = _bound_names(pair.first.body) | {pair.first.var}
    used = bound.union(*(_used_names(node) for node in walk_nodes(pair.first.body)))
    for node in pair.between:
        for item in list_statements([node]):
            _check_moved(item, mine)
        clash = (_free_names(node) & bound) | (node.binds & used if isinstance(node, Statement) else set())
        if clash:
            raise RewriteRefused(
                f"{min(clash)} is a name of the first loop and of what stands between the loops"
            )


def _check_moved(item: Statement, mine: Sequence[Access]) -> None:
    """Check that a statement may come before instructions with these operands."""
    if item.kind is StatementKind.OPAQUE:
        raise RewriteRefused(f"what cannot be read stands between the loops: {item.reason}")
    for access in item.accesses:
        met = [other for other in mine if other.tensor.id == access.tensor.id]
        if any(access.writes or other.writes for other in met):
            raise RewriteRefused(f"{item.op} between the loops meets {access.tensor.name} of the first one")


def _free_names(node: Statement | Loop) -> frozenset[str]:
    """The names that a node uses and does not bind itself."""
    if isinstance(node, Statement):
        return node.uses
    used = _used_names(node).union(*(_used_names(one) for one in walk_nodes(node.body)))
    return used - _bound_names(node.body) - {node.var}


def _check_same_accesses(kernel: Kernel, made: Kernel, pair: LoopPair) -> None:
    """Check that the instructions are the same, on the same parts of the same tensors.

    A name that one loop binds and the other one uses may have changed its meaning.
    """
    olds, news = list(_fused_order(kernel.body, pair)), made.nodes
    if len(olds) != len(news) or any(type(a) is not type(b) for a, b in zip(olds, news, strict=True)):
        raise RewriteRefused("the loops read differently as one")
    loops = {
        a.id: b.id for a, b in zip(olds, news, strict=True) if isinstance(a, Loop) and isinstance(b, Loop)
    }
    loops[pair.second.id] = loops[pair.first.id]
    tensors = {
        a.tensor.id: b.tensor.id
        for a, b in zip(olds, news, strict=True)
        if isinstance(a, Statement) and isinstance(b, Statement) and a.tensor and b.tensor
    }
    for old, new in zip(olds, news, strict=True):
        if _node_signature(old, loops) != _node_signature(new):
            raise RewriteRefused("the loops read differently as one")
        if isinstance(old, Statement) and isinstance(new, Statement):
            for a, b in zip(old.accesses, new.accesses, strict=True):
                if tensors.get(a.tensor.id, a.tensor.id) != b.tensor.id or _access_signature(
                    a, loops
                ) != _access_signature(b):
                    raise RewriteRefused(f"{a.tensor.name} would be another tile, or another part of it")


def _node_signature(node: Node, loops: Mapping[str, str] | None = None) -> Any:
    """Describe a node apart from its operands' places: an instruction, a range or a condition."""
    if isinstance(node, Statement):
        return node.kind, node.form
    if isinstance(node, Loop):
        return _rename_loops(node.start, loops), node.step, node.trips
    return _rename_loops(node.difference, loops)


def _fused_order(nodes: Sequence[Node], pair: LoopPair) -> Iterator[Node]:
    """All nodes in their order after the fusion, without the second loop itself."""
    for node in nodes:
        if node is pair.first:
            moved = walk_nodes(list(pair.between))
            yield from (*moved, node, *walk_nodes(pair.first.body), *walk_nodes(pair.second.body))
        elif node is not pair.second and node not in pair.between:
            yield node
            if not isinstance(node, Statement):
                yield from _fused_order(node.body, pair)


def _access_signature(access: Access, loops: Mapping[str, str] | None = None) -> Any:
    """Where an access is in its tensor, with the loop names of the other kernel."""

    view = access.view
    starts = [
        _rename_loops(value, loops)
        for value in (*(item.start for item in view.box), *view.picks, *view.within)
    ]
    return access.role, starts, [(item.size, item.step) for item in view.box], view.axes, len(view.picks)


def _rename_loops(value: Affine, loops: Mapping[str, str] | None) -> Affine:
    """An index with the loop names of the other kernel."""
    return value if loops is None else make_affine(value.const, {loops[name]: n for name, n in value.terms})


def _fused_source(kernel: Kernel, pair: LoopPair) -> str:
    first, second = pair.first, pair.second
    head = first.node if "affine_range" not in _range_text(kernel, first) else second.node
    body = [item.node for item in first.body]
    # Rename tiles of the second loop that clash: it may still need what the first loop's tiles hold.
    clashes = _declared_names(first) & _declared_names(second)
    clashes |= ({first.var} & _loop_names(second.body)) - {second.var}
    names = {name: kernel.fresh_name(name) for name in sorted(clashes)}
    body += [replace_names(item.node, {second.var: first.var, **names}) for item in second.body]
    target = head.with_changes(target=first.node.target)
    made = syntax.with_leading_lines(syntax.replace_body(target, body), syntax.leading_lines(first.node))

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is first:
            return [*(item.node for item in pair.between), made]
        return [] if node is second or node in pair.between else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _declared_names(loop: Loop) -> set[str]:
    """The names of the tiles that a loop declares."""
    declared = (item for item in list_statements(loop.body) if item.kind is StatementKind.DECLARE)
    return {name for item in declared for name in item.binds}


def _range_text(kernel: Kernel, loop: Loop) -> str:
    return kernel.module.code_for_node(loop.node.iter)
