"""Ranks every rewrite that applies to a kernel: the planner's whole knowledge, as pure functions.

The value of a rewrite is the logarithm of its expected speed-up. The expectation starts at the static
estimate and moves towards what the technique has measured as it is tried. A technique that was rarely tried
gets a bonus; one that does not address the profile's bottleneck is discounted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from random import Random
from typing import Any

from nki_sim.targets import Target
from targets.nki.rewrites.estimate import StaticEstimate, estimate_kernel
from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites
from targets.nki.rewrites.kernel_ir import KernelArgument
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.search_nodes import SIBLING_DISCOUNT, TEMPERATURE
from targets.nki.rewrites.transform import Choice, Transform
from targets.nki.rewrites.transforms.catalogue import list_transforms
from targets.nki.target import read_menu

PRIOR_TRIES = 4.0
"""Number of measured tries that weigh as much as the estimate."""
EXPLORATION_BONUS = 0.01
"""Bonus, in log speed-up, of a technique never tried."""
OFF_BOTTLENECK_DISCOUNT = 0.6
"""Discount of a technique that does not address the bottleneck."""
MIN_SPEEDUP = 0.95
"""Estimated speed-up below which a rewrite is not proposed: the estimate errs, but by less than this."""


@dataclass(frozen=True, slots=True)
class RankedRewrite:
    """A transformation at a site with a choice; `speedup` is the static estimate's."""

    technique: str
    site: str
    choice: Choice
    title: str
    speedup: float
    counter: str
    reason: str
    value: float

    @property
    def site_and_choice(self) -> str:
        """Site and choice: what distinguishes it from other rewrites of its technique."""
        extra = ", ".join(f"{name} {value}" for name, value in self.choice.items())
        return f"{self.site} [{extra}]" if extra else self.site


@dataclass(frozen=True, slots=True)
class RankingEvidence:
    """What is known about the parent besides its source.

    `bottlenecks` are the profile's class and its busiest engine, `tried` the (technique, place) pairs of
    attempts on this parent, `credits` (tries, log gain) by technique.
    """

    bottlenecks: frozenset[str] = frozenset()
    tried: frozenset[tuple[str, str]] = frozenset()
    credits: Mapping[str, tuple[int, float]] = field(default_factory=dict)


def rank_rewrites(
    source: str,
    arguments: Sequence[KernelArgument],
    target: Target,
    evidence: RankingEvidence,
    *,
    transforms: Iterable[Transform[Any]] = list_transforms(mx=False),
) -> tuple[list[RankedRewrite], list[str]]:
    """Return all rewrites worth trying, best first, and the reasons for those that do not apply.

    Raises:
        SourceError: the source cannot be read.
    """
    kernel = read_kernel(source, arguments, target)
    before = estimate_kernel(kernel, target)
    children, refusals = explore_rewrites(kernel, arguments, target, transforms=transforms, keep_going=True)
    found: dict[str, RankedRewrite] = {}
    for child in children:
        rewrite = _make_rewrite(child, before, evidence)
        old = found.get(child.source)
        if old is None or rewrite.value > old.value:
            found[child.source] = rewrite
    fresh = [
        item
        for item in found.values()
        if item.speedup >= MIN_SPEEDUP and (item.technique, item.site_and_choice) not in evidence.tried
    ]
    return sorted(fresh, key=lambda item: (-item.value, item.technique, item.site_and_choice)), refusals


def _make_rewrite(child: RewrittenKernel, before: StaticEstimate, evidence: RankingEvidence) -> RankedRewrite:
    speedup = _estimated_speedup(before, child.estimate)
    technique = child.transform.id
    discount = SIBLING_DISCOUNT**child.number if speedup > 1 else 1.0
    return RankedRewrite(
        technique=technique,
        site=child.site,
        choice=child.choice,
        title=child.transform.render_title(child.site, child.choice),
        speedup=round(speedup, 6),
        counter=child.transform.counter,
        reason=_estimate_reason(before, child.estimate, evidence.bottlenecks),
        value=_technique_value(technique, log(speedup), evidence) * discount,
    )


def expected_log_speedup(child: RewrittenKernel, before: StaticEstimate, evidence: RankingEvidence) -> float:
    """The logarithm of the speed-up that is expected of a rewrite."""
    return _technique_value(child.transform.id, log(_estimated_speedup(before, child.estimate)), evidence)


def _estimated_speedup(before: StaticEstimate, after: StaticEstimate) -> float:
    """The speed-up according to the estimates; 1 if one counts statements that the other could not read."""
    return before.total_ns / after.total_ns if after.unread >= before.unread else 1.0


def _technique_value(technique: str, expected: float, evidence: RankingEvidence) -> float:
    tries, gained = evidence.credits.get(technique, (0, 0.0))
    total = sum(count for count, _ in evidence.credits.values())
    mean = (PRIOR_TRIES * expected + gained) / (PRIOR_TRIES + tries)
    if evidence.bottlenecks and not evidence.bottlenecks & read_menu()[technique].bottlenecks:
        mean *= OFF_BOTTLENECK_DISCOUNT
    return mean + EXPLORATION_BONUS * sqrt(log(2 + total) / (1 + tries))


def _estimate_reason(before: StaticEstimate, after: StaticEstimate, bottlenecks: frozenset[str]) -> str:
    """Describe the busy time that changes most."""
    engine = max(before.busy_ns, key=lambda name: abs(before.busy_ns[name] - after.busy_ns.get(name, 0.0)))
    was, now = before.busy_ns[engine] / 1e6, after.busy_ns.get(engine, 0.0) / 1e6
    profile = f"the profile shows {' and '.join(sorted(bottlenecks))}; " if bottlenecks else ""
    return f"{profile}{engine} busy time is estimated to go from {was:.4g} to {now:.4g} ms"


def select_rewrites(ranking: Sequence[RankedRewrite], count: int, seed: str) -> list[RankedRewrite]:
    """Return `count` distinct rewrites: the best of the ranking, and the last quarter drawn from the rest.

    The draw depends only on `seed`, so all plans of one parent see the same list.
    """
    explored = count // 4 if len(ranking) > count else 0
    best, rest = list(ranking[: count - explored]), list(ranking[count - explored :])
    random = Random(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]))  # noqa: S311  a search, no secret
    while rest and len(best) < count:
        top = max(item.value for item in rest)
        weights = [exp((item.value - top) / TEMPERATURE) for item in rest]
        best.append(rest.pop(random.choices(range(len(rest)), weights)[0]))
    return best
