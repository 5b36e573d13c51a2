"""A kernel under the roofline of its device, from its profile's counters and the target's table.

The plain model: a kernel with I operations of its matrix products per byte of HBM traffic attains at
most min(peak, I x bandwidth) (Williams, Waterman, Patterson 2009). The peaks follow from the counters'
own shares: hfu_estimated_percent is flops done over peak and time, mbu_estimated_percent bytes moved
over bandwidth and time.

The element-wise engines have roofs of their own: at most 100 % of their cycles can be active, and no
more cycles than the memory traffic allows. Their work is counted in lane cycles (a lane takes one
element per cycle). Idle lanes of a busy engine count too, because profiles do not tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_PERCENT = 0.1
"""An engine that is active for a smaller share of the time is left out."""


@dataclass(frozen=True, slots=True)
class EngineRoof:
    """An element-wise engine, and the share of its peak (lane cycles/s) that it reaches.

    `intensity` is in lane cycles per byte of HBM traffic; `ridge` is the intensity at which engine and
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
    `bandwidth_percent` that of the HBM's bandwidth. `side` is `memory`, or `compute` if any engine takes
    longer than the memory traffic. `engines` are the element-wise engines, busiest first; empty if the
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


def kernel_roofline(counters: Mapping[str, float], target: str = "") -> KernelRoofline | None:
    """Return where counters place a kernel of a target; None if they do not say enough."""
    total_s = counters.get("total_time", 0.0)
    moved = counters.get("hbm_read_bytes", 0.0) + counters.get("hbm_write_bytes", 0.0)
    ridge = counters.get("peak_flops_bandwidth_ratio", 0.0)
    share = counters.get("mbu_estimated_percent", 0.0)
    if min(total_s, moved, ridge, share) <= 0.0:
        return None
    bandwidth = 100.0 * moved / (share * total_s)
    useful = counters.get("hardware_flops", 0.0) - counters.get("transpose_flops", 0.0)
    intensity = useful / moved if useful > 0.0 else None
    ceiling = None if intensity is None else min(ridge, intensity) * bandwidth
    attained = useful / total_s if intensity is not None else None
    engines = _engine_roofs(counters, _engine_peaks(target), bandwidth)
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


def _engine_peaks(target: str) -> Mapping[str, float]:
    from targets.registry import load_target, target_names

    return load_target(target).engine_peaks() if target in target_names() else {}


def profile_target(profile: Mapping[str, Any] | None) -> str:
    """Return the target that a profile (the JSON of its blob) names, "" if it names none."""
    return str(profile.get("target", "")) if profile else ""


def _engine_roofs(
    counters: Mapping[str, float], peaks: Mapping[str, float], bandwidth: float
) -> tuple[EngineRoof, ...]:
    moved = counters["mbu_estimated_percent"]
    found = []
    for engine, peak in peaks.items():
        active = min(100.0, counters.get(f"{engine}_engine_active_time_percent", 0.0))
        if active < LEAST_PERCENT:
            continue
        relative = active / moved  # relative to the ridge: the engine's time over the memory traffic's time
        ridge = peak / bandwidth
        ceiling = 100.0 * min(1.0, relative)
        side = "compute" if relative > 1.0 else "memory"
        found.append(EngineRoof(engine, peak, active, relative * ridge, ridge, ceiling, side))
    return tuple(sorted(found, key=lambda one: -one.active_percent))
