"""The studies of the measured target, at their shortest: what they count and print, never a time."""

from __future__ import annotations

import re

import numpy as np
import pytest

import seeds
from benchmarks import cpu
from seeds.inputs import draw_inputs
from tests.seeds.statements import STATEMENTS

MEASURING = [
    pytest.mark.slow,
    pytest.mark.needs("gcc"),
    pytest.mark.needs("bwrap", package="bubblewrap"),
]
ROW = re.compile(r"^silu +([\d.]+) +([\d.]+) +[\d.]+x +[\d.]+% +([\d.]+) +(\d+) +[\d.]+$", re.MULTILINE)


@pytest.mark.parametrize("name", cpu.PROBLEMS)
def test_numpy_computes_what_kernels_do(name: str) -> None:
    inputs = draw_inputs(seeds.load_problem(name).spec, "reduced", 0)
    wanted = STATEMENTS[name](*(array.astype(np.float64) for array in inputs))
    found = cpu.NUMPY[name](*inputs)
    assert np.linalg.norm(found - wanted) <= 1e-4 * np.linalg.norm(wanted)


class TestShortStudies:
    pytestmark = MEASURING

    def test_of_noise(self, capsys: pytest.CaptureFixture[str]) -> None:
        cpu.main(["noise", "--repetitions", "1", "--seconds", "0.5"])
        progress, told = capsys.readouterr().out.splitlines()
        assert re.fullmatch(r"  1: equal called faster [01], faster found [01], unstable [012]", progress)
        assert re.search(r"cores, load [\d.]+: of 1 equal kernels [01] were called faster; of 1 that", told)

    def test_of_runs(self, capsys: pytest.CaptureFixture[str]) -> None:
        cpu.main(["runs", "--problem", "silu", "--rounds", "1", "--plans", "1"])
        told = capsys.readouterr().out
        assert "rates nominal" in told or "rates measured" in told
        row = ROW.search(told)
        assert row or "silu                     unstable" in told
        if row:
            start, best, numpy_ms, kernels = map(float, row.groups())
            assert 0 < best <= start
            assert numpy_ms > 0
            assert kernels >= 2

    def test_of_runs_that_have_no_time_left(self, capsys: pytest.CaptureFixture[str]) -> None:
        cpu.main(["runs", "--problem", "silu", "--seconds", "-1"])
        assert "not run" in capsys.readouterr().out
