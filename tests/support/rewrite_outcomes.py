"""What a transformation makes of a small kernel, and what it says when it does not apply."""

from __future__ import annotations

from collections.abc import Mapping

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transform import Choice
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import TARGET, Sample


def list_rewrites_by_site(sample: Sample, technique: str) -> dict[str, list[tuple[Choice, str]]]:
    """By site, every choice with the source it leads to."""
    kernel = read_kernel(sample.source, sample.arguments, TARGET)
    children, _ = explore_rewrites(kernel, sample.arguments, TARGET, transforms=[TRANSFORMS[technique]])
    found: dict[str, list[tuple[Choice, str]]] = {}
    for child in children:
        found.setdefault(child.site, []).append((child.choice, child.source))
    return found


def find_rewrite(sample: Sample, technique: str, site: str, wanted: Mapping[str, int | str]) -> str:
    """The source for one choice at one site."""
    (source,) = [
        source for choice, source in list_rewrites_by_site(sample, technique)[site] if choice == wanted
    ]
    return source


def find_refusal(sample: Sample, technique: str, site: str) -> str:
    """Why the transformation does not apply at a site."""
    kernel = read_kernel(sample.source, sample.arguments, TARGET)
    _, refusals = explore_rewrites(kernel, sample.arguments, TARGET, transforms=[TRANSFORMS[technique]])
    (reason, *_) = [item.partition(": ")[2] for item in refusals if item.startswith(f"{technique} {site}: ")]
    return reason
