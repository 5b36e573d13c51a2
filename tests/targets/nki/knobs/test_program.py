"""Points that are one program: told apart without lowering, exactly where their instructions are others.

`KNOB_SEEDS` says how many walks are taken in each variant of each workload; one by default.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from targets.nki.judge.normalise import code_digest
from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import KernelIR
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.neighbours import is_valid
from targets.nki.knobs.program import program_digest
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.sampling import sample_ir
from targets.nki.knobs.variants import make_variants
from tests.support.knob_points import digest_instructions, turn_knob
from tests.support.sweeps import parametrize_sweep
from tests.support.workloads import WORKLOADS

SEEDS = int(os.environ.get("KNOB_SEEDS", "1"))
TURNS = 10
"""Turns of a walk; those that lead nowhere valid are not taken."""
MOST = 6
"""Variants of a workload that are looked at, with the most rewrites and with none."""


def _graphs(name: str) -> list[Graph]:
    found = [item.graph for item in make_variants(WORKLOADS[name].graph)]
    return found if len(found) <= MOST else [found[0], *found[1 - MOST :]]


def _walk(graph: Graph, rng: Random, turns: int = TURNS) -> list[KernelIR]:
    """Valid points, each a turn away from the one before: close enough that many are the same program."""
    found = [sample_ir(default_ir(graph), rng)]
    for _ in range(turns):
        other = turn_knob(found[-1], rng)
        if is_valid(other):
            found.append(other)
    return found


@parametrize_sweep("name", WORKLOADS, quick=["matmul", "softmax"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_digests_are_equal_exactly_where_instructions_are(name: str, seed: int) -> None:
    for number, graph in enumerate(_graphs(name)):
        try:
            points = _walk(graph, Random(f"{name} {number} {seed}"))
        except KnobError:
            continue
        told = {(program_digest(ir), digest_instructions(ir)) for ir in points}
        assert len({program for program, _ in told}) == len(told), "one digest, two kinds of instructions"
        assert len({made for _, made in told}) == len(told), "two digests, the same instructions"
        texts = {(program_digest(ir), code_digest(render_kernel(ir).encode())) for ir in points}
        assert len(texts) == len(told), "one program, two texts"


def test_many_points_near_each_other_are_one_program() -> None:
    """So that the test above is one: neither are all of its points alike, nor are all others."""
    points = _walk(WORKLOADS["matmul"].graph, Random(0), turns=2 * TURNS)
    assert 1 < len({program_digest(ir) for ir in points}) < len(set(points))
