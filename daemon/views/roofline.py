"""A kernel under the roofline of its device, from its profile's counters alone.

The plain model: a kernel with I operations of its matrix products per byte of HBM traffic attains at most
min(peak, I x bandwidth) (Williams, Waterman, Patterson 2009). Peaks are those that the counters' own shares
divide by: hfu_estimated_percent is flops done over peak and time, mbu_estimated_percent bytes moved over
bandwidth and time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Roofline:
    """`intensity` is in operations per byte, rates are per second; None where a kernel has no products.

    `attained_flops` are useful ones: products without transposes. `ceiling_flops` is what the roofline allows
    at this intensity, `attained_percent` the share of it that is reached, and `bandwidth_percent` that of the
    HBM's bandwidth. `side` is `memory` or `compute`: what of the two bounds it.
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


def roofline(counters: Mapping[str, float]) -> Roofline | None:
    """Return where counters place a kernel; None where they do not say enough."""
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
    return Roofline(
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
        side="compute" if intensity is not None and intensity > ridge else "memory",
    )
