"""Draws rewrites uniformly, one after the other, as a search without any judgement would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from nki_sim.targets import Target
from targets.nki.rewrites.explore import check_rewrite
from targets.nki.rewrites.inlining import canonicalize_kernel
from targets.nki.rewrites.kernel_ir import Kernel, KernelArgument
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.source_tree import normalize_source
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.transforms.catalogue import list_transforms


@dataclass(frozen=True, slots=True)
class RandomStep:
    """One rewrite that was drawn, and the source it led to."""

    transform: Transform[Any]
    site: str
    choice: Choice
    source: str


def walk_randomly(
    source: str,
    arguments: Sequence[KernelArgument],
    target: Target,
    steps: int,
    random: Random,
    *,
    transforms: Iterable[Transform[Any]] = list_transforms(mx=False),
) -> list[RandomStep]:
    """Carry out `steps` rewrites, each drawn from all that apply then; fewer if none applies any more.

    A (technique, site) pair is drawn among all such pairs, then one of its choices.

    Raises:
        SourceError: the source cannot be read.
    """
    made, known = list[RandomStep](), tuple(transforms)
    kernel: Kernel | None = canonicalize_kernel(read_kernel(source, arguments, target), target)
    while kernel is not None and len(made) < steps:
        one = _draw_step(kernel, arguments, target, transforms=known, random=random)
        if one is None:
            break
        made.append(one)
        kernel = canonicalize_kernel(read_kernel(one.source, arguments, target), target)
    return made


def _draw_step(
    kernel: Kernel,
    arguments: Sequence[KernelArgument],
    target: Target,
    *,
    transforms: Iterable[Transform[Any]],
    random: Random,
) -> RandomStep | None:
    """One rewrite that applies and changes something; a refused one is drawn no more."""
    before = normalize_source(kernel.module.code)
    sites = [
        (transform, site, place)
        for transform in transforms
        for site, place in transform.find_sites(kernel, target).items()
    ]
    random.shuffle(sites)
    for transform, site, place in sites:
        for choice in _shuffle_choices(transform, kernel, target, place=place, random=random):
            try:
                source = transform.apply(kernel, target, place, choice)
                check_rewrite(kernel, source, arguments, target)
            except RewriteRefused:
                continue
            if normalize_source(source) != before:
                return RandomStep(transform, site, choice, source)
    return None


def _shuffle_choices(
    transform: Transform[Any], kernel: Kernel, target: Target, *, place: Any, random: Random
) -> list[Choice]:
    """The choices at a site, in random order; empty if the rewrite does not apply."""
    try:
        choices = transform.list_choices(kernel, target, place)
    except RewriteRefused:
        return []
    return random.sample(choices, len(choices))
