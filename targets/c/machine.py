"""What this machine is, and what it can do: read from the system, and measured by `agentctl calibrate`.

Rates that were measured are kept in a file of the user's cache folder, one for each kind of CPU. Without
them, rates follow from the clock and the widest vector unit, and every use of them says "nominal". Models are
told of both in a file of the prompt pack that is made when prompts are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from state.atomic_files import atomic_write
from targets.base import PeakRates

_LANES = (("avx512f", 16), ("avx2", 8), ("avx", 8), ("sse2", 4), ("asimd", 4))
"""Lanes of float32 in the widest registers, by feature; the first feature that the CPU has counts."""

_FMA_PIPES, _FLOPS_PER_FMA = 2, 2
_NOMINAL_GHZ, _NOMINAL_GB_S = 2.5, 10.0
_FEATURES = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_vnni",
             "amx_bf16", "asimd", "asimdhp", "bf16", "sve", "sve2")  # fmt: skip


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """One kind of CPU: model, machine (`x86_64`, `aarch64`), cores that this process may use, vector
    features, cache sizes in bytes by level, and the clock in GHz where the system says it.
    """

    model: str
    machine: str
    cores: int
    features: tuple[str, ...]
    cache_bytes: tuple[tuple[str, int], ...]
    clock_ghz: float | None

    @property
    def float_lanes(self) -> int:
        """Lanes of float32 in the widest vector register."""
        return next((lanes for feature, lanes in _LANES if feature in self.features), 1)

    @property
    def digest(self) -> str:
        """A short digest of what decides the rates."""
        return hashlib.sha256(repr((self.model, self.machine, self.cache_bytes)).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class CpuRates:
    """Rates of one core: memory in GB/s (1e9 bytes read and written), float32 multiply-adds in GFLOPS, other
    float32 operations in GFLOPS. `measured` is false for rates that follow from the data sheet.

    Kernels are called again and again with the same arrays, so a small problem stays in a cache.
    `cached_gb_s` holds the size of each cache and the rate of arrays that fit in it.
    """

    bandwidth_gb_s: float
    multiply_add_gflops: float
    other_gflops: float
    measured: bool = True
    cached_gb_s: tuple[tuple[int, float], ...] = ()

    @property
    def peaks(self) -> PeakRates:
        """The same rates as every target gives them."""
        return PeakRates(
            self.bandwidth_gb_s,
            self.multiply_add_gflops / 1e3,
            self.other_gflops,
            cached_gb_s=self.cached_gb_s,
        )


@cache
def read_cpu_facts() -> CpuFacts:
    """Read /proc and /sys; what they do not say is left out."""
    text = _read_text(Path("/proc/cpuinfo"))
    fields = {
        match[1].strip(): match[2].strip()
        for match in re.finditer(r"^([^:\n]+):[ \t]*(.*)$", text, re.MULTILINE)
    }
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    clock = fields.get("cpu MHz")
    return CpuFacts(
        model=fields.get("model name") or fields.get("CPU part") or platform.processor() or "unknown CPU",
        machine=platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        features=tuple(name for name in _FEATURES if name in flags),
        cache_bytes=tuple(_read_caches()),
        clock_ghz=float(clock) / 1e3 if clock else None,
    )


def _read_caches() -> list[tuple[str, int]]:
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, size = _read_text(folder / "type").strip(), _read_text(folder / "size").strip()
        if kind != "Instruction" and (match := re.fullmatch(r"(\d+)([KM])", size)):
            factor = 1 << (10 if match[2] == "K" else 20)
            found.append((f"L{_read_text(folder / 'level').strip()}", int(match[1]) * factor))
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def rates_path() -> Path:
    """Return the file that holds this machine's measured rates."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache_home) / "nki-kernel-agent" / f"cpu-{read_cpu_facts().digest}.json"


def load_rates() -> CpuRates:
    """Return the measured rates of this machine; nominal ones if it was not calibrated."""
    try:
        kept = json.loads(rates_path().read_text())
        cached = tuple((int(size), float(rate)) for size, rate in kept.pop("cached_gb_s", ()))
        return CpuRates(**kept, cached_gb_s=cached)
    except (OSError, ValueError, TypeError):
        return nominal_rates(read_cpu_facts())


def save_rates(rates: CpuRates) -> Path:
    """Keep measured rates; return the file."""
    path = rates_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        part.write_text(json.dumps(asdict(rates), indent=1))
    return path


def nominal_rates(facts: CpuFacts) -> CpuRates:
    """Return rates from clock and vector width: two multiply-add pipes, and one operation a lane and
    cycle."""
    lanes_ghz = facts.float_lanes * (facts.clock_ghz or _NOMINAL_GHZ)
    return CpuRates(
        bandwidth_gb_s=_NOMINAL_GB_S,
        multiply_add_gflops=lanes_ghz * _FMA_PIPES * _FLOPS_PER_FMA,
        other_gflops=lanes_ghz * _FMA_PIPES,
        measured=False,
    )


ARCHITECTURE_FILE = "c/architecture.md"


def render_prompt_files() -> dict[str, str]:
    """Return the generated files of the prompt pack, by path."""
    return {ARCHITECTURE_FILE: render_architecture(read_cpu_facts(), load_rates())}


def render_architecture(facts: CpuFacts, rates: CpuRates) -> str:
    """Return what models are told about the CPU."""
    caches = ", ".join(f"{name} {describe_size(size)}" for name, size in facts.cache_bytes) or "unknown"
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


def describe_size(size: int) -> str:
    """Return a size as KiB or MiB."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
