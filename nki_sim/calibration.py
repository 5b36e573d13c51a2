"""Fits the constants of a target to measured programs, as far as these identify them.

Constants move on a logarithmic scale. Each is held near its value in the table, the more so the better its
source: what no kernel depends on stays where it is. The errors of kernels are weighed robustly, because a
mechanism that the model lacks makes some of them large. Switches, which are the on-off constants of the
compiler and the device and how far engines look ahead, are tried one after the other; one is thrown only if
the fit becomes clearly better.

The error of a family left out comes from a fit without that family: one more step from the fit of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import exp, log
from statistics import median
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from nki_sim.errors import ScheduleError
from nki_sim.program.ir import Program
from nki_sim.targets import Target, load
from nki_sim.timing.forecast import forecast_program

NOISE = 0.02
"""Relative error that a fit does not try to explain."""

PRIORS = {"D": 0.05, "M": 0.2, "C": 0.5, "I": 0.7}
"""By source, how far the logarithm of a constant may move before that counts like an error of `NOISE`."""

_UNITS = ("_ns", "_cycles", "_ratio", "_stretch")
_WINDOWS = {"issue_window": (1, 2, 4, 12, 4096), "dma_window": (1, 4, 16)}
_STEP, _MOST, _ROUNDS = 0.1, 3.5, 5
_SWITCH_GAIN = 0.9
_SMALLEST_MS = 1e-6

Floats = npt.NDArray[np.float64]
Value = float | bool


@dataclass(frozen=True, eq=False)
class MeasuredProgram:
    """A traced program and what a device took for it; `family` names what it has in common with others."""

    name: str
    family: str
    program: Program
    measured_ms: float


@dataclass(frozen=True, slots=True)
class CalibratedKernel:
    """What a calibration makes of one kernel; None where the model refuses the kernel.

    `left_out_ms` is predicted from a fit without the kernel's family.
    """

    name: str
    family: str
    measured_ms: float
    before_ms: float | None
    after_ms: float | None
    left_out_ms: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of a target that differ from its table, and what they were fitted to."""

    target: str
    constants: Mapping[str, Value]
    kernels: tuple[CalibratedKernel, ...] = ()

    def apply(self, target: Target) -> Target:
        """The target with the calibrated constants.

        Raises:
            ValueError: the calibration is of another target, or names constants that targets do not have.
        """
        if target.name != self.target:
            raise ValueError(f"a calibration of {self.target} does not apply to {target.name}")
        unknown = self.constants.keys() - {one.name for one in fields(Target)}
        if unknown:
            names = ", ".join(sorted(unknown))
            raise ValueError(f"the calibration has constants that targets lack: {names}; repeat it")
        changed: dict[str, Any] = dict(self.constants)
        return replace(target, **changed)

    @property
    def before_percent(self) -> float | None:
        """Median error of the table's constants, in percent."""
        return _median_error((one.measured_ms, one.before_ms) for one in self.kernels)

    @property
    def left_out_percent(self) -> float | None:
        """Median error of each kernel predicted from a fit without its family, in percent."""
        return _median_error((one.measured_ms, one.left_out_ms) for one in self.kernels)


def _median_error(pairs: Iterator[tuple[float, float | None]]) -> float | None:
    errors = [abs(predicted - measured) / measured for measured, predicted in pairs if predicted is not None]
    return 100.0 * median(errors) if errors else None


def load_calibrated(name: str, constants: Mapping[str, Value]) -> Target:
    """Return the target of this name with other values of some constants.

    Raises:
        ValueError: targets have no such constants.
    """
    target = load(name)
    return Calibration(name, constants).apply(target) if constants else target


def fit_calibration(target: Target, measured: Sequence[MeasuredProgram]) -> Calibration:
    """Fit the constants of a target to measured programs.

    Raises:
        ValueError: the model can predict none of the programs.
    """
    before = [_predict_ms(one.program, target) for one in measured]
    usable = [one for one, ms in zip(measured, before, strict=True) if ms is not None]
    if not usable:
        raise ValueError("the model refuses every measured program")
    found = _Fit(target, usable).refine(_ROUNDS)
    for name, value in _switches(target):
        tried = found.throw_switch(name, value)
        if tried.loss < _SWITCH_GAIN * found.loss:
            found = tried.refine(_ROUNDS)
    left_out = dict(found.predict_left_out())
    after = [_predict_ms(one.program, found.changed_target) for one in measured]
    kernels = (
        CalibratedKernel(one.name, one.family, one.measured_ms, was, now, left_out.get(one.name))
        for one, was, now in zip(measured, before, after, strict=True)
    )
    return Calibration(target.name, _exact_changes(found.changed_target, target), tuple(kernels))


def _predict_ms(program: Program, target: Target) -> float | None:
    try:
        return forecast_program(program, target).latency_ms
    except ScheduleError:
        return None


def _switches(target: Target) -> Iterator[tuple[str, Value]]:
    """Constants and other values of them that are tried; what is documented is no switch."""
    for one in fields(target):
        value = getattr(target, one.name)
        if isinstance(value, bool) and target.sources[one.name] != "D":
            yield one.name, not value
    for name, values in _WINDOWS.items():
        if hasattr(target, name):
            yield from ((name, value) for value in values)


def _exact_changes(changed: Target, target: Target) -> dict[str, Any]:
    names = (one.name for one in fields(Target) if one.name not in {"name", "sources"})
    pairs = {name: (getattr(changed, name), getattr(target, name)) for name in names}
    return {name: new for name, (new, old) in pairs.items() if new != old}


def adjustable_constants(target: Target) -> dict[str, float]:
    """The constants that a fit moves: times and rates that are not zero; with the widths of their priors."""
    return {
        one.name: PRIORS[target.sources[one.name]]
        for one in fields(target)
        if (one.name.endswith(_UNITS) or "_per_ns" in one.name)
        and not isinstance(getattr(target, one.name), bool)
        and getattr(target, one.name) > 0
    }


@dataclass(frozen=True, eq=False)
class _Fit:
    """Constants as logarithms of ratios to the target's table, and how well they explain the programs."""

    target: Target
    measured: Sequence[MeasuredProgram]
    shifts: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def names(self) -> list[str]:
        return list(adjustable_constants(self.target))

    @property
    def priors(self) -> Floats:
        return np.array(list(adjustable_constants(self.target).values()))

    @property
    def current(self) -> Floats:
        return self.shifts if len(self.shifts) else np.zeros(len(self.names))

    @property
    def changed_target(self) -> Target:
        """The target with the fitted constants."""
        return self._shifted_target(self.current)

    @cached_property
    def loss(self) -> float:
        """How badly the constants explain the programs, in squares of the noise."""
        return self._loss(self.errors, self.current)

    def refine(self, rounds: int) -> Self:
        """Take damped Gauss-Newton steps while they help."""
        shifts = self.current
        errors = self._errors(shifts)
        loss = self._loss(errors, shifts)
        for _ in range(rounds):
            slopes = self._slopes(shifts, errors)
            step = self._solve(slopes, errors, shifts)
            for damping in (1.0, 0.5, 0.2):
                tried = np.clip(shifts + damping * step, -_MOST, _MOST)
                found = self._errors(tried)
                better = self._loss(found, tried)
                if better < loss:
                    break
            else:
                break
            gained, shifts, errors, loss = loss - better, tried, found, better
            if gained < 0.01 * loss:
                break
        return replace(self, shifts=shifts)

    def throw_switch(self, name: str, value: Value) -> Self:
        """The fit with another value of a constant, after one step along the slopes of this fit."""
        changed: dict[str, Any] = {name: value}
        tried = replace(self, target=replace(self.target, **changed))
        step = self._solve(self._slopes_here, tried.errors, self.current)
        moved = replace(tried, shifts=np.clip(self.current + step, -_MOST, _MOST))
        return min(tried, moved, key=lambda one: one.loss)

    @cached_property
    def errors(self) -> Floats:
        """ln(predicted / measured) of each program."""
        return self._errors(self.current)

    @cached_property
    def _slopes_here(self) -> Floats:
        return self._slopes(self.current, self.errors)

    def predict_left_out(self) -> Iterator[tuple[str, float]]:
        """The latency of each kernel from a fit without its family."""
        shifts = self.current
        errors, slopes = self.errors, self._slopes_here
        families = np.array([one.family for one in self.measured])
        for family in dict.fromkeys(families.tolist()):
            kept = families != family
            step = self._solve(slopes[kept], errors[kept], shifts) if kept.any() else np.zeros(len(shifts))
            changed = self._shifted_target(np.clip(shifts + step, -_MOST, _MOST))
            for one in self.measured:
                if one.family == family:
                    found = _predict_ms(one.program, changed)
                    if found is not None:
                        yield one.name, found

    def _shifted_target(self, shifts: Floats) -> Target:
        moved: dict[str, Any] = {
            name: getattr(self.target, name) * exp(shift)
            for name, shift in zip(self.names, shifts.tolist(), strict=True)
            if shift
        }
        return replace(self.target, **moved)

    def _errors(self, shifts: Floats) -> Floats:
        changed = self._shifted_target(shifts)
        return np.array([self._error(one, changed) for one in self.measured])

    def _error(self, one: MeasuredProgram, target: Target) -> float:
        found = _predict_ms(one.program, target)
        return log(max(found or _SMALLEST_MS, _SMALLEST_MS) / one.measured_ms)

    def _slopes(self, shifts: Floats, errors: Floats) -> Floats:
        columns = []
        for place in range(len(shifts)):
            moved = shifts.copy()
            moved[place] += _STEP
            columns.append((self._errors(moved) - errors) / _STEP)
        return np.stack(columns, axis=1)

    def _weights(self, errors: Floats) -> Floats:
        """Huber's: errors beyond three times the noise count linearly."""
        return np.minimum(1.0, 3 * NOISE / np.maximum(np.abs(errors), 1e-9))

    def _solve(self, slopes: Floats, errors: Floats, shifts: Floats) -> Floats:
        weights = self._weights(errors)[:, None] / NOISE**2
        held = np.diag(1.0 / self.priors**2)
        normal = slopes.T @ (weights * slopes) + held
        pull = slopes.T @ (weights[:, 0] * errors) + held @ shifts
        return np.asarray(-np.linalg.solve(normal, pull))

    def _loss(self, errors: Floats, shifts: Floats) -> float:
        size = np.abs(errors) / NOISE
        data = np.where(size <= 3, size**2, 6 * size - 9)
        return float(data.sum() + ((shifts / self.priors) ** 2).sum())
