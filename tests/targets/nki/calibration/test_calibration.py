"""Calibrations learn from hidden devices: simulators with other constants and mechanisms than the tables."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import median

import pytest

from nki_sim.calibration import (
    Calibration,
    MeasuredProgram,
    adjustable_constants,
    fit_calibration,
    load_calibrated,
)
from nki_sim.targets import Target
from nki_sim.timing.forecast import forecast_program
from targets.nki.calibration.micro_kernels import SMALL_PROBLEMS, calibration_kernels
from tests.targets.nki.calibration.hidden_devices import HIDDEN, TRN2, measure_all


def errors(target: Target, kernels: list[MeasuredProgram]) -> list[float]:
    return [abs(forecast_program(one.program, target).latency_ms / one.measured_ms - 1) for one in kernels]


def better_half(times: list[float]) -> set[int]:
    return set(sorted(range(len(times)), key=times.__getitem__)[: len(times) // 2])


def test_there_are_about_sixty_micro_kernels_and_a_dozen_small_ones() -> None:
    kernels = calibration_kernels()
    assert len({one.name for one in kernels}) == len(kernels)
    assert len(SMALL_PROBLEMS) == 12
    assert 50 <= len(kernels) - len(SMALL_PROBLEMS) <= 70


def test_a_device_as_the_table_says_moves_no_constant_far() -> None:
    micro = measure_all(TRN2)[:12]
    found = fit_calibration(TRN2, micro)
    for name, value in found.constants.items():
        assert value == pytest.approx(getattr(TRN2, name), rel=0.1), name


@pytest.mark.slow
@pytest.mark.parametrize("name", HIDDEN)
def test_after_forty_measurements_other_kernels_are_predicted_and_filtered(name: str) -> None:
    """The kernels that were not timed are predicted, and halved, as the device would have it."""
    kernels = measure_all(HIDDEN[name])
    chosen = set(random.Random(1).sample(range(len(kernels)), 40))
    timed = [one for number, one in enumerate(kernels) if number in chosen]
    others = [one for number, one in enumerate(kernels) if number not in chosen]
    found = fit_calibration(TRN2, timed)
    assert found.left_out_percent is not None
    assert found.before_percent is not None
    assert found.left_out_percent <= min(10.0, found.before_percent)
    after = found.apply(TRN2)
    assert median(errors(after, others)) <= 0.1
    assert median(errors(after, others)) < median(errors(TRN2, others))
    measured = [one.measured_ms for one in others]
    predicted = [forecast_program(one.program, after).latency_ms for one in others]
    kept = better_half(predicted)
    right = len(kept & better_half(measured))
    print(
        f"{name}: left out {found.before_percent:.1f} %, then {found.left_out_percent:.1f} %; the others "
        f"{100 * median(errors(TRN2, others)):.1f} %, then {100 * median(errors(after, others)):.1f} %; "
        f"right half: {right} of {len(kept)}"
    )
    assert right >= 0.9 * len(kept)
    assert found.constants.get("address_rotation", True) is HIDDEN[name].address_rotation


def test_documented_constants_hardly_move_and_zeros_do_not() -> None:
    widths = adjustable_constants(TRN2)
    assert widths["dma_transpose_hbm_ratio"] < widths["semaphore_ns"]
    assert "activation_function_cycles" in widths
    assert "activation_function_cycles" not in adjustable_constants(
        replace(TRN2, activation_function_cycles=0)
    )


def test_a_calibration_is_of_one_target_and_names_constants_that_exist() -> None:
    found = Calibration("trn2", {"semaphore_ns": 50.0, "address_rotation": False})
    assert (found.apply(TRN2).semaphore_ns, found.apply(TRN2).address_rotation) == (50.0, False)
    assert load_calibrated("trn2", {}) is TRN2
    assert load_calibrated("trn2", {"semaphore_ns": 50.0}).semaphore_ns == 50.0
    with pytest.raises(ValueError, match="does not apply to trn1"):
        found.apply(replace(TRN2, name="trn1"))
    with pytest.raises(ValueError, match="constants that targets lack: no_such"):
        load_calibrated("trn2", {"no_such": 1.0})


def test_nothing_can_be_learnt_from_programs_that_the_model_refuses() -> None:
    with pytest.raises(ValueError, match="refuses every measured program"):
        fit_calibration(TRN2, [])
