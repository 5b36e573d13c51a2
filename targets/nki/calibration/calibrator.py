"""Makes a calibration from the times that a device took: traces become programs, and constants are fitted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import nki_sim
from nki_sim import protocol, targets
from nki_sim.calibration import MeasuredProgram, fit_calibration
from nki_sim.errors import SimError
from state.model import CalibratedTime, DeviceCalibration
from targets.nki.calibration.micro_kernels import CalibrationKernel, calibration_kernels

__all__ = ["CalibrationKernel", "TimedKernel", "calibration_kernels", "default_name", "fit_times"]

_VERSION = re.compile(r"neuronx-cc (\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A kernel with a device's time for it, and the tracer's reply."""

    kernel: CalibrationKernel
    measured_ms: float
    reply: bytes


def default_name(target: str, toolchain: str) -> str:
    """Return the target and the version of the SDK's compiler, as trn2@2.33; the target if none is told."""
    version = _VERSION.search(toolchain)
    return f"{target}@{version[1]}" if version else target


def fit_times(
    timed: Sequence[TimedKernel], *, name: str, target: str, host: str, toolchain: str
) -> DeviceCalibration:
    """Fit the constants of a target to times of one host.

    Raises:
        ValueError: the model can predict none of the kernels.
    """
    programs = []
    for one in timed:
        try:
            program = protocol.parse_reply(one.reply)
        except SimError:
            continue  # the model cannot follow it: its time says nothing about constants
        programs.append(MeasuredProgram(one.kernel.name, one.kernel.family, program, one.measured_ms))
    found = fit_calibration(targets.load(target), programs)
    return DeviceCalibration(
        name=name,
        target=target,
        host=host,
        toolchain=toolchain,
        model_version=nki_sim.MODEL_VERSION,
        constants=dict(sorted(found.constants.items())),
        before_percent=found.before_percent,
        left_out_percent=found.left_out_percent,
        kernels=tuple(
            CalibratedTime(
                name=one.name,
                family=one.family,
                measured_ms=one.measured_ms,
                before_ms=one.before_ms,
                after_ms=one.after_ms,
                left_out_ms=one.left_out_ms,
            )
            for one in found.kernels
        ),
    )
