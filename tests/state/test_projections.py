"""Read models: what they say of a run, and that they say the same however they were made."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import projections
from state.events import (
    EffectEnded,
    EvaluationCompleted,
    EvaluationFailed,
    EvaluationStarted,
    ExperienceRecorded,
    KernelDiscarded,
    KernelKept,
    KernelProposed,
    PlanFailed,
    PlanStarted,
    ReflectionRecorded,
    RunPaused,
    RunResumed,
)
from state.log import EventLog
from state.model import ErrorInfo, PredictionGrade, Reflection, Usage, digest_of
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from tests.support.scripted_runs import ScriptedRun, append_run

REFLECTION = Reflection(
    operator="o", bottleneck="b", technique="t", predicted_speedup=1.0, actual_speedup=None,
    grade=PredictionGrade.FAILED, lesson="none",
)  # fmt: skip


@pytest.fixture
def reader(log: EventLog):
    with LogReader.open(log.home) as opened:
        yield opened


def begin(log: EventLog, events: int = 1) -> None:
    for step in list(ScriptedRun().steps())[:events]:
        log.append_now([NewEvent("r", step.event)], blobs=step.blobs)


def test_a_run_s_row_follows_its_events(log: EventLog, reader: LogReader) -> None:
    stored = append_run(log, "r", seed=2)
    (row,) = reader.run_summaries()
    kept = [item.event.candidate for item in stored if isinstance(item.event, KernelKept)]
    best = min(kept, key=lambda candidate: candidate.latency_ms)
    assert (row["run"], row["status"], row["reason"], row["ended"]) == ("r", "completed", "rounds", 1)
    assert (row["problem"], row["target"], row["round"]) == ("matmul", "trn2", 2)
    assert (row["initial_ms"], row["best_ms"], row["best"]) == (12.0, best.latency_ms, best.id)
    assert row["speedup"] == pytest.approx(12.0 / best.latency_ms)
    assert row["predicted"] == 1
    assert row["proposed"] == sum(isinstance(item.event, KernelProposed) for item in stored)
    assert row["evaluated"] == sum(isinstance(item.event, EvaluationCompleted) for item in stored)


def test_runs_come_newest_first(log: EventLog, reader: LogReader) -> None:
    append_run(log, "b", rounds=1)
    append_run(log, "a", rounds=1)
    assert [row["run"] for row in reader.run_summaries()] == ["a", "b"]


def test_pausing_and_resuming_in_one_append_ends_running(log: EventLog, reader: LogReader) -> None:
    begin(log)
    log.append_now([NewEvent("r", RunPaused(reason="lunch"))])
    assert (reader.run_summaries()[0]["status"], reader.run_summaries()[0]["reason"]) == ("paused", "lunch")
    log.append_now(
        [NewEvent("r", RunResumed()), NewEvent("r", RunPaused(reason="x")), NewEvent("r", RunResumed())]
    )
    assert reader.run_summaries()[0]["status"] == "running"


def test_attempts_tell_plan_verdict_and_fate(log: EventLog, reader: LogReader) -> None:
    stored = append_run(log, "r", seed=2)
    rows = {row["candidate"]: row for row in reader.attempt_rows("r")}
    verdicts = {
        item.event.key.rsplit(".", 1)[0]: item.event.evaluation
        for item in stored
        if isinstance(item.event, EvaluationCompleted)
    }
    assert {name for name, row in rows.items() if row["verdict"]} == set(verdicts)
    for name, evaluation in verdicts.items():
        row = rows[name]
        assert (row["verdict"], row["stage"]) == (evaluation.verdict, evaluation.stage)
        assert row["latency_ms"] == (evaluation.benchmark.latency_ms if evaluation.benchmark else None)
        if row["round"] > 0:
            assert (row["technique"], row["planner"], row["predicted_speedup"]) == (
                row["note"],
                "builtin",
                1.1,
            )
        if row["round"] > 0 and evaluation.is_correct:
            assert row["speedup"] == pytest.approx(rows[row["parent"]]["latency_ms"] / row["latency_ms"])
    for item in stored:
        if isinstance(item.event, KernelDiscarded):
            row = rows[item.event.candidate]
            assert (row["decision"], row["reason"]) == ("discarded", item.event.reason)
        if isinstance(item.event, KernelKept):
            assert rows[item.event.candidate.id]["decision"] == "kept"
    failed = [row for row in rows.values() if row["error_code"] == "not_applicable"]
    assert all(row["source"] is None and row["verdict"] is None for row in failed)


def test_candidates_are_the_correct_ones_fastest_first(log: EventLog, reader: LogReader) -> None:
    append_run(log, "r", seed=2)
    rows = reader.candidate_rows("r")
    assert {row["verdict"] for row in rows} == {"correct"}
    latencies = [row["latency_ms"] for row in rows]
    assert latencies == sorted(latencies)
    assert reader.candidate_rows("none") == []


def test_failures_of_the_infrastructure_carry_no_verdict(log: EventLog, reader: LogReader) -> None:
    begin(log)
    key = "r0.b0.p0.k0.f0.evaluator"
    log.append_now([NewEvent("r", EvaluationStarted(key=key, request=digest_of(b"q")))])
    error = ErrorInfo(code="host_lost", message="gone")
    log.append_now([NewEvent("r", EvaluationFailed(key=key, error=error, tries=3))])
    (row,) = reader.attempt_rows("r")
    assert (row["verdict"], row["error_code"], row["error_message"]) == (None, "host_lost", "gone")


def test_a_plan_that_failed_is_kept_with_its_error(log: EventLog) -> None:
    begin(log)
    key = "r1.b0.p0.k0.f0.planner"
    log.append_now([NewEvent("r", PlanStarted(key=key, request=digest_of(b"q")))])
    log.append_now([NewEvent("r", PlanFailed(key=key, error=ErrorInfo(code="refused", message="no")))])
    found = log._query_rows("SELECT error_code, technique FROM plans WHERE run = ?", "r")
    assert found == [{"error_code": "refused", "technique": None}]


@given(st.lists(st.one_of(st.none(), st.floats(0, 10, allow_nan=False)), min_size=1, max_size=20), st.data())
def test_spend_is_exact_however_it_was_grouped(costs: list[float | None], data: st.DataObject) -> None:
    key = "r1.b0.p0.k0.f0.planner"
    error = ErrorInfo(code="x", message="")
    usages = [Usage(cost_usd=cost, input_tokens=2) for cost in costs]
    items = [
        RecordedEvent(n, "r", n, 0, PlanFailed(key=key, error=error, usage=usage), None, "", None)
        for n, usage in enumerate(usages, start=1)
    ]
    cut = data.draw(st.integers(0, len(items)))
    tables = []
    for groups in ([items], [items[:cut], items[cut:]], [[item] for item in items]):
        with closing(sqlite3.connect(":memory:")) as connection:
            projections.create_tables(connection)
            for group in groups:
                projections.project_events(connection, group)
            tables.append(connection.execute("SELECT * FROM spend").fetchall())
    assert tables[0] == tables[1] == tables[2]
    told = [(role, unknown, nano, tokens) for _, _, role, unknown, nano, tokens, *_ in tables[0]]
    assert told == [("planner", int(cost is None), round((cost or 0) * 1e9), 2) for cost in costs]


@pytest.mark.parametrize(
    ("role", "event"),
    [
        ("summarizer", partial(ExperienceRecorded, experience=None)),
        ("reflector", partial(ReflectionRecorded, reflection=REFLECTION)),
    ],
)
def test_what_learning_costs_is_spend(role: str, event: Callable[..., EffectEnded]) -> None:
    told = event(key=f"r1.b0.p0.k0.f0.{role}", usage=Usage(cost_usd=0.25))
    with closing(sqlite3.connect(":memory:")) as connection:
        projections.create_tables(connection)
        projections.project_events(connection, [RecordedEvent(1, "r", 1, 0, told, None, "", None)])
        assert connection.execute("SELECT role, cost_nano_usd FROM spend").fetchall() == [(role, 250_000_000)]


def test_free_calls_leave_no_spend(log: EventLog, reader: LogReader) -> None:
    begin(log, events=3)
    assert reader.spend_rows("r") == []


def test_a_reused_verdict_does_not_become_the_cached_one(log: EventLog, reader: LogReader) -> None:
    steps = list(ScriptedRun().steps())[:3]
    for step in steps[:2]:
        log.append_now([NewEvent("r", step.event)])
    reused = steps[2].event.model_copy(update={"cached_from": "q@3"})
    log.append_now([NewEvent("r", reused)])
    assert reader.known_evaluations(reused.cache_key) == []


def test_rebuilding_gives_the_same_tables(home: Path, stored: list[RecordedEvent]) -> None:
    with closing(sqlite3.connect(home / "events.db", isolation_level=None)) as connection:

        def dump() -> list[list[tuple[object, ...]]]:
            return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in projections.TABLES]

        before = dump()
        projections.rebuild_read_models(connection, stored)
        assert dump() == before
        with pytest.raises(sqlite3.OperationalError):
            projections.rebuild_read_models(connection, _failing(stored))
        assert dump() == before


def _failing(stored: list[RecordedEvent]):
    yield from stored[:50]
    raise sqlite3.OperationalError("half-way")
