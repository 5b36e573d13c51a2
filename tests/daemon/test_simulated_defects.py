"""Each invariant of the simulated worlds is broken on purpose, in the program itself, and has to notice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest

from agent_core import stop
from benchmarks import simulation
from daemon import run_queue
from daemon.runner import EffectRunner
from stability import budget
from state import call_fold, fold, projections, snapshots, stream_fold
from state.errors import EventRefused
from state.events import (
    EffectEnded,
    EffectStarted,
    ExperienceRecorded,
    KernelDiscarded,
    KernelKept,
    RoundDeadlinePassed,
    RoundStarted,
    RunPaused,
    idempotency_key,
)
from state.model import SYSTEM_STREAM, Role
from state.round_deadline import route_outcome
from state.run_state import OpenEffect, evolve
from tests.support.simulation import machine, running
from tests.support.simulation.scenario import Scenario, scenario

SEARCHED = 40


def is_found(what: str, *, where: Callable[[Scenario], bool] = lambda world: True) -> bool:
    """Return whether one of some seeds fails with `what`: of the first whose worlds could."""
    seeds = islice((seed for seed in count() if where(scenario(seed))), SEARCHED)
    outcomes = map(simulation.one, seeds)
    return any(isinstance(outcome, str) and what in outcome for outcome in outcomes)


def has_short_rounds(world: Scenario) -> bool:
    """Return whether a round of a world may take so little time that some results are late."""
    return any(run.search.round_seconds == 3 and run.search.rounds > 1 for run in world.runs)


def exceeds_its_budget(world: Scenario) -> bool:
    """Return whether the money of a run is spent before its rounds are over."""
    return world.has_prices and any(run.cap_usd < 1 and run.search.rounds == 3 for run in world.runs)


def is_paused_by_people(world: Scenario) -> bool:
    """Return whether people pause a run."""
    return any(deed.what == "pause" for deed in world.deeds)


@pytest.fixture
def folding(monkeypatch):
    """Let events of a kind be folded by `change`: of what folds them rightly, the state and the event."""

    def put(kind: type, change) -> None:
        for type_, handler in fold._HANDLERS.items():
            if issubclass(type_, kind):
                monkeypatch.setitem(fold._HANDLERS, type_, partial(change, handler))

    return put


@pytest.fixture
def hurried(monkeypatch) -> None:
    """See early that a run never ends."""
    monkeypatch.setattr(running, "PATIENCE_SECONDS", 600.0)


# --- effects ---


def test_an_effect_with_two_outcomes(monkeypatch, folding):
    async def twice(self, run, outcome, **beside) -> None:
        await record(self, run, outcome, **beside)
        await record(self, run, outcome)

    record = EffectRunner._record_outcome
    monkeypatch.setattr(EffectRunner, "_record_outcome", twice)
    monkeypatch.setattr(
        "state.appender.idempotency_key",
        lambda event: None if isinstance(event, EffectEnded) else idempotency_key(event),
    )
    folding(EffectEnded, lambda rightly, state, event: rightly(evolve(state, outcomes={}), event))
    monkeypatch.setattr(fold, "is_by_person", lambda event: True)
    assert is_found("one_outcome")


def test_an_outcome_that_nobody_asked_for(monkeypatch):
    async def elsewhere(self, run, key, request) -> None:
        await perform(self, run, key._replace(implementation=9), request)

    perform = EffectRunner.perform
    monkeypatch.setattr(EffectRunner, "perform", elsewhere)
    monkeypatch.setattr(fold, "is_by_person", lambda event: True)
    assert is_found("outcomes_were_asked_for")


def test_an_outcome_that_is_lost(monkeypatch, folding):
    """A plan that is late is forgotten, and what comes of it thrown away."""

    def forgetting(rightly, state, event):
        after = rightly(state, event)
        return evolve(after, open={key: one for key, one in after.open.items() if Role.PLANNER not in key})

    async def careless(self, run, outcome, **beside) -> None:
        with suppress(EventRefused):
            await record(self, run, outcome, **beside)

    record = EffectRunner._record_outcome
    folding(RoundDeadlinePassed, forgetting)
    monkeypatch.setattr(EffectRunner, "_record_outcome", careless)
    assert is_found("no_outcome_is_lost", where=has_short_rounds)


def test_requests_made_anew_instead_of_as_logged(monkeypatch, folding):
    """What is asked again after a kill must be what was asked before."""

    def anew(self, state, decisions):
        for key, effect in due(self, state, decisions):
            again = isinstance(effect, OpenEffect)
            yield key, effect.model_copy(update={"request": f"{effect.delivery:064d}"}) if again else effect

    def any_request(rightly, state, event):
        before = state.open.get(event.key)
        return rightly(
            state, event if before is None else event.model_copy(update={"request": before.request})
        )

    due = run_queue.RunQueue._due_effects
    monkeypatch.setattr(run_queue.RunQueue, "_due_effects", anew)
    folding(EffectStarted, any_request)
    assert is_found("redelivered_as_logged")


def test_late_results_that_count(monkeypatch):
    monkeypatch.setattr(
        fold,
        "route_outcome",
        lambda state, event: (
            route_outcome(state, event) or {"outcomes": {**state.outcomes, event.key: event}}
        ),
    )
    assert is_found("late_results_stay_out", where=has_short_rounds)


def looks_ahead(world: Scenario) -> bool:
    """Return whether a run looks ahead before it plans."""
    return any(run.search.lookahead_predictions for run in world.runs)


def test_plans_that_do_not_wait_for_looking_ahead(monkeypatch):
    monkeypatch.setattr("agent_core.round_view.look_ahead_key", lambda state, slot: None)
    assert is_found("plans_wait_for_looking_ahead", where=looks_ahead)


def test_variants_that_nobody_tells_the_planner_of(monkeypatch):
    monkeypatch.setattr("agent_core.requests.look_ahead_variants", lambda state, slot: None)
    assert is_found("plans_are_of_what_was_seen", where=looks_ahead)


def test_more_in_flight_than_there_are_slots(monkeypatch):
    monkeypatch.setattr("daemon.supervisor.Supervisor._free_slots", lambda self, kind: 8)
    assert is_found("in flight")


# --- runs ---


def test_a_start_that_overlooks_a_pause(monkeypatch):
    """Nobody looks whether a run moved on between the decision and its append."""
    monkeypatch.setattr("state.appender.Appender._check_expected", lambda self, plan, expect: None)
    monkeypatch.setattr(fold, "require_live", lambda state, event: None)
    assert is_found("nothing_starts_in_a_run_that_rests", where=is_paused_by_people)


def test_a_best_kernel_that_gets_worse(folding):
    folding(KernelKept, lambda rightly, state, event: evolve(rightly(state, event), best=event.candidate))
    assert is_found("best_only_improves")


def test_a_pause_without_a_reason(folding):
    folding(RunPaused, lambda rightly, state, event: evolve(rightly(state, event), status_reason=""))
    assert is_found("runs_rest_for_a_reason")


def test_a_run_that_waits_for_space_for_ever(monkeypatch, hurried):
    async def never(self) -> None:
        pass

    monkeypatch.setattr("daemon.disk_full.DiskSpaceGuard._resume_runs", never)
    assert is_found("have not ended")


# --- budgets ---


@pytest.mark.parametrize(
    ("rule", "what", "where"),
    [
        (budget.find_end_reason, "are spent", exceeds_its_budget),
        (stop._rounds_detail, "rounds_keep_to_their", lambda world: True),
    ],
)
def test_a_round_beyond_the_budget(monkeypatch, rule, what, where):
    monkeypatch.setattr(stop, "_RULES", tuple(one for one in stop._RULES if one[1] is not rule))
    assert is_found(what, where=where)


def test_a_candidate_that_was_not_dealt(folding):
    def generous(rightly, state, event):
        after = rightly(state, event)
        more = [slot.model_copy(update={"plans": slot.plans + 1}) for slot in after.slots]
        return evolve(after, slots=tuple(more))

    folding(RoundStarted, generous)
    assert is_found("only_what_was_dealt_starts")


def test_money_that_is_charged_twice(monkeypatch):
    rightly = call_fold.usage_charges

    def twice(spent_usd, usage):
        once = rightly(spent_usd, usage)
        return once | rightly(once.get("spent_usd", spent_usd), usage)

    monkeypatch.setattr(call_fold, "usage_charges", twice)
    assert is_found("money_adds_up", where=lambda world: world.has_prices)


# --- the log ---


def test_commands_that_are_taken_in_twice(monkeypatch):
    monkeypatch.setattr("state.appender.idempotency_key", lambda event: None)
    assert is_found("received already")


def test_acknowledged_events_that_are_not_stored(monkeypatch):
    def forgetful(connection, wanted) -> None:
        write(connection, wanted)
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")

    write = projections.write_changes
    monkeypatch.setattr(projections, "write_changes", forgetful)
    assert is_found("acknowledged and is not stored")


def test_stored_events_that_a_kill_loses(monkeypatch, tmp_path):
    """After its second kill a home is what it was after the first: sound in itself, and too old."""

    def copied(home: Path, after: Path, **options) -> None:
        first = tmp_path / home.parent.name
        if not first.exists():
            copytree(home, first, **options)
        copytree(first, after)

    copytree = shutil.copytree
    monkeypatch.setattr(machine.shutil, "copytree", copied)
    assert is_found("stored and is lost")


def test_a_state_in_memory_that_is_not_the_fold(monkeypatch):
    def inexact(stream, state, event):
        after = advance(stream, state, event)
        counted = isinstance(event, KernelDiscarded)
        return evolve(after, tally=after.tally._replace(reverts=7)) if counted else after

    advance = stream_fold.fold_event
    monkeypatch.setattr(stream_fold, "fold_event", inexact)
    assert is_found("the writer's state is not the fold")


def test_a_snapshot_that_is_not_the_fold(monkeypatch):
    def inexact(connection, saved):
        tip = restore(connection, saved)
        return tip if tip.stream == SYSTEM_STREAM else tip._replace(state=evolve(tip.state, selected=True))

    restore = snapshots.restore_tip
    monkeypatch.setattr(snapshots, "restore_tip", inexact)
    assert is_found("the stored state is not the fold")


def test_read_models_that_say_something_else(monkeypatch):
    monkeypatch.delitem(projections._HANDLERS, ExperienceRecorded)
    assert is_found("the read model", where=lambda world: world.has_prices)


@pytest.mark.slow
def test_a_trace_of_what_went_wrong(folding):
    """Runs that should end as their undisturbed twins count how often an effect was delivered."""

    def counting(rightly, state, event):
        after = rightly(state, event)
        return evolve(after, tally=after.tally._replace(reverts=after.tally.reverts + event.delivery - 1))

    folding(EffectStarted, counting)
    assert is_found("otherwise than their twins")
