"""The daemon in simulated worlds: invariants hold, a seed replays exactly, and what breaks them is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import simulation
from state.fold import RunState
from state.late import taken
from tests.support.simulation.running import simulate

SHARES = 4  # so that several workers of a test run can simulate at a time
SEEDS = 48
SEARCHED = 40


def found(what: str, *, first: int = 0) -> bool:
    """Return whether one of some seeds fails with `what`; `first` is where it is known to be near."""
    outcomes = map(simulation.one, range(first, first + SEARCHED))
    return any(isinstance(outcome, str) and what in outcome for outcome in outcomes)


@pytest.mark.parametrize("share", range(SHARES))
def test_the_invariants_hold(share):
    outcomes = {seed: simulation.one(seed) for seed in range(share, SEEDS, SHARES)}
    assert {seed: why for seed, why in outcomes.items() if isinstance(why, str)} == {}
    assert sum(sum(outcome.mishaps.values()) for outcome in outcomes.values()) > SEEDS / SHARES


def test_a_seed_replays_exactly_in_another_process():
    """Also where sets of text are in another order; the log's hash covers every event and its time."""
    seed = 17
    here = simulate(seed, root=simulation.folder())
    assert here.mishaps["kill"] > 0
    told = subprocess.run(
        [sys.executable, Path(simulation.__file__), "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert told.endswith(f"seed {seed}: {here.events} events, log {here.head}\n")
    assert told.count(" killed\n") == here.mishaps["kill"]


def test_commands_that_may_be_taken_in_twice_are_found(monkeypatch):
    monkeypatch.setattr("state.appender.idempotency_key", lambda event: None)
    assert found("was received already")


def test_late_results_that_count_are_found(monkeypatch):
    def counted(state: RunState, event) -> dict:
        return taken(state, event) or {"outcomes": {**state.outcomes, event.key: event}}

    monkeypatch.setattr("state.fold.taken", counted)
    assert found("late_results_stay_out")


def test_acknowledged_events_that_a_kill_loses_are_found(monkeypatch, tmp_path):
    """After its second kill a home is what it was after the first: sound in itself, and too old."""

    def copied(home: Path, after: Path, **options) -> None:
        first = tmp_path / home.parent.name
        if not first.exists():
            copytree(home, first, **options)
        copytree(first, after)

    copytree = shutil.copytree
    monkeypatch.setattr(shutil, "copytree", copied)
    assert found("stored and is lost")


def test_a_start_that_overlooks_a_pause_is_found(monkeypatch):
    """Nobody looks whether a run moved on between the decision and its append."""
    monkeypatch.setattr("state.appender.Appender._check_expected", lambda self, plan, expect: None)
    assert found("nothing_starts_in_a_run_that_rests", first=40)


def test_requests_made_anew_instead_of_as_logged_are_found(monkeypatch):
    """What is asked again after a kill must be what was asked before."""
    from daemon import lanes

    def anew(self, state, decisions):
        for key, ready in due(self, state, decisions):
            again = isinstance(ready, lanes.Ready)
            yield key, lanes.Ready(key, "0" * 64, ready.delivery) if again else ready

    due = lanes.Lane._due
    monkeypatch.setattr(lanes.Lane, "_due", anew)
    assert found("Violation")


def test_a_failure_is_told_with_how_to_see_it_again(monkeypatch, capsys):
    monkeypatch.setattr(simulation, "one", lambda seed: "Violation: it broke")
    monkeypatch.setattr(
        simulation, "_outcomes", lambda seeds, jobs, until: ((s, simulation.one(s)) for s in seeds)
    )
    tally = simulation.many([3], jobs=1, seconds=60)
    assert tally.failed == {3: "Violation: it broke"}
    assert "python benchmarks/simulation.py --seed 3" in capsys.readouterr().out
