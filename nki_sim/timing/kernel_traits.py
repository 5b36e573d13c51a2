"""What a prediction depends on most: the kind of a kernel, by which measured kernels are compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_sim.timing.critical_path import busy_ms
from nki_sim.timing.forecast import Forecast

BOUND_SHARE = 0.5
"""An engine that is busy for this share of the run bounds the kernel; if none is, waits do."""

OVERHEAD_SHARE = 0.5
"""The fixed overhead bounds a kernel if this share of the latency is overhead."""

OPERATOR_SHARE = 0.1
"""Operators that run for at least this share of all running time characterise a kernel."""

OVERHEAD, WAITS = "overhead", "waits"


@dataclass(frozen=True, slots=True)
class KernelTraits:
    """Target, namespace (`neuronxcc` or `nki`), what bounds the kernel, and the operators that take its time.

    `bound` is an engine, `overhead` or `waits`. `latency_ms` is the predicted latency.
    """

    target: str
    namespace: str
    bound: str
    latency_ms: float
    operators: frozenset[str]

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> KernelTraits:
        """Read what `to_json` made."""
        return cls(
            str(row["target"]),
            str(row["namespace"]),
            str(row["bound"]),
            float(row["latency_ms"]),
            frozenset(map(str, row["operators"])),
        )

    def to_json(self) -> dict[str, Any]:
        """The traits as a JSON object."""
        return {
            "target": self.target,
            "namespace": self.namespace,
            "bound": self.bound,
            "latency_ms": self.latency_ms,
            "operators": sorted(self.operators),
        }


def kernel_traits(forecast: Forecast) -> KernelTraits:
    """The kind of a kernel; costs a fraction of its schedule."""
    return KernelTraits(
        forecast.target.name,
        forecast.traced.dialect,
        _find_bound(forecast),
        forecast.latency_ms,
        _long_operators(forecast),
    )


def _find_bound(forecast: Forecast) -> str:
    span_ms = forecast.timeline.span_ns / 1e6
    if forecast.latency_ms - span_ms >= OVERHEAD_SHARE * forecast.latency_ms:
        return OVERHEAD
    busy = busy_ms(forecast.timeline)
    busiest = max(busy, key=busy.__getitem__)
    return busiest if busy[busiest] >= BOUND_SHARE * span_ms else WAITS


def _long_operators(forecast: Forecast) -> frozenset[str]:
    program, timeline = forecast.compiled.program, forecast.timeline
    spent = np.bincount(
        program.form_ids, weights=timeline.end_ns - timeline.start_ns, minlength=len(program.forms)
    )
    by_operator: dict[str, float] = {}
    for form, ns in zip(program.forms, spent.tolist(), strict=True):
        by_operator[form.op] = by_operator.get(form.op, 0.0) + ns
    least = OPERATOR_SHARE * sum(by_operator.values())
    return frozenset(name for name, ns in by_operator.items() if ns >= least > 0.0)
