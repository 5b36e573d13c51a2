"""Every valid point is right, and every invalid one is refused with a hint that helps.

`KNOB_SEEDS` says how many points are drawn per workload; one by default.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.neighbours import is_valid
from targets.nki.knobs.report import follow_hint
from targets.nki.knobs.sampling import sample_any_point, sample_ir
from targets.nki.knobs.validity import validity_report
from tests.support.knob_points import check_point, turn_knob
from tests.support.sweeps import parametrize_sweep
from tests.support.workloads import WORKLOADS

SEEDS = int(os.environ.get("KNOB_SEEDS", "1"))

each = pytest.mark.parametrize("name", WORKLOADS)


def _rng(name: str, seed: int) -> Random:
    return Random(f"{name} {seed}")


@each
def test_the_default_is_valid_and_right(name: str) -> None:
    workload = WORKLOADS[name]
    ir = workload.default
    assert validity_report(ir) == []
    check_point(workload, ir)


@each
@parametrize_sweep("seed", range(SEEDS))
def test_a_sample_is_valid_and_right(name: str, seed: int) -> None:
    workload = WORKLOADS[name]
    ir = sample_ir(workload.default, _rng(name, seed))
    assert validity_report(ir) == []
    check_point(workload, ir)


@each
@parametrize_sweep("seed", range(SEEDS))
def test_what_stays_valid_when_knobs_are_turned_is_right(name: str, seed: int) -> None:
    """Also points that no sample leads to."""
    workload, rng = WORKLOADS[name], _rng(name, seed)
    ir = sample_ir(workload.default, rng)
    for item in (turn_knob(ir, rng) for _ in range(30)):
        if is_valid(item):
            ir = item
    assert validity_report(ir) == []
    check_point(workload, ir)


@each
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_hint_removes_its_failure(name: str, seed: int) -> None:
    rng = _rng(name, seed)
    graph = WORKLOADS[name].graph
    near = sample_ir(default_ir(graph), rng)
    for ir in (
        sample_any_point(graph, rng),
        sample_any_point(graph, rng),
        *(turn_knob(near, rng) for _ in range(10)),
    ):
        for failure in validity_report(ir):
            left = {item.key for item in validity_report(follow_hint(ir, failure))}
            assert failure.key not in left, f"{failure}\n{ir}"


@each
def test_what_is_quickly_found_valid_has_an_empty_report(name: str) -> None:
    rng = _rng(name, 0)
    ir = WORKLOADS[name].default
    for item in (turn_knob(ir, rng) for _ in range(40)):
        assert is_valid(item) == (validity_report(item) == [])


@each
def test_following_hints_ends_in_a_valid_ir(name: str) -> None:
    rng = _rng(name, 1)
    ir = sample_any_point(WORKLOADS[name].graph, rng)
    for _ in range(200):
        report = validity_report(ir)
        if not report:
            return
        ir = follow_hint(ir, report[0])
    pytest.fail(f"still invalid: {report[0]}")
