"""Which engines and DMA queues are busy when, as a profile has it: shares of equal parts of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BusyTimeline:
    """`busy_percent` has, by queue, in what share of each part of `span_ms` it was busy, 0 to 100.

    Its times are predicted where the profile is.
    """

    span_ms: float
    predicted: bool
    busy_percent: dict[str, tuple[int, ...]]


def busy_timeline(profile: Mapping[str, Any] | None) -> BusyTimeline | None:
    """Return the timeline of a profile (the JSON of its blob).

    None where it has none: it was recorded before timelines were, or its evaluator has none to record. What
    is not as it should be is left out: profiles of hardware come from elsewhere.
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
