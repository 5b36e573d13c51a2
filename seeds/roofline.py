"""The plain roofline bound of NKIBench, so that percentages of peak compare with published ones.

T = max(bytes / bandwidth, matmul FLOPs / matmul peak, other FLOPs / other peak); percent of peak is
T / latency. The constants are NKIBench's for one NeuronCore, and so is how a specification counts its other
FLOPs: those of the formula as it is written, each of them one whatever it costs, mostly without products and
sums with constants, which instructions do on the way. Conventions to compare by, not what this project
believes of the hardware (that is the simulator's tight bound).
"""

from __future__ import annotations

from dataclasses import dataclass

from seeds.errors import UnknownTargetError
from seeds.spec import Work


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of one core: GB/s (1e9 bytes), TFLOPS for float32 matmul, GFLOPS for all else."""

    bandwidth_gb_s: float
    matmul_tflops: float
    other_gflops: float


PEAKS: dict[str, Peaks] = {
    "trn1": Peaks(bandwidth_gb_s=440.2, matmul_tflops=23.75, other_gflops=286.8),
    "trn2": Peaks(bandwidth_gb_s=640.0, matmul_tflops=19.75, other_gflops=550.0),
}


def roofline_ms(work: Work, target: str) -> float:
    """Return the plain lower bound on latency, in milliseconds.

    Raises:
        UnknownTargetError: there are no constants for `target`.
    """
    if target not in PEAKS:
        raise UnknownTargetError(target, PEAKS)
    peaks = PEAKS[target]
    seconds = max(
        work.total_bytes / (peaks.bandwidth_gb_s * 1e9),
        work.matmul_flops / (peaks.matmul_tflops * 1e12),
        work.other_flops / (peaks.other_gflops * 1e9),
    )
    return seconds * 1e3
