"""Sweeps of one knob."""

from __future__ import annotations

from random import Random

import pytest

from targets.nki.knobs.ir import LOOP_ORDER, LTILES, SCOPES, KernelIR
from targets.nki.knobs.neighbours import KNOBS, LEAST, MOST, neighbour_irs
from targets.nki.knobs.sampling import sample_ir
from targets.nki.knobs.validity import validity_report
from tests.support.workloads import WORKLOADS


def _others(ir: KernelIR, knob: str) -> list[object]:
    return [getattr(ir, name) for name in (LOOP_ORDER, LTILES, SCOPES) if name != knob]


@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize("name", ["matmul", "rmsnorm_matmul", "softmax"])
def test_a_sweep_turns_one_knob_to_valid_values(name: str, knob: str) -> None:
    ir = sample_ir(WORKLOADS[name].default, Random(4))
    found = neighbour_irs(ir, knob)
    assert len(found) <= MOST
    assert len(set(found)) == len(found)
    for item in found:
        assert item != ir
        assert _others(item, knob) == _others(ir, knob)
        assert validity_report(item) == []


@pytest.mark.parametrize("knob", KNOBS)
def test_a_sweep_of_a_matmul_has_five_points_or_more(knob: str) -> None:
    assert len(neighbour_irs(WORKLOADS["matmul"].default, knob)) >= LEAST


def test_a_sweep_is_the_same_each_time() -> None:
    ir = WORKLOADS["matmul"].default
    assert neighbour_irs(ir, SCOPES) == neighbour_irs(ir, SCOPES)
