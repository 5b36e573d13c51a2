"""The part of the prompts that describes this machine: what it is, and the rates that were measured on it."""

from __future__ import annotations

from targets.c.machine import CpuFacts, CpuRates, load_rates, read_cpu_facts

ARCHITECTURE_FILE = "c/architecture.md"


def render_files() -> dict[str, str]:
    """Return the generated files of the prompt pack, by path."""
    return {ARCHITECTURE_FILE: render_architecture(read_cpu_facts(), load_rates())}


def render_architecture(facts: CpuFacts, rates: CpuRates) -> str:
    """Return what models are told about the CPU."""
    caches = ", ".join(f"{name} {_describe_size(size)}" for name, size in facts.cache_bytes) or "unknown"
    known = "measured" if rates.measured else "estimated from the clock"
    return f"""# Hardware: {facts.model}, one core

| fact | value |
|---|---|
| instruction set | {facts.machine}: {", ".join(facts.features) or "no vector features known"} |
| float32 lanes of a vector register | {facts.float_lanes} |
| data caches | {caches}, lines of 64 bytes |
| cores | {facts.cores} |
| memory bandwidth of one core ({known}) | {rates.bandwidth_gb_s:.3g} GB/s |
| float32 multiply-adds of one core ({known}) | {rates.multiply_add_gflops:.4g} GFLOPS |
| other float32 operations of one core ({known}) | {rates.other_gflops:.4g} GFLOPS |

A kernel is fast when its inner loop runs on full vector registers, has enough independent work to hide
latencies (about 4 cycles for a multiply-add, 10 to 20 for a division, some hundred for memory), and finds its
data in L1 or L2. Data that do not fit there come from memory at the bandwidth above, whatever is computed.
"""


def _describe_size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
