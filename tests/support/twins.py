"""What runs that were disturbed are compared with: the same runs undisturbed, in another home."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from state.events import EffectEnded
from state.fold import state_hash
from state.reader import LogReader
from state.verify import verify_log


def read_end(home: Path, run: str) -> tuple:
    """Return what twins share: semantic state, decisions, best kernel."""
    with LogReader.open(home) as reader:
        state = reader.run_state(run)
        assert state.has_ended
        best = None if state.best is None else (state.best.id, reader.get_blob(state.best.source))
        return state_hash(state), state.decision_digest, best


def outcomes_per_effect(home: Path, run: str) -> Counter:
    with LogReader.open(home) as reader:
        events = [item.event for item in reader.read(stream=run, limit=100_000)]
    return Counter(event.key for event in events if isinstance(event, EffectEnded))


def assert_like_twin(home: Path, run: str, twin: tuple) -> None:
    assert read_end(home, run) == twin
    assert set(outcomes_per_effect(home, run).values()) == {1}
    report = verify_log(home)
    assert report.is_ok, report.findings
