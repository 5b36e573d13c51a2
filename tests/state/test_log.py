"""The writer: what an append promises, and what it refuses."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path

import pytest

from state import stream_fold
from state.errors import BlobMissing, DuplicateOutcome, EventRefused, LogClosed, StaleAppend, StreamUnknown
from state.events import (
    CommandCompleted,
    CommandReceived,
    EvaluationStarted,
    PlanProposed,
    PlanStarted,
    ProfileRecorded,
    RunCancelled,
    RunPaused,
)
from state.fold import apply_event
from state.log import EventLog
from state.model import SYSTEM_STREAM, Plan, Prediction, digest_of
from state.records import NewEvent
from state.writer import MAX_HERE
from tests.support.scripted_runs import ScriptedRun, append_run

KEY = "r0.b0.p0.k0.f0.evaluator"
REQUEST = digest_of(b"request")


def begin(log: EventLog, run: str = "r") -> None:
    step = next(ScriptedRun().steps())
    log.append_now([NewEvent(run, step.event)], blobs=step.blobs)


def run_created_event(run: str = "r", **changes: object) -> NewEvent:
    return NewEvent(run, EvaluationStarted(**{"key": KEY, "request": REQUEST, **changes}))


def test_a_run_is_numbered_folded_and_read_back_as_it_was_appended(log: EventLog) -> None:
    events = [step.event for step in ScriptedRun(seed=3).steps()]
    stored = append_run(log, "r", seed=3)
    assert (
        [item.seq for item in stored] == [item.run_seq for item in stored] == list(range(1, len(events) + 1))
    )
    read = log.read(stream="r", limit=10_000)
    assert read == stored
    assert [item.event for item in read] == events
    state = None
    for event in events:
        state = apply_event(state, event)
    assert log.run_state("r") == state


def test_streams_have_their_own_numbers_and_share_the_log_s(log: EventLog) -> None:
    begin(log, "a")
    begin(log, "b")
    (second,) = log.append_now([run_created_event("a")])
    assert (second.seq, second.run_seq) == (3, 2)
    assert (log.run_seq("a"), log.run_seq("b"), log.run_seq("c")) == (2, 1, 0)


def test_cause_and_time_are_kept(log: EventLog) -> None:
    begin(log)
    (item,) = log.append_now([NewEvent("r", run_created_event().event, cause=1)])
    assert log.read(after=1)[0].cause == 1
    assert item.time.tzinfo is not None
    assert item.type == "EvaluationStarted"


def test_an_append_is_all_or_nothing(log: EventLog) -> None:
    begin(log)
    before = log.run_state("r")
    with pytest.raises(EventRefused, match="delivery 7 out of order"):
        log.append_now(
            [NewEvent("r", RunPaused(reason="x")), run_created_event(delivery=7)], blobs=[b"request"]
        )
    assert log.run_state("r") == before
    assert log.head.seq == 1
    with pytest.raises(BlobMissing):
        log.get_blob(REQUEST)


def test_an_event_that_cannot_follow_is_refused_before_it_is_stored(log: EventLog) -> None:
    with pytest.raises(EventRefused, match="before RunCreated"):
        log.append_now([run_created_event()])
    assert log.head.seq == 0
    assert log.read() == []


@pytest.mark.parametrize("stream", ["", "a b", "a\x1fb", "../x", "x" * 129])
def test_a_stream_s_name_is_checked(log: EventLog, stream: str) -> None:
    with pytest.raises(EventRefused, match="not a stream"):
        log.append_now([run_created_event(stream)])


def test_an_empty_append_is_refused(log: EventLog) -> None:
    with pytest.raises(EventRefused, match="at least one event"):
        log.append_now([])


def test_text_that_json_cannot_spell_is_refused(log: EventLog) -> None:
    begin(log)
    with pytest.raises(EventRefused, match="cannot be written as JSON"):
        log.append_now([NewEvent("r", RunPaused(reason="\ud800"))])


def test_a_caller_that_missed_events_is_told(log: EventLog) -> None:
    begin(log)
    log.append_now([run_created_event()], expect={"r": 1})
    with pytest.raises(StaleAppend) as caught:
        log.append_now([NewEvent("r", RunPaused(reason="x"))], expect={"r": 1})
    assert (caught.value.stream, caught.value.expected, caught.value.actual) == ("r", 1, 2)


def test_expecting_an_empty_stream_means_being_first(log: EventLog) -> None:
    step = next(ScriptedRun().steps())
    log.append_now([NewEvent("r", step.event)], expect={"r": 0, "other": 0})
    with pytest.raises(StaleAppend):
        log.append_now([NewEvent("q", step.event)], expect={"r": 0})


# --- idempotency ---


def test_a_repeated_append_returns_what_is_stored(log: EventLog) -> None:
    begin(log)
    first = log.append_now([run_created_event()], expect={"r": 1})
    again = log.append_now([run_created_event()], expect={"r": 1})
    assert again == first
    assert log.head.seq == 2


def test_a_repeat_covers_events_without_a_key_of_their_own(log: EventLog) -> None:
    begin(log)
    batch = [NewEvent("r", RunPaused(reason="a")), run_created_event(), NewEvent("r", RunPaused(reason="b"))]
    first = log.append_now(batch)
    assert log.append_now(batch) == first
    assert log.head.seq == 4


def test_a_key_taken_by_another_payload_is_an_error(log: EventLog) -> None:
    begin(log)
    log.append_now([run_created_event()])
    with pytest.raises(DuplicateOutcome, match="event 2") as caught:
        log.append_now([run_created_event(request=digest_of(b"other"))])
    assert (caught.value.key, caught.value.seq) == (f"{KEY}#start1", 2)


def test_a_half_new_append_is_no_repeat(log: EventLog) -> None:
    begin(log)
    log.append_now([run_created_event()])
    with pytest.raises(DuplicateOutcome):
        log.append_now([run_created_event(), NewEvent("r", RunPaused(reason="new"))])
    assert log.head.seq == 2


def test_one_append_cannot_hold_a_key_twice(log: EventLog) -> None:
    begin(log)
    with pytest.raises(DuplicateOutcome, match="in the same append"):
        log.append_now([run_created_event(), run_created_event()])
    assert log.head.seq == 1


def test_an_effect_cannot_have_two_outcomes(log: EventLog) -> None:
    begin(log)
    key = "r1.b0.p0.k0.f0.planner"
    plan = Plan(technique="t", site="s", title="one", prediction=Prediction(speedup=1.5))
    log.append_now([NewEvent("r", PlanStarted(key=key, request=REQUEST))])
    log.append_now([NewEvent("r", PlanProposed(key=key, plan=plan))])
    other = PlanProposed(key=key, plan=plan.model_copy(update={"title": "two"}))
    with pytest.raises(DuplicateOutcome, match="planner#outcome is recorded already"):
        log.append_now([NewEvent("r", other)])


async def test_equal_appends_racing_each_other_are_stored_once(log: EventLog) -> None:
    begin(log)
    answers = await asyncio.gather(*(log.append([run_created_event()]) for _ in range(20)))
    assert len(set(answers)) == 1
    assert log.head.seq == 2


async def test_of_two_payloads_racing_for_a_key_one_wins(log: EventLog) -> None:
    begin(log)
    rivals = [run_created_event(), run_created_event(request=digest_of(b"other"))] * 5
    answers = await asyncio.gather(*(log.append([rival]) for rival in rivals), return_exceptions=True)
    won = [answer for answer in answers if isinstance(answer, tuple)]
    assert len(won) == 5
    assert len({answer[0].seq for answer in won}) == 1
    assert all(isinstance(answer, DuplicateOutcome) for answer in answers if answer not in won)


def test_keys_belong_to_a_stream(log: EventLog) -> None:
    begin(log, "a")
    begin(log, "b")
    log.append_now([run_created_event("a")])
    log.append_now([run_created_event("b")])
    assert log.head.seq == 4


# --- many callers ---


async def test_a_refused_append_does_not_fail_its_neighbours(log: EventLog) -> None:
    begin(log)
    keys = [f"r1.b0.p{n}.k0.f0.planner" for n in range(40)]
    good = [[NewEvent("r", PlanStarted(key=key, request=REQUEST))] for key in keys]
    bad = [[NewEvent("r", PlanStarted(key=key, request=REQUEST, delivery=5))] for key in keys]
    mixed = [batch for pair in zip(good, bad, strict=True) for batch in pair]
    answers = await asyncio.gather(*map(log.append, mixed), return_exceptions=True)
    assert all(isinstance(answer, tuple) for answer in answers[::2])
    assert all(isinstance(answer, EventRefused) for answer in answers[1::2])
    assert set(log.run_state("r").open) == set(keys)
    assert log.head.seq == 41


async def test_a_fold_s_bug_is_reported_to_its_caller_alone(log: EventLog, monkeypatch) -> None:
    begin(log)
    real = stream_fold.fold_event

    def buggy(stream, state, event):
        if isinstance(event, RunPaused):
            raise KeyError("surprise")
        return real(stream, state, event)

    monkeypatch.setattr(stream_fold, "fold_event", buggy)
    answers = await asyncio.gather(
        log.append([NewEvent("r", RunPaused(reason=""))]),
        log.append([run_created_event()]),
        return_exceptions=True,
    )
    assert isinstance(answers[0], EventRefused)
    assert isinstance(answers[0].__cause__, KeyError)
    assert answers[1][0].run_seq == 2


async def test_a_cancelled_caller_leaves_the_writer_alive(log: EventLog) -> None:
    begin(log)
    task = asyncio.create_task(log.append([run_created_event()]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (stored,) = await log.append([run_created_event()])
    assert stored.run_seq == 2


def test_threads_may_append_side_by_side(log: EventLog) -> None:
    scripts = {f"run{n}": {"seed": n, "rounds": 1} for n in range(6)}
    threads = [threading.Thread(target=append_run, args=(log, run), kwargs=kw) for run, kw in scripts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run, parameters in scripts.items():
        assert [i.event for i in log.read(stream=run)] == [s.event for s in ScriptedRun(**parameters).steps()]


def note_commits(log: EventLog, monkeypatch) -> list[tuple[bool, int]]:
    """Return a list that gets, for each commit, whether it is in the caller's thread, and its appends."""
    with log.pause_appends():  # until the writer's thread is through with what was appended before
        noted: list[tuple[bool, int]] = []
    real, here = log._appender.append, threading.current_thread()

    def append(drafts):
        noted.append((threading.current_thread() is here, len(drafts)))
        return real(drafts)

    monkeypatch.setattr(log._appender, "append", append)
    return noted


@pytest.mark.parametrize(("count", "is_here"), [(1, True), (8, True), (MAX_HERE + 1, False)])
async def test_appends_of_one_turn_share_a_commit_in_its_thread(
    log: EventLog, monkeypatch, count: int, is_here: bool
) -> None:
    begin(log)
    commits = note_commits(log, monkeypatch)
    events = [
        [NewEvent("r", PlanStarted(key=f"r1.b0.p{n}.k0.f0.planner", request=REQUEST))] for n in range(count)
    ]
    stored = await asyncio.gather(*map(log.append, events))
    assert [item.run_seq for (item,) in stored] == [*range(2, count + 2)]
    if is_here:
        assert commits == [(True, count)]
    else:
        assert sum(size for _, size in commits) == count
        assert not any(here for here, _ in commits)


async def test_a_slow_disk_does_not_hold_the_event_loop(log: EventLog, monkeypatch) -> None:
    begin(log)
    monkeypatch.setattr("state.writer.QUICK_COMMIT_S", -1.0)
    commits = note_commits(log, monkeypatch)
    await log.append([run_created_event()])
    assert commits == [(False, 1)]


async def test_callers_are_held_back_when_the_queue_is_full(log: EventLog, monkeypatch) -> None:
    monkeypatch.setattr("state.log.MAX_WAITING", 1)
    begin(log)
    events = [
        [NewEvent("r", PlanStarted(key=f"r1.b0.p{n}.k0.f0.planner", request=REQUEST))] for n in range(50)
    ]
    await asyncio.gather(*map(log.append, events))
    assert log.run_seq("r") == 51


# --- blobs, states, life ---


def test_blobs_are_stored_with_their_event_and_once(log: EventLog, home: Path) -> None:
    begin(log)
    big = b"def kernel(): pass\n" * 500
    log.append_now([run_created_event()], blobs=[b"request", big, b"", b"request"])
    assert [log.get_blob(digest_of(data)) for data in (b"request", big, b"")] == [b"request", big, b""]


def test_a_missing_blob_is_named(log: EventLog) -> None:
    with pytest.raises(BlobMissing, match=REQUEST):
        log.get_blob(REQUEST)
    with pytest.raises(BlobMissing, match="not a digest"):
        log.get_blob("xyz")


def test_floats_that_json_cannot_spell_survive(log: EventLog) -> None:
    begin(log)
    counters = {"nan": math.nan, "inf": math.inf, "minus": -math.inf}
    profile = ProfileRecorded(key=KEY, profile=REQUEST, counters=counters)
    log.append_now([NewEvent("r", profile)])
    back = log.read(after=1)[0].event.counters
    assert math.isnan(back["nan"])
    assert (back["inf"], back["minus"]) == (math.inf, -math.inf)


def test_an_unknown_run_is_named(log: EventLog) -> None:
    with pytest.raises(StreamUnknown, match="no run nope"):
        log.run_state("nope")
    with pytest.raises(StreamUnknown, match="no run nope"):
        log.read(stream="nope")


def test_the_system_stream_has_its_own_fold(log: EventLog) -> None:
    assert log.system_state().pending == {}
    received = CommandReceived(id="c1", verb="pause", payload=REQUEST)
    log.append_now([NewEvent(SYSTEM_STREAM, received)])
    assert list(log.system_state().pending) == ["c1"]
    log.append_now([NewEvent(SYSTEM_STREAM, CommandCompleted(id="c1"))])
    assert (log.system_state().pending, log.system_state().answered) == ({}, 1)
    with pytest.raises(EventRefused):
        log.append_now([NewEvent(SYSTEM_STREAM, RunPaused(reason=""))])


def test_active_runs_are_those_that_have_not_ended(log: EventLog) -> None:
    append_run(log, "done", rounds=1)
    begin(log, "live")
    begin(log, "gone")
    log.append_now([NewEvent("gone", RunCancelled(reason="enough"))])
    assert log.active_runs() == ("live",)


def test_states_of_ended_runs_leave_memory_and_are_found_again(log: EventLog) -> None:
    for number in range(12):
        append_run(log, f"run{number}", seed=number, rounds=1)
    in_memory = [run for run in (f"run{n}" for n in range(12)) if log._appender.cached_tip(run) is not None]
    assert len(in_memory) == 8
    assert log.run_state("run0").status == "completed"
    with pytest.raises(EventRefused, match="run that is completed"):
        log.append_now([NewEvent("run0", RunPaused(reason=""))])


def test_everything_is_there_after_closing_and_opening_again(home: Path) -> None:
    with EventLog.open(home) as log:
        append_run(log, "r", seed=4)
        begin(log, "live")
        state, head = log.run_state("r"), log.head
    with EventLog.open(home) as log:
        assert (log.run_state("r"), log.head, log.active_runs()) == (state, head, ("live",))
        (item,) = log.append_now([run_created_event("live")])
        assert item.seq == head.seq + 1


def test_a_closed_log_refuses_appends_and_may_be_closed_again(home: Path) -> None:
    log = EventLog.open(home)
    begin(log)
    log.close()
    log.close()
    with pytest.raises(LogClosed):
        log.append_now([run_created_event()])


async def test_closing_stores_what_waits(home: Path) -> None:
    log = EventLog.open(home)
    begin(log)
    task = asyncio.create_task(log.append([run_created_event()]))
    await asyncio.sleep(0)
    log.close()
    assert (await task)[0].run_seq == 2


def test_a_home_and_its_files_are_private(log: EventLog, home: Path) -> None:
    begin(log)
    assert home.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o037 for path in home.iterdir()} == {0}  # a group may be let in to read
