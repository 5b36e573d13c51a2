"""What a device taught the performance model: constants that differ from the target's table."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool, StringConstraints

from state.model.base import FrozenModel, PositiveMs

CalibrationName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$")]
"""The name of a calibration, by default that of its target and SDK; it is the name of a file, too."""

ConstantName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
ConstantValue = StrictBool | Annotated[float, Field(allow_inf_nan=False, ge=0)]


class CalibratedTime(FrozenModel):
    """One kernel that a device timed: predicted before, after, and from a fit without its family; ms.

    A prediction is None where the model refuses the kernel.
    """

    name: Annotated[str, Field(max_length=120)]
    family: Annotated[str, Field(max_length=120)]
    measured_ms: PositiveMs
    before_ms: PositiveMs | None = None
    after_ms: PositiveMs | None = None
    left_out_ms: PositiveMs | None = None


class DeviceCalibration(FrozenModel):
    """A named calibration of a target, from the times of one host with one toolchain.

    `before_percent` and `left_out_percent` are median errors: of the target's table, and of predictions of
    each family from a fit without it.
    """

    name: CalibrationName
    target: str
    host: str
    toolchain: str
    model_version: int
    constants: dict[ConstantName, ConstantValue]
    before_percent: float | None = None
    left_out_percent: float | None = None
    kernels: Annotated[tuple[CalibratedTime, ...], Field(max_length=1000)] = ()
