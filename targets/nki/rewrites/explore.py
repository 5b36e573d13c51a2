"""Finds the kernels that one rewrite leads to, reads and checks each, and gives the reasons for refusals."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nki_sim.targets import Target
from targets.nki.rewrites.estimate import (
    SBUF_IS_FULL,
    StaticEstimate,
    estimate_kernel,
    find_rule_breaches,
)
from targets.nki.rewrites.inlining import canonicalize_kernel
from targets.nki.rewrites.instructions import MOVING
from targets.nki.rewrites.kernel_ir import Kernel, KernelArgument, Node, StatementKind
from targets.nki.rewrites.source_tree import SourceError
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, read_rewritten
from targets.nki.rewrites.transforms.catalogue import list_transforms
from targets.nki.rewrites.values import Affine, Value

MAX_STATEMENTS = 250_000
"""Total number of statements that all rewrites of a kernel may have.

It is divided evenly among the transformations with sites in the kernel: writing and reading a kernel takes
time for each statement, and long kernels also have more sites.
"""

_FAULT = "internal error"
"""Such reasons come first."""


@dataclass(frozen=True, eq=False)
class RewrittenKernel:
    """A kernel one rewrite away; `number` counts the choices at its site."""

    transform: Transform[Any]
    site: str
    number: int
    choice: Choice
    source: str
    kernel: Kernel
    estimate: StaticEstimate


def explore_rewrites(
    kernel: Kernel,
    arguments: Sequence[KernelArgument],
    target: Target,
    *,
    transforms: Iterable[Transform[Any]] = list_transforms(mx=False),
    keep_going: bool = False,
) -> tuple[list[RewrittenKernel], list[str]]:
    """Return the children of a kernel, and a reason for every rewrite that does not apply.

    For a long kernel, only the first children of each transformation are returned. With `keep_going`, a fault
    of a rewrite is a reason against it, and the others are looked at.
    """
    kernel = canonicalize_kernel(kernel, target)
    refusals: list[str] = []
    there: list[tuple[Transform[Any], Mapping[str, Any]]] = []
    for transform in transforms:
        try:
            with refuse_faults(keep_going):
                places = transform.find_sites(kernel, target)
        except RewriteRefused as refusal:
            refusals.append(f"{transform.id}: {refusal}")
            continue
        if places:
            there.append((transform, places))
    most = max(1, MAX_STATEMENTS // max(1, len(there) * len(kernel.statements)))
    known = _broken_rules(kernel, target)
    children: list[RewrittenKernel] = []
    for transform, places in there:
        left = most
        results = _apply_choices(transform, places, kernel, target=target, keep_going=keep_going)
        for site, number, choice, result in results:
            if not left:
                refusals.append(f"{transform.id}: of so long a kernel no more than {most} are looked at")
                break
            left -= isinstance(result, str)
            try:
                with refuse_faults(keep_going):
                    after, cost = check_rewrite(kernel, _require_source(result), arguments, target, known)
            except RewriteRefused as refusal:
                refusals.append(f"{transform.id} {site}: {refusal}")
                continue
            children.append(RewrittenKernel(transform, site, number, choice, str(result), after, cost))
    return children, sorted(refusals, key=lambda told: _FAULT not in told)


@contextmanager
def refuse_faults(keep_going: bool) -> Iterator[None]:
    """Turn a fault of a rewrite into a refusal if the others are to go on; stderr gets its traceback."""
    try:
        yield
    except (RewriteRefused, SourceError):
        raise
    except Exception as fault:
        if not keep_going:
            raise
        traceback.print_exc()
        raise RewriteRefused(f"{_FAULT}: {type(fault).__name__}: {fault}") from fault


def _apply_choices(
    transform: Transform[Any],
    places: Mapping[str, Any],
    kernel: Kernel,
    *,
    target: Target,
    keep_going: bool,
) -> Iterator[tuple[str, int, Choice, str | RewriteRefused]]:
    """(site, number of the choice, choice, new source or refusal)."""
    for site, place in places.items():
        try:
            with refuse_faults(keep_going):
                choices = transform.list_choices(kernel, target, place)
        except RewriteRefused as refusal:
            yield site, 0, {}, refusal
            continue
        for number, choice in enumerate(choices):
            result: str | RewriteRefused
            try:
                with refuse_faults(keep_going):
                    result = transform.apply(kernel, target, place, choice)
            except RewriteRefused as refusal:
                result = refusal
            yield site, number, choice, result


def _require_source(result: str | RewriteRefused) -> str:
    if isinstance(result, RewriteRefused):
        raise result
    return result


def check_rewrite(
    kernel: Kernel,
    source: str,
    arguments: Sequence[KernelArgument],
    target: Target,
    known: frozenset[str] | None = None,
) -> tuple[Kernel, StaticEstimate]:
    """Return the rewritten kernel and its estimate; `known` are rules that the parent already breaks.

    Raises:
        RewriteRefused: it cannot be read as well as before, or breaks a rule that the parent kept.
    """
    child = read_rewritten(source, arguments, target)
    opaque = [item for item in child.statements if item.kind is StatementKind.OPAQUE]
    if len(opaque) > sum(item.kind is StatementKind.OPAQUE for item in kernel.statements):
        raise RewriteRefused(f"the result could not be read again: {opaque[0].reason}")
    _check_names(kernel, child)
    if _moving_numbers(kernel) != _moving_numbers(child):
        raise RewriteRefused("an offset that moves with a loop would take other values")
    before = _broken_rules(kernel, target) if known is None else known
    cost = estimate_kernel(child, target)
    found = find_rule_breaches(child, cost, target, kernel.forms)
    if any(item.startswith(SBUF_IS_FULL) for item in before):
        # It spills already; predictions say what more would cost.
        found = [item for item in found if not item.startswith(SBUF_IS_FULL)]
    new = [item for item in found if item not in before]
    if new:
        raise RewriteRefused(new[0])
    return child, cost


def _moving_numbers(kernel: Kernel) -> frozenset[tuple[str, str, int]]:
    """All values of arguments that may move with loops, by operation and argument.

    A rewrite that lets a loop count otherwise changes windows, of which it knows, but not such numbers.
    """
    return frozenset(
        (item.op, name, number)
        for item in kernel.operations()
        for name in item.arguments.keys() & MOVING
        for number in _values(item.arguments[name], kernel)
    )


def _values(value: Value, kernel: Kernel) -> set[int]:
    """The values of a number in all iterations."""
    found = {value.const} if isinstance(value, Affine) else set[int]()
    for loop, step in value.terms if isinstance(value, Affine) else ():
        found = {number + step * turn for number in found for turn in range(kernel.trips[loop])}
    return found


def _check_names(kernel: Kernel, child: Kernel) -> None:
    """Check that text which uses a name still means the same where the name is now bound less often.

    Accesses of instructions are checked by reading them again. Other uses of names, assertions, and
    statements that could not be read before might silently change their meaning.
    """
    lost = {name for name, count in kernel.binding_counts.items() if child.binding_counts[name] < count}
    if not lost:
        return
    tiles = {name for item in kernel.declarations.values() for name in item.binds}
    indices = {loop.var for loop in kernel.loops}
    once = _mentioned_names(item for item in kernel.statements if item.kind is StatementKind.OPAQUE)
    unread = _mentioned_names(
        item for item in child.statements if item.kind in {StatementKind.OPAQUE, StatementKind.INERT}
    )
    now = unread | (_mentioned_names(child.nodes) & tiles)
    clash = min(lost & (now | (once & (tiles | indices))), default=None)
    if clash is not None:
        raise RewriteRefused(f"{clash} may mean something else where it is asked for, or nothing")


def _mentioned_names(nodes: Iterable[Node]) -> frozenset[str]:
    return frozenset().union(*(node.mentions for node in nodes))


def _broken_rules(kernel: Kernel, target: Target) -> frozenset[str]:
    return frozenset(find_rule_breaches(kernel, estimate_kernel(kernel, target), target))
