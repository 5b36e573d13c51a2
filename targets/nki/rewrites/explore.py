"""The kernels that one rewrite leads to, each read again and checked, and why others are not among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nki_sim.targets import Target
from targets.nki.rewrites.estimate import Estimate, breaches, estimate
from targets.nki.rewrites.inlining import canonical
from targets.nki.rewrites.model import Argument, Kernel, Kind, Node
from targets.nki.rewrites.reader import read
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from targets.nki.rewrites.tree import SourceError

WORK = 250_000
"""Statements that all rewrites of a kernel may have in all.

They are shared evenly by the transformations with places there: writing and reading a kernel again takes time
for each of its statements, and long kernels have more places as well."""


@dataclass(frozen=True, eq=False)
class Child:
    """A kernel one rewrite away; `number` counts the choices at its site."""

    transform: Transform[Any]
    site: str
    number: int
    choice: Choice
    source: str
    kernel: Kernel
    estimate: Estimate


def explore(
    kernel: Kernel,
    arguments: Sequence[Argument],
    target: Target,
    *,
    transforms: Iterable[Transform[Any]] = tuple(TRANSFORMS.values()),
) -> tuple[list[Child], list[str]]:
    """The children of a kernel, and a reason for every rewrite that does not apply.

    Of a long kernel, only the first children by each transformation.
    """
    kernel = canonical(kernel, target)
    there = [(transform, places) for transform in transforms if (places := transform.places(kernel, target))]
    most = max(1, WORK // max(1, len(there) * len(kernel.statements)))
    known = _broken(kernel, target)
    children: list[Child] = []
    refusals: list[str] = []
    for transform, places in there:
        left = most
        for site, number, choice, result in _results(transform, places, kernel, target):
            if not left:
                refusals.append(f"{transform.id}: of so long a kernel no more than {most} are looked at")
                break
            left -= isinstance(result, str)
            try:
                after, cost = checked(kernel, _done(result), arguments, target, known)
            except Refused as refusal:
                refusals.append(f"{transform.id} {site}: {refusal}")
                continue
            children.append(Child(transform, site, number, choice, str(result), after, cost))
    return children, refusals


def _results(
    transform: Transform[Any], places: Mapping[str, Any], kernel: Kernel, target: Target
) -> Iterator[tuple[str, int, Choice, str | Refused]]:
    """(site, number of the choice, choice, new source or refusal)."""
    for site, place in places.items():
        try:
            choices = transform.choices(kernel, target, place)
        except Refused as refusal:
            yield site, 0, {}, refusal
            continue
        for number, choice in enumerate(choices):
            try:
                yield site, number, choice, transform.apply(kernel, target, place, choice)
            except Refused as refusal:
                yield site, number, choice, refusal


def _done(result: str | Refused) -> str:
    if isinstance(result, Refused):
        raise result
    return result


def checked(
    kernel: Kernel,
    source: str,
    arguments: Sequence[Argument],
    target: Target,
    known: frozenset[str] | None = None,
) -> tuple[Kernel, Estimate]:
    """The kernel after a rewrite, and its estimate; `known` are the rules that the one before breaks already.

    Raises:
        Refused: it cannot be read as well as before, or breaks a rule that held.
    """
    try:
        child = read(source, arguments, target)
    except SourceError as error:
        raise Refused(str(error)) from error
    walls = [item for item in child.statements if item.kind is Kind.OPAQUE]
    if len(walls) > sum(item.kind is Kind.OPAQUE for item in kernel.statements):
        raise Refused(f"the result could not be read again: {walls[0].reason}")
    _check_names(kernel, child)
    before = _broken(kernel, target) if known is None else known
    cost = estimate(child, target)
    new = [item for item in breaches(child, cost, target, kernel.forms) if item not in before]
    if new:
        raise Refused(new[0])
    return child, cost


def _check_names(kernel: Kernel, child: Kernel) -> None:
    """Nothing may be said, by a name that is bound less often now, of what had that name before.

    What instructions touch is seen by reading them again. What they and others say besides, and all that
    asserts something, or that could not be read before, may quietly have come to mean something else.
    """
    lost = {name for name, count in kernel.bound.items() if child.bound[name] < count}
    if not lost:
        return
    tiles = {name for item in kernel.declarations.values() for name in item.binds}
    indices = {loop.var for loop in kernel.loops}
    once = _mentioned(item for item in kernel.statements if item.kind is Kind.OPAQUE)
    unread = _mentioned(item for item in child.statements if item.kind in {Kind.OPAQUE, Kind.INERT})
    now = unread | (_mentioned(child.nodes) & tiles)
    clash = min(lost & (now | (once & (tiles | indices))), default=None)
    if clash is not None:
        raise Refused(f"{clash} may mean something else where it is asked for, or nothing")


def _mentioned(nodes: Iterable[Node]) -> frozenset[str]:
    return frozenset().union(*(node.mentions for node in nodes))


def _broken(kernel: Kernel, target: Target) -> frozenset[str]:
    return frozenset(breaches(kernel, estimate(kernel, target), target))
