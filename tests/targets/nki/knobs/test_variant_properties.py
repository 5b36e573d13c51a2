"""Every variant has a space like that of its workload: its points are right, and its hints help.

`KNOB_SEEDS` says how many points are drawn per variant; one by default. A full run draws from half of the
variants, chosen by a seed, and `SWEEP=all` from each.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from targets.nki.knobs.graph import Graph
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.neighbours import is_valid
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.report import follow_hint
from targets.nki.knobs.sampling import sample_any_point, sample_ir
from targets.nki.knobs.validity import validity_report
from targets.nki.knobs.variants import IDENTITY, make_variants
from tests.support.knob_points import check_point, turn_knob
from tests.support.sweeps import parametrize_sweep, sample_sweep
from tests.support.workloads import WORKLOADS

SEEDS = int(os.environ.get("KNOB_SEEDS", "1"))

VARIANTS = {
    f"{name} {variant.name}": (name, variant.graph)
    for name, workload in WORKLOADS.items()
    for variant in make_variants(workload.graph)
    if variant.name != IDENTITY
}

each = pytest.mark.parametrize("name", VARIANTS)
drawn = pytest.mark.parametrize("seed", range(SEEDS))


def _rng(name: str, seed: int) -> Random:
    return Random(f"{name} {seed}")


def _graph(name: str) -> Graph:
    return VARIANTS[name][1]


@parametrize_sweep("name", VARIANTS, quick=8)
def test_the_default_is_valid_and_right(name: str) -> None:
    ir = default_ir(_graph(name))
    assert validity_report(ir) == []
    assert render_kernel(ir) == render_kernel(ir)
    check_point(WORKLOADS[VARIANTS[name][0]], ir)


@parametrize_sweep("name", sample_sweep(VARIANTS, len(VARIANTS) // 2, seed=29), quick=8)
@drawn
def test_a_sample_and_what_turned_knobs_make_of_it_are_right(name: str, seed: int) -> None:
    rng, workload = _rng(name, seed), WORKLOADS[VARIANTS[name][0]]
    ir = sample_ir(default_ir(_graph(name)), rng)
    assert validity_report(ir) == []
    check_point(workload, ir)
    for item in (turn_knob(ir, rng) for _ in range(15)):
        assert is_valid(item) == (validity_report(item) == [])
        if is_valid(item):
            ir = item
    check_point(workload, ir)


@each
@drawn
def test_each_hint_removes_its_failure(name: str, seed: int) -> None:
    rng, graph = _rng(name, seed), _graph(name)
    near = default_ir(graph)
    for ir in (sample_any_point(graph, rng), *(turn_knob(near, rng) for _ in range(8))):
        for failure in validity_report(ir):
            left = {item.key for item in validity_report(follow_hint(ir, failure))}
            assert failure.key not in left, f"{failure}\n{ir}"
