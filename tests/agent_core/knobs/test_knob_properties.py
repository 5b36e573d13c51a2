"""Every valid point is right, and every invalid one is refused with a hint that helps.

`KNOB_SEEDS` says how many points are drawn per workload; a few by default.
"""

from __future__ import annotations

import os
from random import Random

import numpy as np
import pytest

from agent_core.knobs.interpret import interpreted
from agent_core.knobs.ir import LOOP_ORDER, LTILES, SCOPES, KernelIR, Scope
from agent_core.knobs.lowering import lowered
from agent_core.knobs.malformed import blocks_first, choices
from agent_core.knobs.narrowing import default
from agent_core.knobs.neighbours import is_valid
from agent_core.knobs.render import render
from agent_core.knobs.report import followed
from agent_core.knobs.sampling import anywhere, sample
from agent_core.knobs.validity import validity_report
from remote.judge.rules import offence
from tests.support.workloads import WORKLOADS, Workload, simulated

SEEDS = int(os.environ.get("KNOB_SEEDS", "2"))

each = pytest.mark.parametrize("name", WORKLOADS)


def _rng(name: str, seed: int) -> Random:
    return Random(f"{name} {seed}")


def _check(workload: Workload, ir: KernelIR) -> None:
    """An IR computes the workload, as a tree and as a kernel that the judge's rules let pass."""
    inputs = workload.inputs()
    source = render(ir)
    assert offence(source.encode()) is None, source
    directly = interpreted(lowered(ir), inputs)
    on_device = simulated(source, inputs)
    assert workload.error(directly, inputs) < workload.tolerance, source
    assert workload.error(on_device, inputs) < workload.tolerance, source
    # The order of additions is all that tells the two apart, and the roundings that it tips over.
    apart = np.linalg.norm(directly.astype(np.float64) - on_device.astype(np.float64))
    assert apart <= 0.2 * workload.tolerance * np.linalg.norm(on_device.astype(np.float64)), source


def _turned(ir: KernelIR, rng: Random) -> KernelIR:
    """An IR with one knob turned somewhere, to anything that it can be."""
    knob = rng.choice((LOOP_ORDER, LTILES, SCOPES))
    if knob == LOOP_ORDER:
        loops = list(ir.loop_order)
        rng.shuffle(loops)
        return ir.turned((LOOP_ORDER,), blocks_first(tuple(loops)))
    if knob == LTILES:
        dim = rng.choice(list(ir.ltiles))
        return ir.turned((LTILES, dim), rng.choice(choices(ir.graph, dim)))
    buffer = rng.choice(ir.plan.buffers)
    dim = rng.choice(buffer.scoped)
    allowed = [scope for scope in Scope if dim != buffer.partial or scope is not Scope.PER_TILE]
    return ir.turned((SCOPES, buffer.name, dim), rng.choice(allowed))


@each
def test_the_default_is_valid_and_right(name: str) -> None:
    workload = WORKLOADS[name]
    ir = workload.default
    assert validity_report(ir) == []
    _check(workload, ir)


@each
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_sample_is_valid_and_right(name: str, seed: int) -> None:
    workload = WORKLOADS[name]
    ir = sample(workload.default, _rng(name, seed))
    assert validity_report(ir) == []
    _check(workload, ir)


@each
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_stays_valid_when_knobs_are_turned_is_right(name: str, seed: int) -> None:
    """Also points that no sample leads to."""
    workload, rng = WORKLOADS[name], _rng(name, seed)
    ir = sample(workload.default, rng)
    for turned in (_turned(ir, rng) for _ in range(30)):
        if is_valid(turned):
            ir = turned
    assert validity_report(ir) == []
    _check(workload, ir)


@each
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_hint_removes_its_failure(name: str, seed: int) -> None:
    rng = _rng(name, seed)
    graph = WORKLOADS[name].graph
    near = sample(default(graph), rng)
    for ir in (anywhere(graph, rng), anywhere(graph, rng), *(_turned(near, rng) for _ in range(10))):
        for failure in validity_report(ir):
            left = {item.key for item in validity_report(followed(ir, failure))}
            assert failure.key not in left, f"{failure}\n{ir}"


@each
def test_what_is_quickly_found_valid_has_an_empty_report(name: str) -> None:
    rng = _rng(name, 0)
    ir = WORKLOADS[name].default
    for turned in (_turned(ir, rng) for _ in range(40)):
        assert is_valid(turned) == (validity_report(turned) == [])


@each
def test_following_hints_ends_in_a_valid_ir(name: str) -> None:
    rng = _rng(name, 1)
    ir = anywhere(WORKLOADS[name].graph, rng)
    for _ in range(200):
        report = validity_report(ir)
        if not report:
            return
        ir = followed(ir, report[0])
    pytest.fail(f"still invalid: {report[0]}")
