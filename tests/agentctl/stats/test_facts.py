"""The facts that statistics are made of, read from logs whose every event is written out."""

from __future__ import annotations

from itertools import groupby

import pytest

from agent_core.providers.failures import Failure, FailureKind
from agent_core.roles.mechanical import reflection_of
from agentctl.stats.facts import FactsWalk, KernelFact, RunFacts, merge_facts
from agentctl.views.walk import walk_events
from state.events import (
    BeamSelected,
    CallStarted,
    Event,
    ExperienceRecorded,
    KernelDiscarded,
    KernelProposed,
    KernelRefuted,
    PlanProposed,
    PlanStarted,
    ReflectionRecorded,
    ReflectionStarted,
    RunForked,
    SummaryStarted,
)
from state.log import EventLog
from state.model import PERSON, Rebase, Verdict, digest_of
from state.reader import LogReader
from state.records import NewEvent
from tests.agentctl.stats import history
from tests.agentctl.stats.history import BIG, SMALL, History, one_round
from tests.daemon.calls import fake_models as models
from tests.support import role_requests as asking

FIRST = "r1.b0.p0.k0.f0"
SECOND = "r2.b0.p0.k0.f0"


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def read(log: EventLog, run: str) -> RunFacts:
    with LogReader.open(log.home) as reader:
        (row,) = reader.run_rows(run)
        found = FactsWalk(reader.get_blob)
        assert list(walk_events(reader, run, found))
        return found.build_facts(row, reader.attempt_rows(run))


def second(told: History, latency_ms: float) -> None:
    """A second round, of one kernel that is kept as a gain."""
    told.round(2, BIG)
    told.plan(SECOND, "hoist")
    told.kernel(SECOND, latency_ms)
    told.close(2, {SECOND: latency_ms}, gained=[SECOND])


def usable(found: RunFacts) -> list[tuple[str, list[bool | None]]]:
    """Whether answers were usable, by role, in order."""
    rows = [(one.role, one.usable) for one in found.charges if one.model]
    return [(role, [said for _, said in mine]) for role, mine in groupby(rows, key=lambda row: row[0])]


# --- one run ----------------------------------------------------------------------------------------


def test_each_attempt_at_an_answer_is_there_with_what_came_of_it(event_log):
    one_round(event_log)
    charges = read(event_log, "first").charges
    assert [(one.role, one.outcome) for one in charges[:3]] == [
        ("planner", "server"),
        ("planner", "answered"),
        ("executor", "answered"),
    ]
    assert (charges[0].tokens, charges[0].cost_nano_usd, charges[0].ms) == (None, 0, 500.0)
    assert (charges[1].tokens, charges[1].cost_nano_usd) == (history.TOKENS, 250_000_000)
    (lost,) = [one for one in charges if one.outcome == "lost"]
    assert (lost.model, lost.cost_nano_usd, lost.charged_tokens, lost.ms) == (SMALL, 10**9, 500, None)
    assert [one.model for one in charges] == [BIG] * 7 + [SMALL] * 5


def test_an_answer_is_usable_when_it_became_what_was_asked_for(event_log):
    """Not one whose fault was told, nor the last of an effect that failed."""
    one_round(event_log)
    assert usable(read(event_log, "first")) == [
        ("planner", [None, True]),
        ("executor", [False, True]),
        ("planner", [True]),
        ("executor", [True]),
        ("repairer", [True]),
        ("planner", [False, False, True]),
        ("executor", [None, False]),
    ]


def test_kernels_are_told_with_their_verdict_and_fate(event_log):
    one_round(event_log)
    fast, wrong, mended, none = read(event_log, "first").kernels
    assert fast == KernelFact(
        fast.seq, chain=fast.seq, round=1, repair=0, author=BIG, technique="hoist", proposed=True,
        verdict="correct", speedup=1.5, gain=1.5, kept=True, improved=True,
    )  # fmt: skip
    assert (wrong.is_valid, wrong.speedup, wrong.gain, wrong.chain) == (False, None, None, wrong.seq)
    assert (mended.repair, mended.chain, mended.is_valid, mended.gain) == (1, wrong.seq, True, 12 / 10)
    assert (mended.kept, mended.improved) == (False, False)
    assert (none.proposed, none.author, none.technique, none.verdict) == (False, SMALL, "hoist", None)


def test_kernels_kept_without_a_gain_are_no_improvements(event_log):
    told = History(event_log, "first").begin()
    told.round(1, BIG)
    told.plan(FIRST, "hoist")
    told.kernel(FIRST, 11.99)
    told.close(1, {FIRST: 11.99})
    (one,) = read(event_log, "first").kernels
    assert (one.kept, one.improved) == (True, False)


def test_a_kernel_that_was_refuted_was_never_valid_nor_were_its_copies(event_log):
    told = one_round(event_log)
    copy = "r1.b0.p1.k0.f1"
    told.say(KernelDiscarded(candidate=copy, reason="duplicate", duplicate_of=FIRST))
    assert [one.is_valid for one in read(event_log, "first").kernels] == [True, False, True, False]
    told.say(
        KernelRefuted(
            candidate=FIRST, verdict=Verdict.INCORRECT, error=history.WRONG, best=None, beam=(),
            checkpoints=(), memory=(), reflections=(), attempts=(), credits={},
        )
    )  # fmt: skip
    found = read(event_log, "first")
    one = found.kernels[0]
    assert (one.is_valid, one.speedup, one.gain, one.kept, one.improved) == (False, None, None, False, False)
    assert [one.is_valid for one in found.kernels] == [False] * 4
    assert found.speedup is None


def test_a_persons_kernel_is_no_improvement_of_the_runs(event_log):
    told = History(event_log, "first").begin()
    told.round(1, BIG)
    mine = "r1.b1000.p0.k0.f0"
    told.say(KernelProposed(key=f"{mine}.executor", source=history.source(6.0), author=PERSON))
    told.judge(mine, 6.0)
    told.close(1, {mine: 6.0}, gained=[mine])
    (one,) = read(event_log, "first").kernels
    assert (one.author, one.technique, one.kept, one.improved, one.gain) == (PERSON, None, True, False, 2.0)


def test_a_run_whose_first_kernel_was_rejected_has_no_speedup(event_log):
    History(event_log, "first").begin(correct=False)
    found = read(event_log, "first")
    assert (found.speedup, found.predicted, found.charges, found.kernels) == (None, None, (), ())


# --- answers that leave nothing ----------------------------------------------------------------------


def summarized(told: History, place: str, answers: int) -> None:
    key = f"{place}.summarizer"
    told.say(SummaryStarted(key=key, request=history.REQUEST))
    told.ask(key, "summarizer", BIG, ["ok"] * answers)
    told.say(ExperienceRecorded(key=key, experience=None))


def test_that_there_is_nothing_to_summarize_is_an_answer_unless_it_is_the_second(event_log):
    told = History(event_log, "first").begin()
    told.round(1, BIG)
    summarized(told, FIRST, 1)
    summarized(told, "r1.b0.p1.k0.f0", 2)
    assert [one.usable for one in read(event_log, "first").charges] == [True, False, False]


@pytest.fixture
def asked():
    """The request of a reflection, and the note that needs no model."""
    request = asking.Blobs().reflect_request(asking.evaluation_of())
    return request.model_dump_json().encode(), reflection_of(request)


def reflected(told: History, request: bytes, outcome, *, stored: bool = True) -> None:
    key = f"{FIRST}.reflector"
    started = ReflectionStarted(key=key, request=digest_of(request))
    told.log.append_now([NewEvent(told.run, started)], blobs=[request] if stored else [])
    told.ask(key, "reflector", BIG, ["ok", "ok"])
    told.say(ReflectionRecorded(key=key, reflection=outcome))


@pytest.mark.parametrize(("lesson", "said"), [("a model's", True), (None, False)])
def test_a_second_reflection_is_usable_where_its_lesson_is_more_than_arithmetic(
    event_log, asked, lesson, said
):
    request, note = asked
    told = History(event_log, "first").begin()
    told.round(1, BIG)
    reflected(told, request, note.model_copy(update={"lesson": lesson}) if lesson else note)
    assert [one.usable for one in read(event_log, "first").charges] == [False, said]


def test_nobody_knows_of_a_second_reflection_whose_request_is_gone(event_log, asked):
    told = History(event_log, "first").begin()
    told.round(1, BIG)
    reflected(told, *asked, stored=False)
    assert [one.usable for one in read(event_log, "first").charges] == [False, None]


# --- forks --------------------------------------------------------------------------------------------


def test_a_fork_has_what_its_parent_had_and_both_together_have_it_once(event_log):
    parent = one_round(event_log)
    child = History(event_log, "child").fork("first")
    second(parent, 6.0)
    second(child, 4.0)
    runs = [read(event_log, "first"), read(event_log, "child")]
    assert [(len(run.charges), len(run.kernels), run.speedup) for run in runs] == [(14, 5, 2.0), (14, 5, 3.0)]
    assert runs[0].charges[:12] == runs[1].charges[:12]
    assert runs[0].kernels[:4] == runs[1].kernels[:4]
    charges, kernels = merge_facts(runs)
    assert (len(charges), [one.gain for one in kernels]) == (16, [1.5, None, 1.2, None, 2.0, 3.0])
    assert merge_facts([runs[1]]) == (runs[1].charges, runs[1].kernels)


def test_a_question_in_flight_at_a_cut_is_the_parents_and_asked_again_by_the_fork(event_log):
    parent = History(event_log, "first").begin()
    parent.round(1, BIG)
    started = PlanStarted(key=f"{FIRST}.planner", request=history.REQUEST)
    parent.say(started)
    parent.ask(f"{FIRST}.planner", "planner", BIG, ["ok"])
    child = History(event_log, "child").fork("first")
    plan = history.planned("hoist")
    parent.say(PlanProposed(key=f"{FIRST}.planner", plan=plan))
    child.plan(FIRST, None, calls=["rate", "ok"])
    runs = [read(event_log, "first"), read(event_log, "child")]
    assert [[one.usable for one in run.charges] for run in runs] == [[True], [None, None, False]]
    charges, _ = merge_facts(runs)
    assert [one.usable for one in charges] == [True, None, False]


def test_what_a_fork_judges_by_something_else_does_not_compare_with_before(event_log):
    """Its first kernel takes 24 ms there; one of 12 ms is twice as fast."""
    one_round(event_log)
    config = event_log.run_state("first").config.model_copy(update={"target": "trn1"})
    rebase = Rebase(
        config=config, problem=history.problem("matmul"), bounds=history.BOUNDS, toolchain="sim-2"
    )
    child = History(event_log, "child").fork("first", rebase)
    first = "r0.b0.p0.k0.f0"
    child.judge(first, 24.0)
    child.keep(first, 24.0)
    child.say(BeamSelected(round=1, beam=(history.entry(first, 24.0),)))
    second(child, 12.0)
    found = read(event_log, "child")
    assert (found.task, found.speedup) == (("matmul", "full", "trn1"), 2.0)
    assert [(one.counts, one.gain) for one in found.kernels] == [(False, None)] * 4 + [(True, 2.0)]
    assert len(found.charges) == 14


def test_wherever_a_fork_is_cut_it_adds_nothing_to_its_parent(event_log):
    one_round(event_log)
    with LogReader.open(event_log.home) as reader:
        places = reader.read(stream="first", limit=10_000)
    whole = read(event_log, "first")
    for item in places:
        child = f"child-{item.run_seq}"
        event = RunForked(parent="first", parent_seq=item.run_seq, parent_hash=item.hash)
        event_log.append_now([NewEvent(child, event)])
        found = read(event_log, child)
        before = [one.seq for one in whole.charges if one.seq <= item.seq]
        assert [one.seq for one in found.charges] == before
        assert [one.seq for one in found.kernels] == [one.seq for one in whole.kernels if one.seq <= item.seq]
        assert merge_facts([whole, found]) == (whole.charges, whole.kernels)
    assert found.kernels == whole.kernels
    assert found.charges == whole.charges


# --- real runs ----------------------------------------------------------------------------------------


async def test_charges_of_a_run_add_up_to_what_its_lists_and_its_state_say(event_log):
    def script(request, delivery):
        if delivery == 1:
            return Failure(kind=FailureKind.SERVER, message="down")
        return models.answer_request(request, delivery)

    run = await models.finish_run(event_log, models.FakeProvider(script=script))
    found, state = read(event_log, run), event_log.run_state(run)
    spent = sum(one.cost_nano_usd or 0 for one in found.charges) / 1e9
    with LogReader.open(event_log.home) as reader:
        (row,) = reader.run_summaries()
        rows = reader.spend_rows(run)
    assert spent == pytest.approx(row["spent_usd"]) == pytest.approx(state.spent_usd)
    assert len(found.charges) == state.spent_calls == sum(one["calls"] for one in rows)
    assert sum(one.outcome == "answered" for one in found.charges) == sum(one["answered"] for one in rows)
    assert sum(one.proposed for one in found.kernels) == row["proposed"] == state.tally.proposed
    assert {one.author for one in found.kernels} == {models.MODEL}
    made = [event for event in told(event_log, run, CallStarted) if event.call == 1]
    slips = len({event.key for event in made})
    unusable = [one for one in found.charges if one.outcome == "answered" and not one.usable]
    assert len(unusable) == slips > 0


def told(event_log: EventLog, run: str, kind: type[Event]) -> list:
    return [item.event for item in event_log.read(stream=run, limit=10_000) if isinstance(item.event, kind)]
