"""Killing a run with SIGKILL: at every point where it could be killed, again in recovery, and at random.

Whatever happens, the run ends as its undisturbed twin did, in another home and under another id. A full run
kills at every third point. At every one:

    SWEEP=all pytest --all tests/daemon/test_crash_sweep.py
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from state.events import KernelDiscarded, KernelRefuted
from state.reader import LogReader
from tests.support import fakes
from tests.support.fork_server import ForkServer
from tests.support.sweeps import is_exhaustive, parametrize_sweep
from tests.support.twins import assert_like_twin, read_end

MOST_POINTS = 2000
RANDOM_RUNS = 12
SHARES = 4  # so that several workers of a test run can sweep at a time
STEP = 1 if is_exhaustive() else 3


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    home = tmp_path_factory.mktemp("twin") / "home"
    run = fakes.submit_run(home)
    fakes.finish_runs(home, run, at_a_time=2)
    return read_end(home, run)


@pytest.fixture(scope="module")
def refuting_twin(tmp_path_factory):
    home = tmp_path_factory.mktemp("refuting") / "home"
    run = fakes.submit_run(home, fakes.REFUTING)
    fakes.finish_runs(home, run, workers=fakes.refuting_workers(), at_a_time=2)
    return read_end(home, run)


def test_the_twin_run_is_worth_disturbing(twin, tmp_path):
    home = tmp_path / "home"
    run = fakes.submit_run(home)
    fakes.finish_runs(home, run)
    assert read_end(home, run) == twin
    with LogReader.open(home) as reader:
        types = {item.type for item in reader.read(stream=run, limit=10_000)}
        state = reader.run_state(run)
    assert {
        "PlanFailed",
        "ExecutionFailed",
        "KernelKept",
        "KernelDiscarded",
        "ReflectionRecorded",
        "ExperienceRecorded",
    } <= types
    assert state.best.latency_ms < state.initial.latency_ms


def test_the_refuting_twin_refutes_before_the_beam_and_before_the_end(refuting_twin, tmp_path):
    home = tmp_path / "home"
    run = fakes.submit_run(home, fakes.REFUTING)
    fakes.finish_runs(home, run, workers=fakes.refuting_workers())
    assert_like_twin(home, run, refuting_twin)
    with LogReader.open(home) as reader:
        events = [item.event for item in reader.read(stream=run, limit=10_000)]
    (fallen,) = [event for event in events if isinstance(event, KernelRefuted)]
    early = [one for one in events if isinstance(one, KernelDiscarded) and one.reason == "refuted"]
    assert fallen.candidate not in {one.candidate for one in early}
    assert early


def was_killed(server: ForkServer, home: Path, twin: tuple, n: int) -> bool:
    """Kill a run at the n-th hit of any crash point, and again in recovery; False if it ended before."""
    run = fakes.submit_run(home, fakes.REFUTING)
    if server.run(home, run, crash=str(n), refuting=True) == 0:
        return False
    again = server.run(home, run, crash=str(1 + n % 23), refuting=True)
    assert again in (0, -signal.SIGKILL)
    assert server.run(home, run, refuting=True) == 0
    assert_like_twin(home, run, twin)
    return True


@pytest.mark.parametrize("n", [1, 40])
def test_killed_at_a_point_and_again_in_recovery(server, refuting_twin, tmp_path, n):
    assert was_killed(server, tmp_path / "home", refuting_twin, n)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_killed_at_every_point_and_again_in_recovery(server, refuting_twin, tmp_path, share):
    """Every n, dealt to shares, until the run is over before the n-th."""
    killed = 0
    for n in range(1 + share * STEP, MOST_POINTS, SHARES * STEP):
        if not was_killed(server, tmp_path / f"home{n}", refuting_twin, n):
            break
        killed += 1
    assert 50 < killed * SHARES * STEP < MOST_POINTS


@parametrize_sweep("number", range(RANDOM_RUNS))
def test_killed_at_random_until_it_gets_through(server, twin, tmp_path, number):
    odds = random.Random(number)
    home = tmp_path / "home"
    run = fakes.submit_run(home)
    kills = 0
    while server.run(home, run, kill_after=odds.uniform(0.01, 0.05 + 0.02 * kills), at_a_time=2) != 0:
        kills += 1
    assert_like_twin(home, run, twin)


# --- the end of a run, whose winner is simplified ------------------------------------------------------


@pytest.fixture(scope="module")
def simplified_twin(tmp_path_factory):
    home = tmp_path_factory.mktemp("simplified") / "home"
    run = fakes.submit_run(home, fakes.SIMPLIFYING)
    with fakes.simplifying() as workers:
        fakes.finish_runs(home, run, workers=workers)
    with LogReader.open(home) as reader:
        assert reader.run_state(run).best.technique == "simplify"
    return read_end(home, run)


def was_killed_simplifying(server: ForkServer, home: Path, twin: tuple, n: int) -> bool:
    run = fakes.submit_run(home, fakes.SIMPLIFYING)
    if server.run(home, run, crash=str(n), simplifying=True) == 0:
        return False
    again = server.run(home, run, crash=str(1 + n % 7), simplifying=True)
    assert again in (0, -signal.SIGKILL)
    assert server.run(home, run, simplifying=True) == 0
    assert_like_twin(home, run, twin)
    return True


@pytest.fixture(scope="module")
def last_point(server, tmp_path_factory) -> int:
    return find_last_point(server, tmp_path_factory.mktemp("points"))


@pytest.mark.slow
def test_killed_at_every_point_of_simplifying_and_again_in_recovery(
    server, simplified_twin, last_point, tmp_path
):
    """The last points of a run, from its last one backwards; what comes before them, other sweeps kill."""
    for n in range(last_point, max(1, last_point - 40), -STEP):
        assert was_killed_simplifying(server, tmp_path / f"home{n}", simplified_twin, n)


def test_killed_while_the_winner_is_simplified(server, simplified_twin, last_point, tmp_path):
    for n in (last_point - 12, last_point - 8):
        assert was_killed_simplifying(server, tmp_path / f"home{n}", simplified_twin, n)


def find_last_point(server: ForkServer, folder: Path) -> int:
    """Return the last hit of a crash point in an undisturbed run, by halving."""
    low, high = 1, MOST_POINTS
    while low + 1 < high:
        middle = (low + high) // 2
        here = folder / f"home{middle}"
        run = fakes.submit_run(here, fakes.SIMPLIFYING)
        ended = server.run(here, run, crash=str(middle), simplifying=True) == 0
        low, high = (low, middle) if ended else (middle, high)
    return low
