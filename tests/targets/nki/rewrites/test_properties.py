"""The duty of every entry of the catalogue: on random small kernels it refuses, or the meaning stays.

Each seed draws a kernel and a short walk of rewrites; every result must pass the simulator's rules and
compute what the kernel before it did. `NKI_AGENT_REWRITE_SEEDS=FROM:TO` tries other kernels, in thousands.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

import nki_sim
from nki_sim import ArraySpec
from nki_sim.checks import program as checks
from nki_sim.errors import SimError
from nki_sim.running import numerics
from targets.nki.raising.raiser import raise_program
from targets.nki.rewrites.explore import check_rewrite
from targets.nki.rewrites.inlining import canonicalize_kernel
from targets.nki.rewrites.kernel_ir import ArrayArgument, Kernel
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from targets.registry import load_target
from tests.support.kernels import TARGET
from tests.support.sweeps import parametrize_sweep
from tests.targets.nki.rewrites import test_cut_columns, test_split_rows, test_two_pass, test_unpeel
from tests.targets.nki.rewrites.generator import Drawn, draw
from tests.targets.nki.rewrites.obfuscations import OBFUSCATIONS, Obfuscation, obfuscate

FROM, _, TO = os.environ.get("NKI_AGENT_REWRITE_SEEDS", "0:24").partition(":")
SEEDS = range(int(FROM), int(TO))
STEPS = 2
"""Rewrites in a row, each of a kernel that the one before made."""
SITES = 2
"""Places tried of each entry and kernel, with one choice each."""
EXACT, ROUNDED = 2e-5, 2e-2
AMPLIFIED = 10
"""How much a drawn kernel may enlarge what a rewrite rounds: by sums that cancel, or products in a row."""


def compute_outputs(drawn: Drawn, source: str) -> NDArray[np.float64]:
    """What a source computes on the kernel's inputs; an assertion error when the simulator refuses it."""
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in drawn.shapes])
    refused = checks.check(program, TARGET)
    assert not refused, refused[0].message
    random = np.random.default_rng(7)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in drawn.shapes]
    (found,) = numerics.run(program, arrays)
    return np.asarray(found, dtype=np.float64)


def arguments(drawn: Drawn) -> list[ArrayArgument]:
    return [ArrayArgument(shape, "float32") for shape in drawn.shapes]


def results(name: str, kernel: Kernel, random: Random) -> Iterator[tuple[str, str | RewriteRefused]]:
    """(step, source or refusal) at every place of an entry, in random order and with one choice each."""
    transform = TRANSFORMS[name]
    places = list(transform.find_sites(kernel, TARGET).items())
    for site, place in random.sample(places, len(places)):
        try:
            choice = random.choice(transform.list_choices(kernel, TARGET, place))
            yield transform.render_title(site, choice), transform.apply(kernel, TARGET, place, choice)
        except RewriteRefused as refusal:
            yield f"{name} {site}", refusal


def is_allowed(drawn: Drawn, kernel: Kernel, source: str) -> bool:
    """Whether the search would take the result."""
    try:
        check_rewrite(kernel, source, arguments(drawn), TARGET)
    except RewriteRefused:
        return False
    return True


def check(drawn: Drawn, steps: list[str], source: str, expected: NDArray[np.float64]) -> None:
    wrong = f"{steps}\n{drawn.source}\n->\n{source}"
    try:
        found = compute_outputs(drawn, source)
    except (SimError, AssertionError) as error:
        pytest.fail(f"{error}\n{wrong}")
    distance = float(np.linalg.norm(found - expected) / (np.linalg.norm(expected) or 1.0))
    added = max(TRANSFORMS[step.partition(" ")[0]].rounding for step in steps)
    assert distance < (ROUNDED if drawn.narrow else EXACT + AMPLIFIED * added), f"{distance:.3g}\n{wrong}"


def walk(drawn: Drawn, random: Random) -> None:
    """Check the rewrites of a kernel, and those of one that they led to."""
    expected = compute_outputs(drawn, drawn.source)
    source, steps = drawn.source, list[str]()
    for _ in range(STEPS):
        kernel = canonicalize_kernel(read_kernel(source, arguments(drawn), TARGET), TARGET)
        allowed = []
        for name in sorted(TRANSFORMS):
            for step, result in islice(results(name, kernel, random), SITES):
                if isinstance(result, RewriteRefused):
                    assert len(str(result).split()) >= 3, f"{step}: {result}"
                elif is_allowed(drawn, kernel, result):
                    check(drawn, [*steps, step], result, expected)
                    allowed.append((step, result))
        if not allowed:
            return
        step, source = random.choice(allowed)
        steps.append(step)


@parametrize_sweep("seed", SEEDS, quick=3)
def test_a_rewrite_refuses_or_keeps_the_meaning(seed: int):
    walk(draw(seed), Random(seed))


def obfuscated_kernel(drawn: Drawn, random: Random) -> tuple[Drawn, list[Obfuscation]]:
    """A kernel in some obfuscations, and these: only such in which it still computes the same."""
    expected, applied = compute_outputs(drawn, drawn.source), list[Obfuscation]()
    for obfuscation in OBFUSCATIONS:
        other = replace(drawn, source=obfuscate(drawn.source, obfuscation, random))
        try:
            same = np.array_equal(compute_outputs(other, other.source), expected)
        except (SimError, AssertionError):
            continue
        if same and other != drawn and random.random() < 0.7:
            drawn = other
            applied.append(obfuscation)
    return drawn, applied


@parametrize_sweep("seed", SEEDS, quick=3)
def test_a_rewrite_is_not_misled_by_how_a_kernel_says_it(seed: int):
    random = Random(seed)
    drawn, applied = obfuscated_kernel(draw(len(SEEDS) + seed), random)
    assert applied
    walk(drawn, random)


def test_every_obfuscation_is_tried():
    applied = set[Obfuscation]()
    for seed in SEEDS:
        if applied < set(OBFUSCATIONS):
            applied |= set(obfuscated_kernel(draw(len(SEEDS) + seed), Random(seed))[1])
    assert applied == set(OBFUSCATIONS)


def raise_drawn(drawn: Drawn) -> Drawn:
    """A random kernel in canonical form; it may be longer, and no name says a size."""
    program = nki_sim.trace(drawn.source, args=[ArraySpec(shape, "float32") for shape in drawn.shapes])
    return replace(drawn, source=raise_program(program, drawn.source))


def test_every_entry_has_something_to_do():
    """Kernels of the generator, as they are and raised, give each entry a place where it applies.

    So do an online softmax, tiles that are used in parts, a sum whose first iteration is peeled, and a scan
    of long rows, which it does not draw. Entries for other targets have tests of their own.
    """
    idle, refused = set(load_target(TARGET.name).rewrites()), Counter[str]()
    as_drawn = (draw(seed) for seed in range(4 * len(SEEDS)))
    as_raised = (raise_drawn(draw(seed)) for seed in SEEDS)
    written = (
        Drawn(made.source, made.shapes, narrow=False)
        for made in (
            test_two_pass.sample(),
            test_split_rows.sample(),
            test_unpeel.sample(test_unpeel.DIRECTLY),
            test_cut_columns.sample(),
        )
    )
    for seed, drawn in enumerate(chain(written, as_drawn, as_raised)):
        if not idle:
            break
        random = Random(seed)
        kernel = canonicalize_kernel(read_kernel(drawn.source, arguments(drawn), TARGET), TARGET)
        for name in sorted(idle):
            found = [item for _, item in results(name, kernel, random)]
            refused[name] += sum(isinstance(item, RewriteRefused) for item in found)
            if any(isinstance(item, str) and is_allowed(drawn, kernel, item) for item in found):
                idle.remove(name)
    assert not idle, {name: f"refused {refused[name]} times" for name in sorted(idle)}
