"""Homes on machines that fail, with real children, files and caches: their runs end as undisturbed ones do.

A world takes 4 s of CPU: judges, jails and references are the real ones. A full run tries a sample of the
seeds, `SWEEP=all` and `benchmarks/process_worlds.py` the others.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from state.events import RoundCompleted
from state.reader import LogReader
from tests.support.process_worlds import (
    DAMAGES,
    DEFECTS,
    OPERATIONS,
    Fault,
    Life,
    Story,
    draw_lives,
    find_differences,
    make_twin,
    run_seed,
    run_world,
)
from tests.support.sweeps import parametrize_sweep, sample_sweep

SEEDS = sample_sweep(range(200), 8, seed=33)


@pytest.fixture(scope="module")
def twin(server, tmp_path_factory):
    return make_twin(tmp_path_factory.mktemp("twin"), server)


@parametrize_sweep("seed", SEEDS, quick=0)
def test_a_run_ends_as_on_a_machine_that_is_well(seed, server, twin, tmp_path) -> None:
    assert not [*find_differences(run_seed(seed, tmp_path, server), twin)]


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(defect, server, twin, tmp_path) -> None:
    lives = {
        "damaged files are believed": [Life(kill_at=_seq_of_round_end(twin)), Life(damage="zeros in arrays")],
        "deaths are failures": [Life(faults=tuple(Fault("start", n, "killed") for n in range(1, 9)))],
    }[defect]
    assert not [*find_differences(run_world(lives, tmp_path / "sound", server), twin)]
    assert [*find_differences(run_world(lives, tmp_path / "broken", server, defect=defect), twin)]


def _seq_of_round_end(twin: Story) -> int:
    with LogReader.open(twin.home) as reader:
        events = reader.read(stream=twin.run, limit=1000)
    return next(item.run_seq for item in events if isinstance(item.event, RoundCompleted))


def test_the_seeds_have_every_fault_and_damage() -> None:
    lives = [life for seed in range(200) for life in draw_lives(random.Random(seed))]
    seen = Counter(fault.operation for life in lives for fault in life.faults)
    seen.update(life.damage for life in lives if life.damage)
    assert set(seen) == {*OPERATIONS, *DAMAGES}
    assert min(seen.values()) >= 10
    assert sum(life.crash is not None for life in lives) > 50
    assert sum(life.kill_at is not None for life in lives) > 50
    assert sum(life.kill_after is not None for life in lives) > 50
    assert sum(life.child_kill_after is not None for life in lives) > 50
