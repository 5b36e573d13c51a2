"""The profile of a measured kernel: what it achieved of this machine's rates, and which of them is
nearest."""

from __future__ import annotations

import os
from collections.abc import Mapping

from seeds.spec import ProblemWork
from state.model import canonical_json
from targets.c.jailed.paired_times import Interval
from targets.c.machine import CpuRates

_NEAR_PERCENT = 60.0


def bounds_ns(work: ProblemWork, rates: CpuRates, *, threads: int = 1) -> tuple[float, float]:
    """Return the least times for the problem's bytes and for its operations, in ns, at these rates."""
    compute = work.matmul_flops / rates.multiply_add_gflops + work.other_flops / rates.other_gflops
    return work.total_bytes / rates.peaks.bandwidth_for(work.total_bytes), compute / threads


def describe_run(
    work: ProblemWork,
    time_ns: Interval,
    ratio: Interval | None,
    *,
    target: str,
    threads: int,
    rates: CpuRates,
    instruction_ns: float | None = None,
    counted: Mapping[str, float] | None = None,
) -> tuple[str, str]:
    """Return the text of the profile, and what bounds the kernel: memory, compute or neither (`latency`).

    With `instruction_ns` the time is predicted from a count of instructions. `counted` is what hardware
    counters say of one call.
    """
    memory_ns, compute_ns = bounds_ns(work, rates, threads=threads)
    memory, compute = 100 * memory_ns / time_ns.middle, 100 * compute_ns / time_ns.middle
    near = max(memory, compute) >= _NEAR_PERCENT
    bottleneck = ("memory" if memory >= compute else "compute") if near else "latency"
    counters = {
        "time_ns": time_ns.middle,
        "bandwidth_gb_s": work.total_bytes / time_ns.middle,
        "bandwidth_percent": memory,
        "gflops": (work.matmul_flops + work.other_flops) / time_ns.middle,
        "gflops_percent": compute,
        "threads": threads,
        "load": os.getloadavg()[0],
    }
    counters |= counted or {}
    if counted and counted.get("cycles") and "instructions" in counted:
        counters["instructions_per_cycle"] = counted["instructions"] / counted["cycles"]
    if instruction_ns is not None:
        counters["instructions"] = time_ns.middle / instruction_ns
    fields = {
        "predicted": instruction_ns is not None,
        "target": target,
        "counters": counters,
        "bottleneck": bottleneck,
        "rates_measured": rates.measured,
    }
    if ratio is not None:
        fields["ratio_to_parent"] = {"median": ratio.middle, "low": ratio.low, "high": ratio.high}
    return canonical_json(fields).decode(), bottleneck
