"""Reuse: what was loaded or computed before from the same inputs is not made again."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import ClassVar, NamedTuple

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.duplicate_loops import DuplicateLoops, check_same_results, find_duplicate_loops
from targets.nki.rewrites.elementwise import find_sole_writer
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement, walk_nodes
from targets.nki.rewrites.round_trips import changes_in_loops
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor, TensorView


class DuplicatePair(NamedTuple):
    """`second` repeats what `first` made."""

    first: Statement
    second: Statement


Duplicates = DuplicatePair | DuplicateLoops


class Reuse(Transform[Duplicates]):
    """Removes common subexpressions."""

    id: ClassVar[str] = "reuse"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "both instructions or loops are the same, on the same operands, which do not change in between"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Duplicates]:
        del target
        return find_duplicates(kernel)

    def list_choices(self, kernel: Kernel, target: Target, place: Duplicates) -> tuple[Choice, ...]:
        del target
        reuse_result(kernel, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Duplicates, choice: Choice) -> str:
        del target, choice
        return reuse_result(kernel, place)


def find_duplicates(kernel: Kernel) -> dict[str, Duplicates]:
    """Instructions and loops that look like an earlier one, by the names of both results."""
    made = [item for item in kernel.operations() if _made_tile(kernel, item) is not None]
    found: dict[str, Duplicates] = {}
    for number, second in enumerate(made):
        first = next((item for item in made[:number] if _is_duplicate(item, second)), None)
        if first is not None:
            found[_site(kernel, (_result_tensor(first), _result_tensor(second)))] = DuplicatePair(
                first, second
            )
    for loops in find_duplicate_loops(kernel):
        found.setdefault(_site(kernel, loops.results[0]), loops)
    return found


def _site(kernel: Kernel, results: tuple[Tensor, Tensor]) -> str:
    return " for ".join(map(kernel.unique_label, results))


def reuse_result(kernel: Kernel, place: Duplicates) -> str:
    """The source in which the first result also replaces the second one.

    Raises:
        RewriteRefused: the results may differ.
    """
    if isinstance(place, DuplicateLoops):
        check_same_results(kernel, place)
        results = place.results
        end = max(item.order for item in walk_nodes(place.first.body) if isinstance(item, Statement))
    else:
        _check_reuse(kernel, place)
        results = ((_result_tensor(place.first), _result_tensor(place.second)),)
        end = place.first.order
    gone = {place.second, *(kernel.declarations[spared.id] for _, spared in results)}
    renamed: dict[int, tuple[Tensor, str]] = {}
    for kept, spared in results:
        name = _find_name(kernel, kept, spared, end, gone)
        renamed[spared.id] = spared, name
        if name != kept.name:
            renamed[kept.id] = kept, name

    passing = kernel.fresh_name("passing")

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node in gone:
            return []
        if not isinstance(node, Statement):
            return None
        touched = {access.tensor.id for access in node.accesses}
        if node.tensor is not None:
            touched.add(node.tensor.id)
        named = sorted(touched & renamed.keys())
        made = node.node
        # In two steps, because one result may have the name that another one gets.
        for key in named:
            made = syntax.rename_variable(made, renamed[key][0].name, f"{passing}_{key}")
        for key in named:
            made = syntax.rename_variable(made, f"{passing}_{key}", renamed[key][1])
        return [made] if named else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _find_name(kernel: Kernel, kept: Tensor, spared: Tensor, end: int, gone: AbstractSet[Node]) -> str:
    """The name of a result that also stands for another one, after the instruction of this order.

    Raises:
        RewriteRefused: it needs another name, and something else is said of it.
    """
    users, home = kernel.users_of(spared), kernel.declarations[kept.id].path
    last = max((item.order for item in users), default=end)
    again = {loop for item in users for loop in item.path if loop not in home}
    near = [
        item
        for item in kernel.statements
        if (end < item.order <= last or not again.isdisjoint(item.path))
        and gone.isdisjoint((item, *item.path))
    ]
    inner = {loop.var for item in near for loop in item.path if loop not in home}
    if kept.name not in inner.union(
        *(item.binds for item in near if item is not kernel.declarations[kept.id])
    ):
        return kept.name
    if kept.id in kernel.escaping_ids:
        raise RewriteRefused(f"{kept.name} means something else later")
    return kernel.fresh_name(f"{kept.name}_kept")


def _result_tensor(item: Statement) -> Tensor:
    dst = item.find_access("dst")
    assert dst is not None
    return dst.tensor


def _made_tile(kernel: Kernel, item: Statement) -> Tensor | None:
    """The on-chip tile that an instruction makes completely, alone, and without making anything else."""
    dst = item.find_access("dst")
    if dst is None or not dst.tensor.is_on_chip or sum(access.writes for access in item.accesses) > 1:
        return None
    return dst.tensor if find_sole_writer(kernel, dst.tensor) is item and dst.view.plain else None


def _input_views(item: Statement) -> dict[str, TensorView]:
    return {access.role: access.view for access in item.accesses if not access.writes}


def _is_duplicate(first: Statement, second: Statement) -> bool:
    """Whether two instructions differ only in where they write, and the second can see the first's inputs."""
    a, b = _result_tensor(first), _result_tensor(second)
    # 0.0 and -0.0 are equal but give different results.
    same = first.op == second.op and repr(first.arguments) == repr(second.arguments)
    same = same and first.arguments == second.arguments and _input_views(first) == _input_views(second)
    tiles = (a.shape, a.dtype, a.buffer) == (b.shape, b.dtype, b.buffer)
    return same and tiles and second.path[: len(first.path)] == first.path


def _check_reuse(kernel: Kernel, place: DuplicatePair) -> None:
    first, second = place
    if first.guards or second.guards:
        raise RewriteRefused(
            f"{_result_tensor(first).name} or {_result_tensor(second).name} is made under a condition"
        )
    if _result_tensor(second).id in kernel.escaping_ids:
        raise RewriteRefused(f"something else is said of {_result_tensor(second).name}")
    around = [loop for loop in second.path if loop not in first.path]
    for view in _input_views(second).values():
        if kernel.may_change(view.tensor, first, second) or changes_in_loops(kernel, view.tensor, around):
            raise RewriteRefused(f"{view.tensor.name} changes in between")
