"""Read models across ancestors: a fork's lists are those of a run that has the same history by itself."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.events import (
    EvaluationCompleted,
    EvaluationStarted,
    Event,
    KernelKept,
    RunForked,
    idempotency_key,
)
from state.fold import apply_event
from state.log import EventLog
from state.model import INITIAL_KEY, BeamRole, Rebase, Role, Verdict, digest_of
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.verify import verify_log
from tests.support.scripted_runs import append_run

OWN = {
    "run", "seq", "run_seq", "parent_seq", "judged_at", "compared_at", "decided_at", "first_seq",
    "created_us", "rebased",
}  # fmt: skip
"""Columns that tell a run from another with the same history."""


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedEvent]:
    with EventLog.open(tmp_path_factory.mktemp("history") / "home") as log:
        return append_run(log, "parent", seed=3)


def quiet(history: list[RecordedEvent]) -> list[int]:
    """Where nothing is in flight and no record is half made: what follows there may also follow a fork."""
    state = None
    places = []
    for item in history:
        state = apply_event(state, item.event)
        if not state.open and state.before is None:
            places.append(item.run_seq)
    return places


def fork(log: EventLog, child: str, parent: str, at: int, rebase: Rebase | None = None) -> None:
    with LogReader.open(log.home) as reader:
        found = next(item for item in reader.read(stream=parent, limit=10_000) if item.run_seq == at)
    event = RunForked(parent=parent, parent_seq=at, parent_hash=found.hash, rebase=rebase)
    log.append_now([NewEvent(child, event)])


def store(log: EventLog, stream: str, events: list[Event]) -> None:
    if events:
        log.append_now([NewEvent(stream, event) for event in events])


def alike(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in OWN} for row in rows]


def read_family(reader: LogReader, run: str) -> tuple[Any, ...]:
    (row,) = [row for row in reader.run_summaries() if row["run"] == run]
    return (
        alike([{**row, "parent": None, "status": None, "reason": None, "ended": None}]),
        alike(reader.attempt_rows(run)),
        alike(reader.candidate_rows(run)),
        alike(reader.spend_rows(run)),
    )


def sound(home: Path) -> bool:
    """The events here come without their blobs; all else is as it should be."""
    return {finding.part for finding in verify_log(home).findings} <= {"blob"}


@given(shares=st.lists(st.integers(0, 1000), min_size=2, max_size=3), at=st.integers(1, 80))
@settings(max_examples=8, deadline=None)
def test_a_line_of_forks_is_told_of_as_one_run(tmp_path_factory, history, shares, at) -> None:
    """Each fork but the last continues where nothing was in flight; the last is cut anywhere."""
    events = [item.event for item in history]
    places = quiet(history)
    cuts = sorted({places[share * (len(places) - 1) // 1000] for share in shares})
    home = tmp_path_factory.mktemp("line") / "home"
    with EventLog.open(home) as log:
        store(log, "f0", events)
        for number, (cut, upto) in enumerate(pairwise(cuts)):
            fork(log, f"f{number + 1}", f"f{number}", cut + number)
            store(log, f"f{number + 1}", events[cut:upto])
        generations = len(cuts) - 1
        end = min(at, cuts[-1]) if generations else at
        fork(log, "last", f"f{generations}", end + sum(cut < end for cut in cuts[:-1]))
        store(log, "alone", events[:end])
        with LogReader.open(home) as reader:
            assert read_family(reader, "last") == read_family(reader, "alone")
    assert sound(home)


def test_what_happens_to_the_parent_later_is_not_the_fork_s(
    log: EventLog, history: list[RecordedEvent]
) -> None:
    events = [item.event for item in history]
    cut = next(n for n, event in enumerate(events, 1) if isinstance(event, EvaluationStarted) and n > 10)
    store(log, "parent", events[:cut])
    fork(log, "child", "parent", cut)
    with LogReader.open(log.home) as reader:
        before = read_family(reader, "child")
        store(log, "parent", events[cut:])
        assert read_family(reader, "child") == before


def test_a_fork_that_goes_another_way_is_told_of_by_its_own_words(
    log: EventLog, history: list[RecordedEvent]
) -> None:
    """The parent had the evaluation in flight at the cut; its fork asks again, and hears something else."""
    events = [item.event for item in history]
    cut = next(n for n, event in enumerate(events, 1) if isinstance(event, EvaluationStarted) and n > 10)
    started = events[cut - 1]
    heard = next(event for event in events[cut:] if isinstance(event, EvaluationCompleted))
    evaluation = heard.evaluation.model_copy(update={"bottleneck": "another"})
    store(log, "parent", events)
    fork(log, "child", "parent", cut)
    again = heard.model_copy(update={"evaluation": evaluation})
    store(log, "child", [started, again])
    with LogReader.open(log.home) as reader:
        rows = {
            name: {row["candidate"]: row for row in reader.attempt_rows(name)} for name in ("parent", "child")
        }
    candidate = started.key.rpartition(".")[0]
    assert rows["child"][candidate]["bottleneck"] == "another"
    assert rows["parent"][candidate]["bottleneck"] == heard.evaluation.bottleneck
    assert rows["child"][candidate]["technique"] == rows["parent"][candidate]["technique"]


def for_another_target(log: EventLog) -> Rebase:
    state = log.run_state("parent")
    return Rebase(
        config=state.config.model_copy(update={"target": "trn1"}),
        problem=state.problem,
        bounds=state.bounds,
        toolchain="sim-2",
    )


def test_a_fork_is_listed_by_what_held_where_it_was_cut(log: EventLog, history: list[RecordedEvent]) -> None:
    """Of a parent that changed its target, before and after that; also when all is projected at once."""
    events = [item.event for item in history]
    store(log, "parent", events)
    fork(log, "child", "parent", len(events), for_another_target(log))
    fork(log, "after", "child", len(events) + 1)
    fork(log, "before", "child", len(events))
    fork(log, "early", "child", 1)
    with LogReader.open(log.home) as reader:
        rows = {row["run"]: row for row in reader.run_summaries()}
    assert {run: row["target"] for run, row in rows.items()} == {
        "parent": "trn2",
        "child": "trn1",
        "after": "trn1",
        "before": "trn2",
        "early": "trn2",
    }
    for run in ("after", "before", "early"):
        best = log.run_state(run).best
        assert rows[run]["best"] == (best and best.id)
    assert sound(log.home)


def test_latencies_of_before_another_target_are_history(log: EventLog, history: list[RecordedEvent]) -> None:
    events = [item.event for item in history]
    store(log, "parent", events)
    state = log.run_state("parent")
    fork(log, "child", "parent", len(events), for_another_target(log))
    with LogReader.open(log.home) as reader:
        (row,) = [row for row in reader.run_summaries() if row["run"] == "child"]
        assert (row["target"], row["toolchain"], row["rebased"]) == ("trn1", "sim-2", 1)
        assert (row["best_ms"], row["initial_ms"]) == (None, None)
        assert row["spent_usd"] == pytest.approx(state.spent_usd)
        assert reader.candidate_rows("child") == []
        assert len(reader.attempt_rows("child")) == len(reader.attempt_rows("parent"))
        first = next(event for event in events if isinstance(event, EvaluationStarted))
        heard = next(event for event in events if isinstance(event, EvaluationCompleted))
        store(log, "child", [first, heard])
        (one,) = reader.candidate_rows("child")
        assert one["candidate"] == INITIAL_KEY.candidate_id
        kept = next(event for event in events if isinstance(event, KernelKept))
        store(log, "child", [kept.model_copy(update={"role": BeamRole.ELITE})])
        (row,) = [row for row in reader.run_summaries() if row["run"] == "child"]
        assert row["initial_ms"] == row["best_ms"] == kept.candidate.latency_ms
    assert sound(log.home)


def test_read_models_of_forks_can_be_made_anew(home: Path, history: list[RecordedEvent], monkeypatch) -> None:
    events = [item.event for item in history]
    with EventLog.open(home) as log:
        store(log, "parent", events)
        fork(log, "child", "parent", 30)
        fork(log, "grandchild", "child", 12)
        with LogReader.open(home) as reader:
            before = [read_family(reader, run) for run in ("parent", "child", "grandchild")]
    monkeypatch.setattr("state.projections.READ_MODEL_VERSION", 99)
    with EventLog.open(home), LogReader.open(home) as reader:
        assert [read_family(reader, run) for run in ("parent", "child", "grandchild")] == before


def test_an_attempt_is_told_of_since_its_first_event_however_events_were_grouped(
    log: EventLog, history: list[RecordedEvent]
) -> None:
    """Its decision before its next verdict: made anew, the rows of many events come kind by kind."""
    events = [item.event for item in history]
    first = next(n for n, event in enumerate(events, 1) if isinstance(event, KernelKept))
    store(log, "parent", events[:first])
    fork(log, "child", "parent", first)
    store(log, "child", [events[first - 1]])
    key = str(INITIAL_KEY._replace(role=Role.VERIFIER))
    heard = next(event for event in events if isinstance(event, EvaluationCompleted))
    wrong = heard.evaluation.model_copy(update={"verdict": Verdict.INCORRECT})
    store(
        log,
        "child",
        [
            EvaluationStarted(key=key, request=digest_of(b"")),
            heard.model_copy(update={"key": key, "evaluation": wrong}),
        ],
    )
    assert sound(log.home)


def test_an_effect_is_started_anew_in_a_fork(log: EventLog, history: list[RecordedEvent]) -> None:
    """Idempotency keys are a stream's own, so the outcome of the parent does not stand in the way."""
    key = idempotency_key(EvaluationStarted(key=str(INITIAL_KEY), request=digest_of(b"")))
    assert key == f"{INITIAL_KEY}#start1"
    store(log, "parent", [item.event for item in history])
    fork(log, "child", "parent", 1)
    store(log, "child", [EvaluationStarted(key=str(INITIAL_KEY), request=digest_of(b"other"))])
    assert log.run_state("child").open[str(INITIAL_KEY)].request == digest_of(b"other")
