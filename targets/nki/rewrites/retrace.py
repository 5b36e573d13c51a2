"""A sequence that paid on other kernels, carried out on this one: each step at the place most like its own.

The sequence is gone through on the kernels that it is from as well, so that every place is described as it
was when its step was taken. Names differ from kernel to kernel: a place is known by its part in the work
(`alike`), parameters by where they stood among those to choose from. A step whose like is not here is left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nki_sim.targets import Target
from targets.nki.rewrites.alike import likeness, traits
from targets.nki.rewrites.explore import checked
from targets.nki.rewrites.inlining import canonical
from targets.nki.rewrites.model import Argument, Kernel
from targets.nki.rewrites.reader import read
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from targets.nki.rewrites.tree import SourceError, meant

LEAST = 0.5
"""Likeness that a place must have to be taken for another."""
TRIED = 4
"""Places and parameters that are tried for a step, the most alike first."""


@dataclass(frozen=True, slots=True)
class Past:
    """A step as it was taken: the kernel it was taken on, where, and with which parameters."""

    kernel: Kernel
    technique: str
    site: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Made:
    """A step carried out here: which of the sequence it is, where and how, and the kernel that it led to."""

    number: int
    technique: str
    site: str
    choice: Choice
    title: str
    source: str
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class _Spot:
    """A place and parameters that may do for a step."""

    transform: Transform[Any]
    site: str
    place: Any
    choice: Choice


def retrace(
    source: str, arguments: Sequence[Argument], target: Target, past: Iterator[Past | None]
) -> list[Made]:
    """The steps of a sequence that apply to a kernel, one after the other, as far as they do.

    Raises:
        SourceError: the source cannot be read.
    """
    kernel = canonical(read(source, arguments, target), target)
    made: list[Made] = []
    for number, step in enumerate(past):
        one = _carried_out(number, step, kernel, arguments, target) if step is not None else None
        if one is not None:
            made.append(one)
            kernel = canonical(one.kernel, target)
    return made


def followed(
    legs: Sequence[Mapping[str, Any]], arguments: Sequence[Argument], target: Target
) -> Iterator[Past | None]:
    """The steps of a sequence, each with the kernel that it was taken on; None where that is not to be had.

    A leg is a `source` and `steps`. What the engine cannot carry out again, as it has changed since, ends the
    leg.
    """
    for leg in legs:
        source: str | None = leg["source"]
        for step in leg["steps"]:
            transform = TRANSFORMS.get(step["technique"])
            if source is None or transform is None:
                yield None
                continue
            source, past = _again(source, transform, step, arguments, target)
            yield past


def _again(
    source: str,
    transform: Transform[Any],
    step: Mapping[str, Any],
    arguments: Sequence[Argument],
    target: Target,
) -> tuple[str | None, Past | None]:
    """The source after a step of the sequence, and the step; None for both where it cannot be taken."""
    try:
        kernel = canonical(read(source, arguments, target), target)
        place = transform.places(kernel, target)[step["site"]]
        if step["choice"] not in _choices(transform, kernel, target, place):
            return None, None
        after = transform.apply(kernel, target, place, step["choice"])
    except (Refused, SourceError, KeyError):
        return None, None
    return after, Past(kernel, transform.id, step["site"], step["choice"])


def _carried_out(
    number: int, step: Past, kernel: Kernel, arguments: Sequence[Argument], target: Target
) -> Made | None:
    before = meant(kernel.module.code)
    for spot in _spots(step, kernel, target):
        try:
            source = spot.transform.apply(kernel, target, spot.place, spot.choice)
            child, _ = checked(kernel, source, arguments, target)
        except Refused:
            continue
        if meant(source) != before:
            title = spot.transform.title(spot.site, spot.choice)
            return Made(number, step.technique, spot.site, spot.choice, title, source, child)
    return None


def _spots(step: Past, kernel: Kernel, target: Target) -> list[_Spot]:
    """Where a step may be taken, the most alike first: of each place the parameters most like its own."""
    transform = TRANSFORMS[step.technique]
    there = transform.places(step.kernel, target)
    theirs = _choices(transform, step.kernel, target, there[step.site])
    wanted, rank = traits(step.kernel, there[step.site]), _rank(list(there), step.site)
    here = transform.places(kernel, target)
    ordered = sorted(
        ((likeness(wanted, traits(kernel, place)), site) for site, place in here.items()),
        key=lambda one: (-round(one[0], 9), abs(_rank(list(here), one[1]) - rank), one[1]),
    )
    spots: list[_Spot] = []
    for alike, site in ordered:
        if alike < LEAST or len(spots) >= TRIED:
            break
        mine = _choices(transform, kernel, target, here[site])
        if mine:
            spots.append(_Spot(transform, site, here[site], most_alike(mine, theirs, step.choice)))
    return spots


def _choices(transform: Transform[Any], kernel: Kernel, target: Target, place: Any) -> list[Choice]:
    """The parameters at a place; none where the rewrite does not apply."""
    try:
        return [dict(choice) for choice in transform.choices(kernel, target, place)]
    except Refused:
        return []


def most_alike(mine: Sequence[Choice], theirs: Sequence[Choice], taken: Choice) -> Choice:
    """Of the parameters to choose from here, those that are most like the ones taken among `theirs`.

    Words that are the same count first, so that an engine or a memory stays what it was; then how many words
    there are, as names of loops differ; then where in the list they stand: as much as fits stays as much as
    fits.
    """
    words = {name: value for name, value in taken.items() if isinstance(value, str)}
    rank = _rank(theirs, taken)

    def order(choice: Choice) -> tuple[int, int, float]:
        differ = sum(choice.get(name) != value for name, value in words.items())
        length = sum(
            abs(len(str(choice.get(name, "")).split()) - len(value.split())) for name, value in words.items()
        )
        return differ, length, abs(_rank(mine, choice) - rank)

    return min(mine, key=order)


def _rank(items: Sequence[Any], one: Any) -> float:
    """Where in a list something stands, from 0 for the first to 1 for the last; 0 where it is not there."""
    return items.index(one) / max(1, len(items) - 1) if one in items else 0.0
