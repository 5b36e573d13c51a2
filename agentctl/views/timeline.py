"""When the engines and DMA queues of a kernel are busy, from its profile: shares of equal time slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BusyTimeline:
    """`busy_percent` gives, for each queue, its busy share of each slice of `span_ms`, 0 to 100.

    The times are predicted if the profile is.
    """

    span_ms: float
    predicted: bool
    busy_percent: dict[str, tuple[int, ...]]


def busy_timeline(profile: Mapping[str, Any] | None) -> BusyTimeline | None:
    """Return the timeline of a profile (the JSON of its blob).

    None if it has none: the profile is older than timelines, or its evaluator records none. Malformed
    parts are left out, because hardware profiles come from elsewhere.
    """
    found = profile.get("timeline") if profile else None
    if profile is None or not isinstance(found, Mapping):
        return None
    span, busy = found.get("span_ms"), found.get("busy_percent")
    if not isinstance(span, int | float) or not isinstance(busy, Mapping):
        return None
    lanes = {
        str(queue): tuple(parts)
        for queue, parts in busy.items()
        if isinstance(parts, list) and parts and all(type(part) is int for part in parts)
    }
    return BusyTimeline(float(span), bool(profile.get("predicted")), lanes) if lanes else None
