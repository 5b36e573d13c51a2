"""What property tests do with points of the space: hold one against NumPy and the device, turn a knob."""

from __future__ import annotations

from hashlib import sha256
from random import Random

import numpy as np

import nki_sim
from nki_sim import ArraySpec
from targets.nki.judge.rules import find_first_offence
from targets.nki.knobs.interpret import interpret_kernel
from targets.nki.knobs.ir import LOOP_ORDER, LTILES, SCOPES, KernelIR, Scope
from targets.nki.knobs.knob_values import block_choices, put_blocks_first
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.render import render_kernel
from tests.support.workloads import Workload, simulate_source


def check_point(workload: Workload, ir: KernelIR) -> None:
    """An IR computes the workload, as a tree and as a kernel that the judge's rules let pass."""
    inputs = workload.inputs()
    source = render_kernel(ir)
    assert find_first_offence(source.encode()) is None, source
    directly = interpret_kernel(lower_kernel(ir), inputs)
    on_device = simulate_source(source, inputs)
    assert workload.error(directly, inputs) < workload.tolerance, source
    assert workload.error(on_device, inputs) < workload.tolerance, source
    # The order of additions is all that tells the two apart, and the roundings that it tips over.
    apart = np.linalg.norm(directly.astype(np.float64) - on_device.astype(np.float64))
    assert apart <= 0.2 * workload.tolerance * np.linalg.norm(on_device.astype(np.float64)), source


def turn_knob(ir: KernelIR, rng: Random) -> KernelIR:
    """An IR with one knob turned somewhere, to anything that it can be."""
    knob = rng.choice((LOOP_ORDER, LTILES, SCOPES))
    if knob == LOOP_ORDER:
        loops = list(ir.loop_order)
        rng.shuffle(loops)
        return ir.with_knob((LOOP_ORDER,), put_blocks_first(tuple(loops)))
    if knob == LTILES:
        dim = rng.choice(list(ir.ltiles))
        return ir.with_knob((LTILES, dim), rng.choice(block_choices(ir.graph, dim)))
    buffer = rng.choice(ir.plan.buffers)
    dim = rng.choice(buffer.scoped_dims)
    allowed = [scope for scope in Scope if dim != buffer.partial or scope is not Scope.PER_TILE]
    return ir.with_knob((SCOPES, buffer.name, dim), rng.choice(allowed))


def digest_instructions(ir: KernelIR) -> str:
    """The digest of a valid point's kernel as it is traced: every instruction on every buffer, in order.

    Buffers are told apart by when they are first used, and by what they are; the place where one is
    declared is no instruction.
    """
    graph = ir.graph
    specs = [ArraySpec(graph.shape(name), graph.value[name].dtype) for name in graph.inputs]
    program = nki_sim.trace(render_kernel(ir), args=specs, target=graph.target)
    numbers = {tensor: number for number, tensor in enumerate(program.inputs)}
    digest = sha256()
    cells = program.cells
    for number, form in enumerate(program.form_ids):
        touched = slice(cells.first[number], cells.first[number + 1])
        tensors = [int(tensor) for tensor in cells.tensor[touched]]
        ids = [numbers.setdefault(tensor, len(numbers)) for tensor in tensors]
        sites = [program.site(tensor) for tensor in tensors]
        kinds = [(site.shape, site.dtype, site.buffer) for site in sites]
        told = (program.forms[form], ids, kinds, cells.offset[touched].tolist())
        digest.update(repr(told).encode())
    return digest.hexdigest()
