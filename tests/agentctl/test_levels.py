"""Levels through the process: verdicts used again, and what people are told of how much was compared."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from agentctl.event_lines import format_event_line
from agentctl.formatting import narrate_event
from agentctl.run_summary import summary_json, summary_text
from agentctl.run_tracker import RunTracker
from agentctl.views.run import run_view
from daemon.runner import EffectRunner
from state.events import (
    EvaluationCompleted,
    EvaluationFailed,
    ExecutionFailed,
    KernelDiscarded,
    KernelRefuted,
    ProfileRecorded,
    RunCompleted,
    effect_key,
)
from state.log import EventLog
from state.model import TRANSLATION_KEY, EffectKey, ErrorInfo, Level, Role
from state.reader import LogReader
from state.verify import verify_log
from tests.daemon.test_runner import next_effects, perform, start
from tests.support import fakes

SLICES, ONE_SEED, WHOLE = Level


@pytest.fixture(scope="module")
def refuting(tmp_path_factory):
    home = tmp_path_factory.mktemp("levels") / "home"
    run = fakes.submit_run(home, fakes.REFUTING)
    fakes.finish_runs(home, run, workers=fakes.refuting_workers())
    return home, run


@pytest.fixture
def reader(refuting):
    with LogReader.open(refuting[0]) as reader:
        yield reader


@pytest.fixture
def items(refuting, reader):
    return reader.read(stream=refuting[1], limit=10_000)


@pytest.fixture
def event_log(tmp_path):
    with EventLog.open(tmp_path / "home") as log:
        yield log


def fallen(items) -> KernelRefuted:
    (found,) = [item.event for item in items if isinstance(item.event, KernelRefuted)]
    return found


def told(run, items) -> list[str]:
    """Return what `agentctl run` says as the run goes on."""
    tracker = RunTracker(run)
    lines = []
    for item in items:
        tracker.add(item)
        lines.append(narrate_event(item.event, tracker) or "")
    return lines


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (TRANSLATION_KEY, "the reference was not translated: no instruction computes np.sort"),
        (EffectKey(1, 0, 0, 0, 0, Role.EXECUTOR), None),
    ],
)
async def test_a_run_says_why_its_reference_was_not_translated(event_log, key, line):
    run = await start(event_log)
    tracker = RunTracker(run)
    for item in event_log.read(stream=run):
        tracker.add(item)
    error = ErrorInfo(code="untranslatable", message="no instruction computes np.sort")
    assert narrate_event(ExecutionFailed(key=str(key), error=error), tracker) == line


# --- verdicts used again ---------------------------------------------------------------------------


class Judge(fakes.FakeEvaluator):
    """Notes at which levels it was asked."""

    def __init__(self, late=None) -> None:
        super().__init__(late=late or {})
        self.levels: list[Level] = []

    async def evaluate(self, request, blobs, /):
        self.levels.append(request.level)
        return await super().evaluate(request, blobs)


async def judged_at(event_log, runner, *levels):
    """Have one kernel judged at one level after another, by a run each; return the outcomes."""
    outcomes = []
    for number, level in enumerate(levels):
        run = await start(event_log, id_=f"run{number}")
        (initial,) = await next_effects(event_log, run)
        request = initial.request.model_copy(update={"level": level})
        outcomes.append(await perform(event_log, run, type(initial)(initial.key, request), runner))
    return outcomes


@pytest.mark.parametrize(
    ("levels", "judged"),
    [
        ((WHOLE, ONE_SEED, SLICES), [WHOLE]),
        ((SLICES, ONE_SEED, WHOLE), [SLICES, ONE_SEED, WHOLE]),
        ((ONE_SEED, SLICES, WHOLE, ONE_SEED), [ONE_SEED, WHOLE]),
    ],
)
async def test_a_pass_is_used_again_where_as_much_was_compared(event_log, levels, judged):
    judge = Judge()
    outcomes = await judged_at(event_log, EffectRunner(event_log, fakes.fake_workers(judge)), *levels)
    assert judge.levels == judged
    assert [one.evaluation.level for one in outcomes] == list(levels)
    assert [one.cached_from is None for one in outcomes].count(True) == len(judged)


async def test_a_rejection_is_used_again_whatever_is_asked_for(event_log):
    judge = Judge(late={0: ONE_SEED})  # the sum of the initial kernel's constants
    runner = EffectRunner(event_log, fakes.fake_workers(judge))
    outcomes = await judged_at(event_log, runner, SLICES, ONE_SEED, SLICES, WHOLE)
    assert judge.levels == [SLICES, ONE_SEED]
    assert [one.evaluation.is_correct for one in outcomes] == [True, False, False, False]


async def test_an_evaluator_that_compares_less_than_was_asked_is_not_believed(event_log):
    class Lazy(fakes.FakeEvaluator):
        async def evaluate(self, request, blobs, /):
            return await super().evaluate(request.model_copy(update={"level": SLICES}), blobs)

    (failed,) = await judged_at(event_log, EffectRunner(event_log, fakes.fake_workers(Lazy())), ONE_SEED)
    assert isinstance(failed, EvaluationFailed)
    assert (failed.error.code, failed.tries) == ("level_too_low", 1)


# --- what people are told --------------------------------------------------------------------------


def test_counters_are_recorded_with_the_first_verdict_alone(items):
    roles = [effect_key(item.event).role for item in items if isinstance(item.event, ProfileRecorded)]
    judged = [effect_key(item.event).role for item in items if isinstance(item.event, EvaluationCompleted)]
    assert set(roles) == {Role.EVALUATOR}
    assert {Role.VERIFIER, Role.AUDITOR} <= set(judged)


def test_the_lists_agree_with_the_state_about_the_best_and_what_fell(refuting, reader, items):
    home, run = refuting
    state = reader.run_state(run)
    (row,) = reader.run_summaries()
    assert (row["best"], row["best_ms"]) == (state.best.id, state.best.latency_ms)
    rows = {row["candidate"]: row for row in reader.attempt_rows(run)}
    wrong = rows[fallen(items).candidate]
    assert (wrong["decision"], wrong["reason"], wrong["level"]) == ("discarded", "refuted", "whole")
    assert (wrong["verdict"], wrong["latency_ms"]) == ("incorrect", None)
    assert rows[state.best.id]["level"] == "whole"
    assert [row["candidate"] for row in reader.candidate_rows(run)] == [state.best.id], "copies are as wrong"
    assert verify_log(home).is_ok


def test_the_report_says_how_much_of_the_best_was_compared_and_counts_what_fell(refuting, items):
    tracker = RunTracker(refuting[1])
    for item in items:
        tracker.add(item)
    early = [
        one for item in items if isinstance(one := item.event, KernelDiscarded) and one.reason == "refuted"
    ]
    assert "           found correct on whole outputs of every seed\n" in summary_text(
        tracker, None, width=200
    )
    assert summary_json(tracker, None)["discarded"]["refuted"] == len(early) + 1
    assert run_view(tracker.run, tracker.state).best_level == "whole"


def test_while_it_runs_the_best_stands_at_the_level_that_it_has(refuting, items):
    tracker = RunTracker(refuting[1])
    for item in items[: items.index(next(item for item in items if item.type == "KernelRefuted"))]:
        tracker.add(item)
    assert run_view(tracker.run, tracker.state).best_level == "one_seed"


def test_who_falls_is_named_as_it_happens_and_in_the_log_s_lines(refuting, items):
    lines = told(refuting[1], items)
    wrong = fallen(items)
    at = next(n for n, item in enumerate(items) if item.event is wrong)
    assert lines[at] == (
        f"  refuted: {wrong.candidate}, incorrect: wrong; best now {wrong.best.id}: {wrong.best.title} "
        "(2.32 ms predicted)"
    )
    early = next(n for n, item in enumerate(items) if getattr(item.event, "reason", "") == "refuted")
    assert lines[early].endswith(", incorrect when more of its outputs was compared")
    assert f"{wrong.candidate}: incorrect, best now {wrong.best.id}: wrong [incorrect]" in format_event_line(
        items[at]
    )
    assert format_event_line(items[early]).endswith("refuted, incorrect")
    started = next(
        item for item in items if item.type == "EvaluationStarted" and "verifier" in item.event.key
    )
    assert format_event_line(started).endswith(": verifier")
    (ended,) = [item for item in items if isinstance(item.event, RunCompleted)]
    assert format_event_line(ended).endswith("all rounds done; best correct on whole outputs of every seed")


def test_operators_are_warned_of_a_best_that_falls(tmp_path):
    run = fakes.submit_run(tmp_path / "home", fakes.REFUTING)
    with capture_logs() as lines:
        fakes.finish_runs(tmp_path / "home", run, workers=fakes.refuting_workers())
    (line,) = [line for line in lines if line["event"] == "kernel_refuted"]
    assert (line["run"], line["code"], line["log_level"]) == (run, "incorrect", "warning")


def test_status_and_best_say_the_level(ctl, refuting):
    home, run = refuting
    called = ctl("status", home=home)
    assert f"best found correct on whole outputs of every seed: {run}" in called.out.splitlines()
    assert ctl("best", run, "--json", home=home).json["level"] == "whole"
