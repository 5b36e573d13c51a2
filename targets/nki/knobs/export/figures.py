"""Computes a kernel's figures: its shares of the target's peak and bandwidth, and the reachable latency.

All latencies from the simulator are predicted, and so is everything computed from them; `predicted` says so.
`mfu` is a ratio: the floating-point operations of the mathematics over those that the target's tensor engine
could have done in the same time and type. Fields that end in `_percent` are 0 to 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seeds import ProblemWork
from targets.nki.knobs.export.gather import JudgedKernel
from targets.nki.knobs.tuning.roofline import peak_flops_per_ms, roofline_ms

MBU = "mbu_estimated_percent"


@dataclass(frozen=True, slots=True)
class PeakScale:
    """The peak rates that a run's latencies are compared with."""

    work: ProblemWork
    target: str

    @property
    def roofline_ms(self) -> float:
        return roofline_ms(self.work, self.target)

    def mfu(self, latency_ms: float | None) -> float | None:
        """The share of the peak; None without a latency, or if the mathematics has no matrix products."""
        if not latency_ms or not self.work.matmul_flops:
            return None
        peak = peak_flops_per_ms(self.work.matmul_dtype, self.target)
        return self.work.matmul_flops / (latency_ms * peak)

    def latency_at_mfu(self, mfu: float) -> float | None:
        """The latency at which the share of the peak is `mfu`; None if there are no matrix products."""
        at_one = self.mfu(1.0)
        return None if at_one is None else at_one / mfu

    def kernel_figures(self, kernel: JudgedKernel) -> dict[str, Any]:
        """The figures of a kernel, as written to its `result.json`."""
        judged = kernel.verdict
        latency_ms = kernel.min_ms
        benchmark = judged.benchmark if judged is not None else None
        achievable = self.mfu(self.roofline_ms)
        return {
            "kernel": kernel.id,
            "parent": kernel.parent,
            "author": kernel.author,
            "technique": kernel.plan.technique if kernel.plan else None,
            "cpu_sim": _cpu_sim(kernel),
            "min_ms": latency_ms,
            "lo_ms": benchmark.lo_ms if benchmark and latency_ms else None,
            "hi_ms": benchmark.hi_ms if benchmark and latency_ms else None,
            "predicted": benchmark.predicted if benchmark else None,
            "mfu": self.mfu(latency_ms),
            "mfu_max_achievable_estimated_percent": None if achievable is None else 100 * achievable,
            "roofline_efficiency": self.roofline_ms / latency_ms if latency_ms else None,
            "mbu_estimated_percent": kernel.counters.get(MBU),
            "bottleneck": judged.bottleneck if judged else None,
            "hardware_output": _hardware_output(kernel),
        }


def _hardware_output(kernel: JudgedKernel) -> dict[str, Any] | None:
    """What a device reported besides the latency; None if no device ran the kernel."""
    judged = kernel.verdict
    timed = judged.benchmark if judged is not None else None
    if judged is None or timed is None or timed.predicted:
        return None
    return {"toolchain": judged.toolchain, "samples": timed.samples, "counters": kernel.counters}


def _cpu_sim(kernel: JudgedKernel) -> dict[str, Any]:
    judged = kernel.verdict
    error = judged.error if judged is not None else kernel.error
    return {
        "passed": judged.is_correct if judged is not None else None,
        "verdict": judged.verdict.value if judged is not None else None,
        "level": judged.level.value if judged is not None else None,
        "rel_l2": max(judged.rel_l2.values()) if judged is not None and judged.rel_l2 else None,
        "error": error.model_dump(mode="json") if error is not None else None,
    }
