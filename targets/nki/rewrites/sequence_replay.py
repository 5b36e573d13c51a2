"""Replays a sequence that paid on other kernels: each step at the most similar site of this kernel.

The sequence is also followed on its original kernels, so that every site is described as it was when its step
was taken. Names differ between kernels: a site is identified by its role in the work (`site_similarity`),
parameters by their position among the choices. A step without a similar site is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nki_sim.targets import Target
from targets.nki.rewrites.explore import check_rewrite
from targets.nki.rewrites.inlining import canonicalize_kernel
from targets.nki.rewrites.kernel_ir import Kernel, KernelArgument
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.site_similarity import describe_site, similarity
from targets.nki.rewrites.source_tree import SourceError, normalize_source
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS

MIN_SIMILARITY = 0.5
"""Similarity that a site must have to replace another."""
MAX_TRIES = 4
"""Sites and parameters that are tried for a step, the most similar first."""


@dataclass(frozen=True, slots=True)
class PastStep:
    """An original step: its kernel, its site, and its parameters."""

    kernel: Kernel
    technique: str
    site: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A step carried out here: its number in the sequence, its site, its parameters, its result."""

    number: int
    technique: str
    site: str
    choice: Choice
    title: str
    source: str
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class _ReplaySite:
    """A site and parameters that may suit a step."""

    transform: Transform[Any]
    site: str
    place: Any
    choice: Choice


def replay_sequence(
    source: str, arguments: Sequence[KernelArgument], target: Target, past: Iterator[PastStep | None]
) -> list[ReplayedStep]:
    """Return the steps of a sequence that apply to a kernel, one after the other.

    Raises:
        SourceError: the source cannot be read.
    """
    kernel = canonicalize_kernel(read_kernel(source, arguments, target), target)
    made: list[ReplayedStep] = []
    for number, step in enumerate(past):
        one = (
            _carry_out_step(number, step, kernel, arguments=arguments, target=target)
            if step is not None
            else None
        )
        if one is not None:
            made.append(one)
            kernel = canonicalize_kernel(one.kernel, target)
    return made


def follow_sequence(
    legs: Sequence[Mapping[str, Any]], arguments: Sequence[KernelArgument], target: Target
) -> Iterator[PastStep | None]:
    """The steps of a sequence, each with its original kernel; None where that is not available.

    A leg is a `source` and `steps`. A step that today's engine cannot repeat, because it has changed, ends
    the leg.
    """
    for leg in legs:
        source: str | None = leg["source"]
        for step in leg["steps"]:
            transform = TRANSFORMS.get(step["technique"])
            if source is None or transform is None:
                yield None
                continue
            source, past = _retake_step(source, transform, step, arguments=arguments, target=target)
            yield past


def _retake_step(
    source: str,
    transform: Transform[Any],
    step: Mapping[str, Any],
    *,
    arguments: Sequence[KernelArgument],
    target: Target,
) -> tuple[str | None, PastStep | None]:
    """The source after a step of the sequence, and the step; None for both if it cannot be repeated."""
    try:
        kernel = canonicalize_kernel(read_kernel(source, arguments, target), target)
        place = transform.find_sites(kernel, target)[step["site"]]
        if step["choice"] not in _list_choices(transform, kernel, target, place=place):
            return None, None
        after = transform.apply(kernel, target, place, step["choice"])
    except (RewriteRefused, SourceError, KeyError):
        return None, None
    return after, PastStep(kernel, transform.id, step["site"], step["choice"])


def _carry_out_step(
    number: int, step: PastStep, kernel: Kernel, *, arguments: Sequence[KernelArgument], target: Target
) -> ReplayedStep | None:
    before = normalize_source(kernel.module.code)
    for spot in _rank_sites(step, kernel, target):
        try:
            source = spot.transform.apply(kernel, target, spot.place, spot.choice)
            child, _ = check_rewrite(kernel, source, arguments, target)
        except RewriteRefused:
            continue
        if normalize_source(source) != before:
            title = spot.transform.render_title(spot.site, spot.choice)
            return ReplayedStep(number, step.technique, spot.site, spot.choice, title, source, child)
    return None


def _rank_sites(step: PastStep, kernel: Kernel, target: Target) -> list[_ReplaySite]:
    """The sites where a step may be taken, the most similar first, each with its most similar parameters."""
    transform = TRANSFORMS[step.technique]
    there = transform.find_sites(step.kernel, target)
    theirs = _list_choices(transform, step.kernel, target, place=there[step.site])
    wanted, rank = describe_site(step.kernel, there[step.site]), _relative_rank(list(there), step.site)
    here = transform.find_sites(kernel, target)
    ordered = sorted(
        ((similarity(wanted, describe_site(kernel, place)), site) for site, place in here.items()),
        key=lambda one: (-round(one[0], 9), abs(_relative_rank(list(here), one[1]) - rank), one[1]),
    )
    spots: list[_ReplaySite] = []
    for alike, site in ordered:
        if alike < MIN_SIMILARITY or len(spots) >= MAX_TRIES:
            break
        mine = _list_choices(transform, kernel, target, place=here[site])
        if mine:
            spots.append(
                _ReplaySite(transform, site, here[site], select_similar_choice(mine, theirs, step.choice))
            )
    return spots


def _list_choices(transform: Transform[Any], kernel: Kernel, target: Target, *, place: Any) -> list[Choice]:
    """The parameters at a site; empty if the rewrite does not apply."""
    try:
        return [dict(choice) for choice in transform.list_choices(kernel, target, place)]
    except RewriteRefused:
        return []


def select_similar_choice(mine: Sequence[Choice], theirs: Sequence[Choice], taken: Choice) -> Choice:
    """Return the choice among `mine` that is most similar to `taken` among `theirs`.

    Equal words count first, so that an engine or a memory stays the same. Then comes the number of words,
    since names of loops differ; then the relative position in the list, so that "as much as fits" stays that.
    """
    words = {name: value for name, value in taken.items() if isinstance(value, str)}
    rank = _relative_rank(theirs, taken)

    def order(choice: Choice) -> tuple[int, int, float]:
        differ = sum(choice.get(name) != value for name, value in words.items())
        length = sum(
            abs(len(str(choice.get(name, "")).split()) - len(value.split())) for name, value in words.items()
        )
        return differ, length, abs(_relative_rank(mine, choice) - rank)

    return min(mine, key=order)


def _relative_rank(items: Sequence[Any], one: Any) -> float:
    """The relative position of an item in a list, from 0 (first) to 1 (last); 0 if it is missing."""
    return items.index(one) / max(1, len(items) - 1) if one in items else 0.0
