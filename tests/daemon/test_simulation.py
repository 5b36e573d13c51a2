"""The daemon in simulated worlds: invariants hold, a seed replays exactly, and what breaks them is found.

A full run tries the first seeds, and `SWEEP=all` four times as many; `benchmarks/simulation.py` tries any.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import simulation
from tests.support.simulation.running import KINDS, simulate
from tests.support.sweeps import is_exhaustive, parametrize_sweep

ALL_SEEDS = 2000
SEEDS = ALL_SEEDS if is_exhaustive() else 500
SHARES = SEEDS // 100  # so that several workers of a test run can simulate at a time
FEW = range(5)


@parametrize_sweep(
    "seeds",
    [FEW, *(range(share, SEEDS, SHARES) for share in range(SHARES))],
    ids=["few", *map(str, range(SHARES))],
)
def test_the_invariants_hold(seeds):
    """A seed that fails is named, with what shows its events."""
    tally = simulation.Tally()
    for seed in seeds:
        tally.take(seed, simulation.one(seed))
    assert tally.failed == {}, tally.again()


@pytest.mark.slow
def test_all_that_can_happen_does():
    """Of what worlds are to meet nothing is left out in these seeds, and nothing is met that has no name."""
    met: Counter[str] = Counter()
    for seed in range(ALL_SEEDS):
        met += simulate(seed, root=simulation.folder()).counts
        if met.keys() >= set(KINDS):
            break
    assert met.keys() == set(KINDS)


def test_a_seed_replays_exactly_in_another_process():
    """Also where sets of text are in another order; the log's hash covers every event and its time."""
    seed = next(
        seed for seed in range(100) if count_kills(simulate(seed, root=simulation.folder()).counts) > 1
    )
    here = simulate(seed, root=simulation.folder())
    told = subprocess.run(
        [sys.executable, Path(simulation.__file__), "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert told.endswith(f"seed {seed}: {here.events} events, log {here.head}\n")
    assert told.count(" killed\n") == count_kills(here.counts)


def count_kills(counts: Counter[str]) -> int:
    return sum(count for what, count in counts.items() if what.startswith("kill "))


def test_a_failure_is_told_with_how_to_see_it_again(capsys):
    tally = simulation.Tally()
    tally.take(3, "Violation: it broke")
    assert tally.failed == {3: "Violation: it broke"}
    assert "python benchmarks/simulation.py --seed 3" in tally.again()
    assert tally.again() in capsys.readouterr().out


def test_what_never_happened_is_in_the_table():
    assert [line.split(maxsplit=1) for line in simulation.Tally().table().splitlines()] == [
        ["0", kind] for kind in KINDS
    ]
