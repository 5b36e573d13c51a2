"""What flat means: of each quantity, the median of the last quarter against that of the second one.

The first quarter is left out: caches fill up, and the control is from there. A quantity is flat when the last
quarter's median is at most `ALLOWED_PERCENT` above the second's. Less is no harm. Sizes are taken as they
are, the log's as what an interval added per event; times, which are of CPU, in ratio to their control at the
same moment: what else the machine does counts on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from benchmarks.faults.soak.gauges import Sample

ALLOWED_PERCENT = 5.0
MB = 1e6


class Quantity(NamedTuple):
    """One quantity over the samples, (events, value) each."""

    name: str
    values: list[tuple[int, float]]

    def median_of_quarter(self, number: int) -> float:
        """Return the median over the samples in a quarter of the events, counted from 1.

        Raises:
            ValueError: no sample lies in it.
        """
        last = self.values[-1][0]
        found = [value for events, value in self.values if number - 1 < 4 * events / last <= number]
        if not found:
            raise ValueError(f"{self.name}: no sample in quarter {number} of {last} events; take more")
        return median(found)

    @property
    def before(self) -> float:
        return self.median_of_quarter(2)

    @property
    def after(self) -> float:
        return self.median_of_quarter(4)

    @property
    def percent(self) -> float:
        """How much the last quarter is above the second."""
        return 100.0 * (self.after / self.before - 1.0) if self.before else 0.0

    @property
    def is_flat(self) -> bool:
        return self.percent <= ALLOWED_PERCENT


_PLAIN: dict[str, Callable[[Sample], float]] = {
    "resident memory, MB": lambda one: one.resident_bytes / MB,
    "open files": lambda one: one.handles,
    "threads": lambda one: one.threads,
    "WAL, MB": lambda one: one.wal_bytes / MB,
    "start, to its control": lambda one: one.start_ratio,
}


def list_quantities(samples: Sequence[Sample]) -> list[Quantity]:
    """Return everything that has to be flat."""
    found = [Quantity(name, [(one.events, read(one)) for one in samples]) for name, read in _PLAIN.items()]
    grown = [
        (new.events, (new.log_bytes - old.log_bytes) / (new.events - old.events))
        for old, new in pairwise(samples)
    ]
    asked = [
        Quantity(f"{name}, to its control", [(one.events, one.query_ratio[name]) for one in samples])
        for name in samples[-1].query_ratio
    ]
    return [*found, Quantity("log, bytes per event", grown), *asked]


def format_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The verdicts as lines; a row has name, before, after, percent and is_flat."""
    width = max(len(row["name"]) for row in rows)
    return [
        f"{'':{width}} {'quarter 2':>10} {'quarter 4':>10} {'change':>9}",
        *(
            f"{row['name']:{width}} {row['before']:10.4g} {row['after']:10.4g} {row['percent']:+7.1f} %"
            f"{'' if row['is_flat'] else '  not flat'}"
            for row in rows
        ),
    ]
