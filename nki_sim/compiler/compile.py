"""The compiler of each namespace: the current one keeps what the kernel says, the legacy one rewrites it."""

from __future__ import annotations

from nki_sim.compiler.arrays import split
from nki_sim.compiler.broadcast import multiply
from nki_sim.compiler.compiled import Compiled, unchanged
from nki_sim.compiler.draft import Draft
from nki_sim.compiler.engines import assign
from nki_sim.compiler.hoist import hoist
from nki_sim.compiler.keep import keep
from nki_sim.compiler.psum import place
from nki_sim.compiler.residency import Plan, Residency, insert
from nki_sim.compiler.rotation import rotate
from nki_sim.compiler.stream import stream
from nki_sim.program.ir import Program
from nki_sim.targets import Target


def compiled(program: Program, target: Target) -> Compiled:
    """The instructions that run on a target."""
    if program.dialect != "neuronxcc" or program.loops:
        return unchanged(program)
    draft = Draft(program)
    assign(draft)
    streams = _stream(draft, target)
    twins = hoist(draft, computed=not streams)
    multiply(draft, target)
    place(draft, target)
    if not streams:
        keep(draft, target, twins)
    if not streams:
        _stream(draft, target)
    insert(draft, [_resident(draft, target, core) for core in _cores(program)])
    rotate(draft, target)
    return draft.compiled()


def _cores(program: Program) -> range:
    return range(int(program.cores.max(initial=0)) + 1)


def _stream(draft: Draft, target: Target) -> bool:
    """Stream the arrays that do not fit, until all others do; whether there were any."""
    found = False
    for core in _cores(draft.program):
        while True:
            residency = Residency(draft, target, core)
            tensors = split(draft, residency.run(), residency.tiles, loaded=True)
            if not tensors:
                break
            stream(draft, tensors)
            found = True
    return found


def _resident(draft: Draft, target: Target, core: int) -> Plan:
    """Who is in SBUF when, with computed arrays that do not stay whole passing through."""
    passing: set[int] = set()
    while True:
        residency = Residency(draft, target, core, passing)
        plan = residency.run()
        more = split(draft, plan, residency.tiles, loaded=False) - passing
        if not more:
            return plan
        passing |= more
