"""Which hosts time the same kernel differently from the others: pure arithmetic on their readings.

Every host times one calibration kernel now and then. Three or more hosts are compared with the median of
their last readings. Of two nobody can say which is wrong by looking at both, so the one that moved least
against its own first reading is the measure. A host alone is compared with its own first reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

TOLERANCE_RATIO = 0.05
"""How far a reading may be from the measure. Of a change in this size a search for gains knows nothing."""


def reference_ms(readings: Mapping[str, Sequence[float]]) -> float:
    """Return what the calibration kernel should take; `readings` are of hosts in good standing, in order.

    Raises:
        ValueError: there are no readings.
    """
    known = {host: values for host, values in readings.items() if values}
    if not known:
        raise ValueError("no host has timed the calibration kernel")
    if len(known) > 2:
        return median(values[-1] for values in known.values())
    steady = min(known, key=lambda host: abs(known[host][-1] / known[host][0] - 1))
    return known[steady][0] if len(known) == 1 else known[steady][-1]


def ratios(readings: Mapping[str, Sequence[float]], *, good: frozenset[str]) -> dict[str, float]:
    """Return how long each host's last reading was, relative to the measure by the hosts in `good`."""
    known = {host: values for host, values in readings.items() if values}
    trusted = {host: values for host, values in known.items() if host in good} or known
    if not known:
        return {}
    measure = reference_ms(trusted)
    return {host: values[-1] / measure for host, values in known.items()}


def deviates(ratio: float, tolerance: float = TOLERANCE_RATIO) -> bool:
    """Return whether a reading so long, relative to the measure, is none that compares."""
    return abs(ratio - 1) > tolerance
