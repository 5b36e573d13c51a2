"""A kernel under the roofline of its device, from its profile's counters and the target's table.

The plain model: a kernel with I operations of its matrix products per byte of memory traffic attains at
most min(peak, I x bandwidth) (Williams, Waterman, Patterson 2009). The target names the counters. The
bandwidth follows from one of them, which is bytes moved over bandwidth and time, in percent.

The element-wise engines have roofs of their own: at most 100 % of their cycles can be active, and no
more cycles than the memory traffic allows. Their work is counted in lane cycles (a lane takes one
element per cycle). Idle lanes of a busy engine count too, because profiles do not tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from targets.base import ProfileVocabulary
from targets.registry import find_target, profile_vocabulary

LEAST_PERCENT = 0.1
"""An engine that is active for a smaller share of the time is left out."""


@dataclass(frozen=True, slots=True)
class EngineShare:
    """What a profile says of a part of the device; `ms` if it is a share of the time."""

    title: str
    percent: float
    ms: float | None


@dataclass(frozen=True, slots=True)
class EngineRoof:
    """An element-wise engine, and the share of its peak (lane cycles/s) that it reaches.

    `intensity` is in lane cycles per byte of memory traffic; `ridge` is the intensity at which engine and
    memory take equally long. `ceiling_percent` is what the memory allows at this intensity. `side` is
    the bound: `memory` or `compute`.
    """

    engine: str
    peak: float
    active_percent: float
    intensity: float
    ridge: float
    ceiling_percent: float
    side: str


@dataclass(frozen=True, slots=True)
class KernelRoofline:
    """`intensity` is in operations per byte, rates are per second; None if a kernel has no matrix
    products.

    `attained_flops` counts useful ones: products without transposes. `ceiling_flops` is what the
    roofline allows at this intensity, `attained_percent` the share of it that is reached,
    `bandwidth_percent` that of the bandwidth. `side` is `memory`, or `compute` if any engine
    takes longer than the memory traffic. `engines` are the element-wise engines, busiest first; empty if the
    target has no table.
    """

    peak_flops: float
    bandwidth_bytes: float
    ridge: float
    intensity: float | None
    attained_flops: float | None
    ceiling_flops: float | None
    attained_percent: float | None
    moved_bytes: float
    attained_bytes: float
    bandwidth_percent: float
    side: str
    engines: tuple[EngineRoof, ...] = ()


def engine_shares(
    counters: Mapping[str, float], target: str, latency_ms: float | None
) -> tuple[EngineShare, ...]:
    """Return what a profile says of each part of the target, in the target's order."""
    return tuple(
        EngineShare(
            share.title,
            counters[share.counter],
            counters[share.counter] * latency_ms / 100 if share.is_time and latency_ms is not None else None,
        )
        for share in profile_vocabulary(target).shares
        if share.counter in counters
    )


def kernel_roofline(counters: Mapping[str, float], target: str) -> KernelRoofline | None:
    """Return where counters place a kernel of a target; None if they or the target do not say enough."""
    found = find_target(target)
    names = found.profile.roofline if found else None
    if found is None or names is None:
        return None
    total_s, ridge, share = (
        counters.get(one, 0.0) for one in (names.time, names.ridge, names.bandwidth_percent)
    )
    moved = sum(counters.get(one, 0.0) for one in names.moved)
    if min(total_s, moved, ridge, share) <= 0.0:
        return None
    bandwidth = 100.0 * moved / (share * total_s)
    useful = counters.get(names.flops, 0.0) - counters.get(names.useless_flops, 0.0)
    intensity = useful / moved if useful > 0.0 else None
    ceiling = None if intensity is None else min(ridge, intensity) * bandwidth
    attained = useful / total_s if intensity is not None else None
    engines = _engine_roofs(counters, found.engine_peaks(), bandwidth, vocabulary=found.profile)
    by_products = intensity is not None and intensity > ridge
    return KernelRoofline(
        peak_flops=ridge * bandwidth,
        bandwidth_bytes=bandwidth,
        ridge=ridge,
        intensity=intensity,
        attained_flops=attained,
        ceiling_flops=ceiling,
        attained_percent=100.0 * attained / ceiling if attained and ceiling else None,
        moved_bytes=moved,
        attained_bytes=moved / total_s,
        bandwidth_percent=share,
        side="compute" if by_products or any(one.side == "compute" for one in engines) else "memory",
        engines=engines,
    )


def profile_target(profile: Mapping[str, Any] | None) -> str:
    """Return the target that a profile (the JSON of its blob) names, "" if it names none."""
    return str(profile.get("target", "")) if profile else ""


def _engine_roofs(
    counters: Mapping[str, float],
    peaks: Mapping[str, float],
    bandwidth: float,
    *,
    vocabulary: ProfileVocabulary,
) -> tuple[EngineRoof, ...]:
    assert vocabulary.roofline is not None
    moved = counters[vocabulary.roofline.bandwidth_percent]
    found = []
    for share in vocabulary.shares:
        peak = peaks.get(share.part)
        active = min(100.0, counters.get(share.counter, 0.0))
        if peak is None or active < LEAST_PERCENT:
            continue
        relative = active / moved  # relative to the ridge: the engine's time over the memory traffic's time
        ridge = peak / bandwidth
        ceiling = 100.0 * min(1.0, relative)
        side = "compute" if relative > 1.0 else "memory"
        found.append(EngineRoof(share.part, peak, active, relative * ridge, ridge, ceiling, side))
    return tuple(sorted(found, key=lambda one: -one.active_percent))
