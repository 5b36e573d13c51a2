"""Rewrites drawn evenly, one after the other: what a search without any judgement would try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from nki_sim.targets import Target
from targets.nki.rewrites.explore import checked
from targets.nki.rewrites.inlining import canonical
from targets.nki.rewrites.model import Argument, Kernel
from targets.nki.rewrites.reader import read
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from targets.nki.rewrites.tree import meant


@dataclass(frozen=True, slots=True)
class Drawn:
    """One rewrite that was drawn, and the source it led to."""

    transform: Transform[Any]
    site: str
    choice: Choice
    source: str


def wander(
    source: str, arguments: Sequence[Argument], target: Target, steps: int, random: Random
) -> list[Drawn]:
    """Carry out `steps` rewrites, each drawn from all that apply then; fewer where none applies any more.

    A technique at a site is drawn among all such pairs, then one of its choices.

    Raises:
        SourceError: the source cannot be read.
    """
    made: list[Drawn] = []
    kernel: Kernel | None = canonical(read(source, arguments, target), target)
    while kernel is not None and len(made) < steps:
        one = _step(kernel, arguments, target, random)
        if one is None:
            break
        made.append(one)
        kernel = canonical(read(one.source, arguments, target), target)
    return made


def _step(kernel: Kernel, arguments: Sequence[Argument], target: Target, random: Random) -> Drawn | None:
    """One rewrite that applies and changes something; what was drawn and is refused leaves the draw."""
    before = meant(kernel.module.code)
    sites = [
        (transform, site, place)
        for transform in TRANSFORMS.values()
        for site, place in transform.places(kernel, target).items()
    ]
    random.shuffle(sites)
    for transform, site, place in sites:
        for choice in _choices(transform, kernel, target, place, random):
            try:
                source = transform.apply(kernel, target, place, choice)
                checked(kernel, source, arguments, target)
            except Refused:
                continue
            if meant(source) != before:
                return Drawn(transform, site, choice, source)
    return None


def _choices(
    transform: Transform[Any], kernel: Kernel, target: Target, place: Any, random: Random
) -> list[Choice]:
    """The choices at a place, in an order that is drawn; none where the rewrite does not apply."""
    try:
        choices = transform.choices(kernel, target, place)
    except Refused:
        return []
    return random.sample(choices, len(choices))
