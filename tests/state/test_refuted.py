"""A best that fell: the lists of runs and kernels go by what the event says, across forks and rebuilds."""

from __future__ import annotations

from pathlib import Path

import pytest

from state.events import KernelKept, KernelRefuted, RunCompleted, RunForked
from state.fold import RunState, apply_event
from state.log import EventLog
from state.model import Candidate, ErrorInfo, Verdict
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.verify import verify_log
from tests.support.scripted_runs import append_run

ERROR = ErrorInfo(code="wrong_result", message="far off at seed 63")


def refute_kernel(state: RunState, best: Candidate | None) -> KernelRefuted:
    assert state.best is not None
    return KernelRefuted(
        candidate=state.best.id,
        verdict=Verdict.INCORRECT,
        error=ERROR,
        best=best,
        beam=tuple(entry for entry in state.beam if entry.candidate.id != state.best.id),
        checkpoints=(),
        memory=(),
        reflections=(),
        attempts=(),
        credits={},
    )


@pytest.fixture
def history(log: EventLog) -> list[RecordedEvent]:
    """A run of two rounds that has not ended."""
    with EventLog.open(log.home.parent / "other") as other:
        stored = append_run(other, "r", seed=2)
    kept = [item for item in stored if not isinstance(item.event, RunCompleted)]
    log.append_now([NewEvent("r", item.event) for item in kept])
    return kept


def standing(home: Path, run: str) -> tuple[str | None, float | None]:
    with LogReader.open(home) as reader:
        (row,) = [row for row in reader.run_summaries() if row["run"] == run]
        state = reader.run_state(run)
    best = (None, None) if state.best is None else (state.best.id, state.best.latency_ms)
    assert (row["best"], row["best_ms"]) == best, "the list and the state agree"
    return best


def fork(log: EventLog, child: str, at: int) -> None:
    with LogReader.open(log.home) as reader:
        found = next(item for item in reader.read(stream="r", limit=10_000) if item.run_seq == at)
    log.append_now([NewEvent(child, RunForked(parent="r", parent_seq=at, parent_hash=found.hash))])


def test_the_best_is_what_the_event_says(log: EventLog, history: list[RecordedEvent]) -> None:
    state = log.run_state("r")
    wrong, former = state.best, state.former[-1]
    assert wrong is not None
    assert standing(log.home, "r") == (wrong.id, wrong.latency_ms)
    log.append_now([NewEvent("r", refute_kernel(state, former))])
    assert standing(log.home, "r") == (former.id, former.latency_ms)
    after = log.run_state("r")
    assert former not in after.former
    assert after.tally.reverts == state.tally.reverts + 1
    with LogReader.open(log.home) as reader:
        row = next(row for row in reader.attempt_rows("r") if row["candidate"] == wrong.id)
    assert (row["decision"], row["reason"]) == ("discarded", "refuted")
    assert {finding.part for finding in verify_log(log.home).findings} <= {"blob"}


def test_what_is_kept_later_competes_with_who_took_the_place(
    log: EventLog, history: list[RecordedEvent]
) -> None:
    state = log.run_state("r")
    former = state.former[-1]
    kept = next(item.event for item in reversed(history) if isinstance(item.event, KernelKept))
    faster = former.benchmark.model_copy(update={"latency_ms": former.latency_ms * 0.9})
    newer = kept.candidate.model_copy(update={"id": "r3.b0.p0.k0.f0", "benchmark": faster})
    events = [refute_kernel(state, former), kept.model_copy(update={"candidate": newer})]
    log.append_now([NewEvent("r", event) for event in events])
    assert standing(log.home, "r") == (newer.id, newer.latency_ms)
    assert {finding.part for finding in verify_log(log.home).findings} <= {"blob"}


def test_nothing_may_be_left(log: EventLog, history: list[RecordedEvent]) -> None:
    log.append_now([NewEvent("r", refute_kernel(log.run_state("r"), None))])
    assert standing(log.home, "r") == (None, None)


def test_a_fork_has_the_best_that_its_parent_had_at_the_cut(
    log: EventLog, history: list[RecordedEvent]
) -> None:
    state = log.run_state("r")
    wrong, former = state.best, state.former[-1]
    assert wrong is not None
    log.append_now([NewEvent("r", refute_kernel(state, former))])
    fork(log, "before", len(history))
    fork(log, "after", len(history) + 1)
    assert standing(log.home, "before") == (wrong.id, wrong.latency_ms)
    assert standing(log.home, "after") == (former.id, former.latency_ms)
    assert {finding.part for finding in verify_log(log.home).findings} <= {"blob"}


def test_only_the_last_kernels_that_were_the_best_are_remembered(
    log: EventLog, history: list[RecordedEvent]
) -> None:
    state: RunState | None = None
    for item in history:
        state = apply_event(state, item.event)
    assert state is not None
    assert state.best is not None
    kept = next(item.event for item in reversed(history) if isinstance(item.event, KernelKept))
    before = state.best
    for number in range(40):
        faster = before.benchmark.model_copy(update={"latency_ms": before.latency_ms * 0.9**number * 0.5})
        one = kept.candidate.model_copy(update={"id": f"r9.b0.p{number}.k0.f0", "benchmark": faster})
        state = apply_event(state, kept.model_copy(update={"candidate": one}))
    assert [one.id for one in state.former] == [f"r9.b0.p{number}.k0.f0" for number in range(23, 39)]


def test_a_kernel_falls_once(log: EventLog, history: list[RecordedEvent]) -> None:
    state = log.run_state("r")
    event = refute_kernel(state, state.former[-1])
    log.append_now([NewEvent("r", event)])
    (again,) = log.append_now([NewEvent("r", event)])
    assert again.event == event
    with LogReader.open(log.home) as reader:
        found = [item for item in reader.read(stream="r", limit=10_000) if item.type == "KernelRefuted"]
    assert len(found) == 1
