"""Reuse: what was loaded or computed before from the same inputs is not made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import find_sole_writer
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement, loop_contains
from targets.nki.rewrites.round_trips import changes_in_loops
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor, TensorView


class DuplicatePair(NamedTuple):
    """`second` repeats what `first` made."""

    first: Statement
    second: Statement


class Reuse(Transform[DuplicatePair]):
    """Removes common subexpressions."""

    id: ClassVar[str] = "reuse"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "both instructions are the same, on the same operands, which do not change in between"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, DuplicatePair]:
        del target
        return find_duplicates(kernel)

    def list_choices(self, kernel: Kernel, target: Target, place: DuplicatePair) -> tuple[Choice, ...]:
        del target
        _check_reuse(kernel, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: DuplicatePair, choice: Choice) -> str:
        del target, choice
        return reuse_result(kernel, place)


def find_duplicates(kernel: Kernel) -> dict[str, DuplicatePair]:
    """Instructions that look like an earlier one, by the names of both results."""
    made = [item for item in kernel.operations() if _made_tile(kernel, item) is not None]
    found: dict[str, DuplicatePair] = {}
    for number, second in enumerate(made):
        first = next((item for item in made[:number] if _is_duplicate(item, second)), None)
        if first is not None:
            names = [kernel.unique_label(_result_tensor(item)) for item in (first, second)]
            found[f"{names[0]} for {names[1]}"] = DuplicatePair(first, second)
    return found


def reuse_result(kernel: Kernel, place: DuplicatePair) -> str:
    """The source in which the first result also replaces the second one.

    Raises:
        RewriteRefused: the results may differ.
    """
    _check_reuse(kernel, place)
    kept, spared = _result_tensor(place.first), _result_tensor(place.second)
    gone = {place.second, kernel.declarations[spared.id]}

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if not isinstance(node, Statement):
            return None
        if node in gone:
            return []
        return (
            [syntax.rename_variable(node.node, spared.name, kept.name)]
            if node.touches_tensor(spared)
            else None
        )

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


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
    name = _result_tensor(first).name
    last = max(kernel.users_of(_result_tensor(second)), key=lambda item: item.order)
    bound = [item for item in kernel.statements if any(loop_contains(loop, item) for loop in around)]
    if kernel.may_rebind(name, first, last) or any(name in item.binds for item in bound):
        raise RewriteRefused(f"{name} means something else later")
