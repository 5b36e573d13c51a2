"""What property tests do with points of the space: hold one against NumPy and the device, turn a knob."""

from __future__ import annotations

from random import Random

import numpy as np

from agent_core.knobs.interpret import interpreted
from agent_core.knobs.ir import LOOP_ORDER, LTILES, SCOPES, KernelIR, Scope
from agent_core.knobs.lowering import lowered
from agent_core.knobs.malformed import blocks_first, choices
from agent_core.knobs.render import render
from remote.judge.rules import offence
from tests.support.workloads import Workload, simulated


def check(workload: Workload, ir: KernelIR) -> None:
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


def turned(ir: KernelIR, rng: Random) -> KernelIR:
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
