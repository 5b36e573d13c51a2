"""What measurements of hosts say about predictions: a small correction by kind of kernel.

Predictions of a model may be too fast by a factor for kernels that one engine bounds, and right for others.
The correction is a factor for each kind and one exponent for all: ln(measured) = a[kind] + b ln(predicted).
The exponent is positive, so that within a kind the order of predictions stays. Few measurements move both
little, because they are drawn towards no correction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median

PRIOR_PAIRS = 4.0
"""Measurements that count as much as the assumption that predictions of a kind are right."""

PRIOR_SPREAD = 4.0
"""How strongly the exponent is drawn towards 1, in squared logarithms of predictions."""

LEAST_EXPONENT, MOST_EXPONENT = 0.3, 2.0

MAX_PAIRS = 2048


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """A prediction and the measurement of the same kernel; `kind` is what the forecast says bounds it."""

    kind: str
    predicted_ms: float
    measured_ms: float


@dataclass(frozen=True, slots=True)
class ResidualModel:
    """The correction: the middle of all predictions (ln), the exponent, and ln of the factor by kind."""

    centre: float = 0.0
    exponent: float = 1.0
    factors: Mapping[str, float] = field(default_factory=dict)
    common: float = 0.0

    def correct(self, kind: str, predicted_ms: float) -> float:
        """Return the latency to expect of a kernel, in ms; a kind never measured has the common factor."""
        distance = log(predicted_ms) - self.centre
        return exp(self.centre + self.exponent * distance + self.factors.get(kind, self.common))


def fit_residuals(pairs: Iterable[MeasuredPair]) -> ResidualModel:
    """Fit the correction to the newest `MAX_PAIRS` measurements; without any, nothing is corrected."""
    used = list(pairs)[-MAX_PAIRS:]
    if not used:
        return ResidualModel()
    centre = median(log(one.predicted_ms) for one in used)
    errors: dict[str, list[float]] = defaultdict(list)
    for one in used:
        errors[one.kind].append(log(one.measured_ms / one.predicted_ms))
    common = _shrink([error for found in errors.values() for error in found], towards=0.0)
    factors = {kind: _shrink(found, towards=common) for kind, found in errors.items()}
    return ResidualModel(centre, _fit_exponent(used, centre, factors), factors, common)


def _shrink(errors: Sequence[float], *, towards: float) -> float:
    return (sum(errors) + PRIOR_PAIRS * towards) / (len(errors) + PRIOR_PAIRS)


def _fit_exponent(pairs: Sequence[MeasuredPair], centre: float, factors: Mapping[str, float]) -> float:
    """Least squares of what the factors leave, over the logarithm of the prediction."""
    along = [(log(one.predicted_ms) - centre, one) for one in pairs]
    left = sum(x * (log(one.measured_ms / one.predicted_ms) - factors[one.kind]) for x, one in along)
    spread = sum(x * x for x, _ in along)
    return min(MOST_EXPONENT, max(LEAST_EXPONENT, 1.0 + left / (spread + PRIOR_SPREAD)))
