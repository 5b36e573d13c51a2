"""The ladder: every rung computes the product, and the engine climbs it from the first."""

from __future__ import annotations

import numpy as np
import pytest

import nki_sim
from benchmarks import ladder
from nki_sim import ArraySpec
from nki_sim.running import numerics

SMALL = ladder.Size(rows=1024, contraction=1024, columns=1024)
TINY = ladder.Size(rows=512, contraction=512, columns=1024)


def error(source: str, size: ladder.Size) -> float:
    """Relative L2 error on random inputs, in float32 so that it is not hidden by rounding."""
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in size.shapes]
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in size.shapes])
    (found,) = numerics.run(program, arrays)
    expected = arrays[0].astype(np.float64).T @ arrays[1]
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("rung", ladder.RUNGS)
def test_every_rung_computes_the_product(rung: str):
    assert error(ladder.source_of(rung), SMALL) < 1e-5


def test_the_engine_climbs_from_the_first_rung():
    first = ladder.source_of("plain")
    found = ladder.climb(first, TINY, TINY, "trn1", beam=1, steps=2, predictions=3)
    assert found.ms < 0.8 * ladder.predicted_ms(first, TINY, "trn1")
    assert found.ms == ladder.predicted_ms(found.source, TINY, "trn1")
    assert len(found.steps) == 2
    assert error(found.source, TINY) < 1e-5


def test_the_report_names_rungs_and_steps():
    found = ladder.Found(5.0, ("block i_m (iterations 4)",), "")
    lines = list(ladder.report({"plain": 20.0, "blocked": 10.0}, found))
    assert lines[1].split() == ["plain", "20.000", "1.00x"]
    assert lines[3].split() == ["engine", "5.000", "4.00x"]
    assert lines[-1] == "  1. block i_m (iterations 4)"
