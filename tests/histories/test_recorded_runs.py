"""Recorded runs: today's code folds, decides, reports and makes them as the code did that made them.

`record.py` makes them, `history.py` says what is kept. What is meant to change a run records it again.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from agent_core.decide import decide
from agent_core.effects import Effect
from state.blobs import referenced_digests
from state.events import EffectStarted, idempotency_key
from state.model import digest_of
from tests.histories import record
from tests.histories.history import (
    NAMES,
    RUNS,
    History,
    archive_of,
    digest_report,
    load,
    summarize_history,
    tell_outcome,
)

COVERED = (
    "SequencesGiven PredictionBatch PlanFailed ExecutionFailed EvaluationFailed ExperienceRecorded "
    "ReflectionRecorded MemoryCurated KernelKept KernelDiscarded KernelReverted KernelRefuted "
    "RoundDeadlinePassed ConfigChanged RunForked RunPaused RunResumed RunCancelled RunCompleted "
    "CallFailed CallCompleted BudgetWarned BudgetShort"
)

every_run = pytest.mark.parametrize("name", NAMES)


@cache
def history_of(name: str) -> History:
    return load(archive_of(name))


@cache
def facts_of(name: str) -> dict[str, Any]:
    return summarize_history(history_of(name))


@pytest.fixture
def kept(name: str) -> dict[str, Any]:
    """What the run came to when it was recorded."""
    return json.loads((RUNS / f"{name}.json").read_text(encoding="utf-8"))


def test_the_runs_are_those_that_can_be_made_anew_and_have_all_that_runs_do() -> None:
    assert sorted(record.RECIPES) == [name for name in NAMES if "/" not in name]
    seen = {type(event).__name__ for name in NAMES for event in history_of(name).events}
    assert seen >= set(COVERED.split())


@every_run
@pytest.mark.parametrize("part", ["events", "head", "state_hash", "decision_digest", "best", "codes"])
def test_it_comes_to_the_same(name: str, kept: dict[str, Any], part: str) -> None:
    assert facts_of(name)[part] == kept[part]


@every_run
def test_the_log_would_take_each_event_once_under_the_same_key(name: str) -> None:
    history = history_of(name)
    assert tuple(idempotency_key(event) for event in history.events) == history.keys


@every_run
def test_the_same_is_asked_for_after_each_event(name: str, kept: dict[str, Any]) -> None:
    now = facts_of(name)
    for number, (here, then) in enumerate(zip(now["asked"], kept["asked"], strict=True), start=1):
        assert here == then, f"after event {number}"
    assert now["decisions"] == kept["decisions"]


@every_run
def test_what_was_begun_is_what_is_asked_for(name: str) -> None:
    """The log has the digest of each request; those that are delivered again are as they were logged."""
    history = history_of(name)
    asked: dict[str, str] = {}
    for number, (event, state) in enumerate(zip(history.events, history.states(), strict=True), start=1):
        if isinstance(event, EffectStarted) and event.delivery == 1:
            assert asked.get(event.key) == event.request, f"event {number}: {event.key}"
        effects = [one for one in decide(state) if isinstance(one, Effect)]
        asked = {str(one.key): digest_of(one.request.model_dump_json().encode()) for one in effects}


@every_run
def test_what_its_events_name_is_stored(name: str) -> None:
    history = history_of(name)
    named = {digest for event in history.events for digest in referenced_digests(event)}
    assert named
    assert named <= history.blobs.keys()


@every_run
def test_another_log_takes_it_in_and_the_report_is_the_same(name, kept, home) -> None:
    assert digest_report(archive_of(name), home) == kept["report"]


@pytest.mark.parametrize("name", sorted(record.RECIPES.keys() - record.IN_NO_ORDER))
def test_made_anew_it_has_the_same_requests_and_outcomes(name, tmp_path) -> None:
    then, now = tell_outcome(history_of(name)), tell_outcome(load(record.record_run(name, tmp_path)))
    differing = {key: (then.get(key), now.get(key)) for key in then | now if then.get(key) != now.get(key)}
    assert differing == {}
