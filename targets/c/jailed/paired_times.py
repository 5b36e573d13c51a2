"""What times say: medians with bootstrap intervals, of one kernel or of the ratio of two that ran in turns.

Used in the jail, to stop when more rounds would not change the answer, and at home, for the answer itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

COVERAGE = 0.99
"""Share of intervals that hold the true median: a kernel is called faster only outside of such an
interval."""

_RESAMPLES = 400
PRECISE = 0.01
"""Relative width of an interval below which more rounds would not matter."""
HOPELESS = 1.1
"""A kernel that is surely so many times slower than the other one needs no more rounds."""


@dataclass(frozen=True)
class Interval:
    """A median and its bootstrap interval."""

    middle: float
    low: float
    high: float

    @property
    def width_ratio(self) -> float:
        """The width relative to the median."""
        return (self.high - self.low) / self.middle


def bootstrap_median(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the median of values with the interval of the medians of resamples."""
    chance = random.Random(seed)  # noqa: S311  statistics, no secret
    count = len(values)
    middles = sorted(median(chance.choices(values, k=count)) for _ in range(_RESAMPLES))
    tail = int(_RESAMPLES * (1 - COVERAGE) / 2)
    return Interval(median(values), middles[tail], middles[-1 - tail])


def compare_times(samples: Sequence[Sequence[int]]) -> Interval:
    """Return the interval of the ratio of the first kernel's times to the second's; of its times if it is
    alone."""
    if len(samples) == 1:
        return bootstrap_median([float(ns) for ns in samples[0]])
    return bootstrap_median([mine / other for mine, other in zip(*samples, strict=True)])


def is_decided(samples: Sequence[Sequence[int]]) -> bool:
    """Whether more rounds would not change what these times say."""
    found = compare_times(samples)
    return found.width_ratio < PRECISE or (len(samples) > 1 and found.low > HOPELESS)
