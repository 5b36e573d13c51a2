"""Random kernels, plain and obfuscated, are raised to the programs that they issue."""

from __future__ import annotations

from random import Random

import nki_sim
from nki_sim import ArraySpec
from targets.nki.raising.raiser import program_digest, raise_program
from tests.support.sweeps import parametrize_sweep
from tests.targets.nki.raising.obfuscations import OBFUSCATIONS, Obfuscation, obfuscate_loop
from tests.targets.nki.rewrites import obfuscations as of_names
from tests.targets.nki.rewrites.generator import Drawn, draw

SEEDS = range(24)


def check_raised(drawn: Drawn, source: str) -> None:
    arguments = [ArraySpec(shape, "float32") for shape in drawn.shapes]
    program = nki_sim.trace(source, args=arguments)
    raised = nki_sim.trace(raise_program(program, source), args=arguments)
    assert program_digest(raised) == program_digest(program)


@parametrize_sweep("seed", SEEDS, quick=3)
def test_a_random_kernel_is_raised_to_its_own_program(seed: int) -> None:
    check_raised(draw(seed), draw(seed).source)


@parametrize_sweep("seed", SEEDS, quick=2)
def test_the_form_of_a_loop_leaves_no_trace_in_the_result(seed: int) -> None:
    drawn = draw(seed)
    for obfuscation in OBFUSCATIONS:
        check_raised(drawn, obfuscate_loop(drawn.source, obfuscation))


@parametrize_sweep("obfuscation", of_names.OBFUSCATIONS, quick=1)
def test_names_and_views_leave_no_trace_in_the_result(obfuscation: of_names.Obfuscation) -> None:
    for seed in range(4):
        drawn = draw(seed)
        check_raised(drawn, of_names.obfuscate(drawn.source, obfuscation, Random(seed)))


@parametrize_sweep("obfuscation", OBFUSCATIONS, quick=2)
def test_every_obfuscation_is_another_text(obfuscation: Obfuscation) -> None:
    assert obfuscate_loop(draw(0).source, obfuscation) != draw(0).source
