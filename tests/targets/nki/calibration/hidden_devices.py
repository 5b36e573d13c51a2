"""Devices that are not what the model's tables say: simulators with other constants and mechanisms."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from nki_sim import ArraySpec, targets, trace
from nki_sim.calibration import MeasuredProgram, adjustable_constants
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.forecast import forecast_program
from seeds.faults import REDUCED
from targets.nki.calibration.micro_kernels import CalibrationKernel, calibration_kernels

TRN2 = targets.load("trn2")


def move_constants(seed: int, octaves: float) -> Target:
    """Trainium 2 with every uncertain time and rate moved by up to `octaves` factors of two."""
    rng = random.Random(seed)
    names = [name for name in adjustable_constants(TRN2) if TRN2.sources[name] != "D"]
    return replace(
        TRN2, **{name: getattr(TRN2, name) * 2 ** rng.uniform(-octaves, octaves) for name in names}
    )


HIDDEN = {
    "moved constants": move_constants(1, 0.7),
    "no address rotation": replace(move_constants(2, 0.3), address_rotation=False),
    "other descriptor costs": replace(
        move_constants(3, 0.2), dma_descriptor_overhead_ns=60.0, dma_descriptor_ns=1500.0
    ),
    # 16 KiB of a partition are left: adamw and rope spill there, and fit as the table has it.
    "spills where the table fits": replace(
        move_constants(4, 0.3), sbuf_partition_bytes=TRN2.sbuf_reserved_bytes + (16 << 10)
    ),
    # A compiler that keeps tiles in place and instructions in the order of the program.
    "other switches of the SDK": replace(move_constants(5, 0.3), address_rotation=False, issue_window=1),
}


@cache
def _trace_all() -> dict[str, Program]:
    return {kernel.name: _trace_kernel(kernel) for kernel in calibration_kernels()}


def _trace_kernel(kernel: CalibrationKernel) -> Program:
    """The program of a calibration kernel on Trainium 2."""
    spec = kernel.problem.spec
    dims = spec.dims(REDUCED)
    shapes = [ArraySpec(one.resolve_kernel_shape(dims), one.dtype) for one in spec.inputs]
    return trace(kernel.source, args=spec.call_arguments(shapes, lambda value: value), target="trn2")


def measure(kernel: CalibrationKernel, device: Target, noise: random.Random) -> MeasuredProgram:
    """What a hidden device takes for a kernel, give or take half a percent."""
    program = _trace_all()[kernel.name]
    took_ms = forecast_program(program, device).latency_ms * noise.gauss(1.0, 0.005)
    return MeasuredProgram(kernel.name, kernel.family, program, took_ms)


def measure_all(device: Target) -> list[MeasuredProgram]:
    """All calibration kernels on a hidden device."""
    noise = random.Random(7)
    return [measure(kernel, device, noise) for kernel in calibration_kernels()]
