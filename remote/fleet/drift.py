"""Finds hosts that time the same kernel differently from the others: pure arithmetic on their readings.

Every host times one calibration kernel now and then. The reference is the time that more than half of the
hosts in good standing agree on. Without such a majority, for example when two hosts disagree, nobody can say
whose times are wrong: there is no reference, and no host is blamed. A single host is compared with its own
first reading.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median_low

TOLERANCE_RATIO = 0.05
"""How far a reading may be from the reference. A search cannot tell gains of this size from noise."""


def reference_ms(readings: Mapping[str, Sequence[float]]) -> float | None:
    """Return the calibration kernel's reference time in ms; None where no majority of these hosts agrees.

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
    """Return each host's last reading relative to the reference of the hosts in `good`.

    The result is empty where there is no reference.
    """
    known = {host: values for host, values in readings.items() if values}
    trusted = {host: values for host, values in known.items() if host in good} or known
    measure = reference_ms(trusted) if known else None
    return {} if measure is None else {host: values[-1] / measure for host, values in known.items()}


def describe_disagreement(readings: Mapping[str, Sequence[float]], among: Collection[str], host: str) -> str:
    """Describe the disagreement between a host and others, with each one's own history."""
    ours = _describe_history(readings[host])
    others = "; ".join(
        f"{name} {_describe_history(readings[name])}" for name in sorted(among) if name != host
    )
    return (
        f"its times may not compare: it takes {ours} for the calibration kernel, {others}; "
        "which of them is wrong only a majority of hosts could say"
    )


def deviates(ratio: float, tolerance: float = TOLERANCE_RATIO) -> bool:
    """Return whether a reading, relative to the reference, is too far off to compare."""
    return abs(ratio - 1) > tolerance


def _describe_history(values: Sequence[float]) -> str:
    return f"{values[-1]:.4g} ms, {values[-1] / values[0]:.2f} times its first reading"
