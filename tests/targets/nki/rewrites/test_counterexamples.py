"""Kernels that were built to be rewritten wrongly: every rewrite refuses, or keeps what they compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import nki_sim
from nki_sim import ArraySpec
from nki_sim.checks import program as checks
from nki_sim.running import numerics
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from tests.support.counterexamples import COUNTEREXAMPLES, FIRSTS
from tests.support.counterexamples.base import Counterexample
from tests.support.kernels import TARGET
from tests.support.sweeps import parametrize_sweep


def compute_outputs(trick: Counterexample, source: str) -> list[NDArray[np.float64]]:
    """What a source computes on the trick's inputs; an error where the simulator refuses it."""
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in trick.shapes])
    refused = checks.check(program, TARGET)
    assert not refused, f"{refused[0].message}\n{source}"
    random = np.random.default_rng(7)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in trick.shapes]
    return [np.asarray(found, dtype=np.float64) for found in numerics.run(program, arrays)]


@parametrize_sweep("name", COUNTEREXAMPLES, quick=FIRSTS)
def test_no_rewrite_changes_what_is_computed(name: str):
    trick = COUNTEREXAMPLES[name]
    arguments = [ArrayArgument(shape, "float32") for shape in trick.shapes]
    expected = compute_outputs(trick, trick.source)
    children, _ = explore_rewrites(read_kernel(trick.source, arguments, TARGET), arguments, TARGET)
    for child in children:
        title = child.transform.render_title(child.site, child.choice)
        for one, other in zip(compute_outputs(trick, child.source), expected, strict=True):
            distance = float(np.linalg.norm(one - other) / np.linalg.norm(other))
            assert distance < 1e-5 + 10 * child.transform.rounding, f"{title}\n{child.source}"
