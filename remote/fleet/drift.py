"""Which hosts time the same kernel differently from the others: pure arithmetic on their readings.

Every host times one calibration kernel now and then. What more than half of the hosts in good standing agree
on is the measure. Where there is no such majority, as with two hosts that disagree, nobody can say from here
whose times are wrong: there is no measure, and no host is blamed. A host alone is compared with its own first
reading.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median_low

TOLERANCE_RATIO = 0.05
"""How far a reading may be from the measure. Of a change in this size a search for gains knows nothing."""


def reference_ms(readings: Mapping[str, Sequence[float]]) -> float | None:
    """Return what the calibration kernel should take; None where no majority of these hosts says so.

    Raises:
        ValueError: there are no readings.
    """
    known = [values for values in readings.values() if values]
    if not known:
        raise ValueError("no host has timed the calibration kernel")
    if len(known) == 1:
        return known[0][0]
    middle = median_low(values[-1] for values in known)
    agreeing = sum(not deviates(values[-1] / middle) for values in known)
    return middle if 2 * agreeing > len(known) else None


def drift_ratios(readings: Mapping[str, Sequence[float]], *, good: frozenset[str]) -> dict[str, float]:
    """Return how long each host's last reading was, relative to the measure by the hosts in `good`.

    Nothing where there is no measure.
    """
    known = {host: values for host, values in readings.items() if values}
    trusted = {host: values for host, values in known.items() if host in good} or known
    measure = reference_ms(trusted) if known else None
    return {} if measure is None else {host: values[-1] / measure for host, values in known.items()}


def describe_disagreement(readings: Mapping[str, Sequence[float]], among: Collection[str], host: str) -> str:
    """Return in words that a host and others disagree, and what each one's own history says."""
    ours = _describe_history(readings[host])
    others = "; ".join(
        f"{name} {_describe_history(readings[name])}" for name in sorted(among) if name != host
    )
    return (
        f"its times may not compare: it takes {ours} for the calibration kernel, {others}; "
        "which of them is wrong only a majority of hosts could say"
    )


def deviates(ratio: float, tolerance: float = TOLERANCE_RATIO) -> bool:
    """Return whether a reading so long, relative to the measure, is none that compares."""
    return abs(ratio - 1) > tolerance


def _describe_history(values: Sequence[float]) -> str:
    return f"{values[-1]:.4g} ms, {values[-1] / values[0]:.2f} times its first reading"
