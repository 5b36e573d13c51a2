"""Forks as the search sees them: from any event on, under new settings, and judged by something else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.events import (
    BeamSelected,
    ConfigChanged,
    EvaluationStarted,
    KernelDiscarded,
    KernelKept,
    RoundDeadlinePassed,
    RoundStarted,
    RunCompleted,
)
from state.fold import RunState
from state.model import (
    TRUSTED_AUTHORS,
    EvaluationRequest,
    Rebase,
    StopReason,
    Verdict,
)
from tests.support.sweeps import is_exhaustive, parametrize_sweep, scale_examples
from tests.support.world import Faults, LostHost, World, fold, judge_constants, refused_evaluation, small

CLOSEST = 1 if is_exhaustive() else 3
"""How many events lie between forks that a full run tries."""


def finish_world(order: int | None = None, **search) -> World:
    return World(small(rounds=2, **search), order=order).finish()


@pytest.fixture(scope="module")
def parent() -> World:
    return finish_world()


def rebase(state: RunState, **config) -> Rebase:
    return Rebase(
        config=state.config.model_copy(update={"target": "trn1", **config}),
        problem=state.problem,
        bounds=state.bounds,
        toolchain="world 2",
    )


def slower_there(source: str):
    """Another target: every latency is another, and their order is not the same."""
    found = judge_constants(source)
    if found.benchmark is None:
        return found
    latency = 10.0 / found.benchmark.latency_ms
    timed = found.benchmark.model_copy(update={"latency_ms": latency, "lo_ms": latency, "hi_ms": latency})
    return found.model_copy(update={"benchmark": timed})


# --- any event -------------------------------------------------------------------------------------


@parametrize_sweep("every", [10, CLOSEST])
def test_a_fork_of_any_event_ends_as_its_parent_did(parent, every):
    """Nothing was changed, so it is the same search: also from within a record of decisions."""
    for at in range(1, len(parent.events), every):
        assert parent.fork(at).finish().fingerprint == parent.fingerprint, at


@given(order=st.integers(0, 5), cuts=st.lists(st.floats(0, 1), min_size=2, max_size=4))
@settings(max_examples=scale_examples(30), deadline=None)
def test_forks_of_forks_agree_with_their_ancestors(order, cuts):
    parent = World(small(rounds=2), order=order).finish()
    child = parent
    for share in cuts:
        child = child.fork(1 + int(share * (len(child.events) - 2))).finish()
    assert child.fingerprint == parent.fingerprint


@given(order=st.integers(0, 1000), share=st.floats(0, 1), cut=st.floats(0, 1))
@settings(max_examples=scale_examples(20), deadline=None)
def test_any_prefix_of_any_history_folds_as_it_was_written(order, share, cut):
    """Also of a fork's, and from the text that a log stores."""
    parent = World(small(rounds=2), order=order, faults=Faults(crash=0.02)).finish()
    child = parent.fork(1 + int(share * (len(parent.events) - 2))).finish()
    events = child.events[: 1 + int(cut * (len(child.events) - 1))]
    read = [type(event).model_validate_json(event.model_dump_json()) for event in events]
    assert fold(read) == fold(events)


def test_what_is_in_flight_at_the_cut_is_asked_for_again(parent):
    at = next(n for n, event in enumerate(parent.events, 1) if fold(parent.events[:n]).open)
    child = parent.fork(at)
    assert child.state.open == {}
    assert child.state.reserved_usd == 0.0
    assert child.finish().fingerprint == parent.fingerprint


def test_a_fork_within_a_record_begins_before_it(parent):
    at = next(n for n, event in enumerate(parent.events, 1) if isinstance(event, KernelDiscarded))
    whole = next(n for n in range(at, 0, -1) if fold(parent.events[:n]).before is None)
    assert whole < at
    assert parent.fork(at).state == parent.fork(whole).state


# --- changed settings ------------------------------------------------------------------------------


def test_a_changed_setting_counts_from_the_next_round_on():
    parent = finish_world()
    at = 1 + next(n for n, event in enumerate(parent.events) if isinstance(event, RoundStarted))
    child = parent.fork(at)
    wider = child.state.config.model_copy(
        update={"search": child.state.config.search.model_copy(update={"plans": 3})}
    )
    child.append(ConfigChanged(config=wider.model_dump(mode="json")))
    child.finish()
    assert [slot.plans for event in child.of(RoundStarted) for slot in event.slots[:1]] == [2, 3]


def test_more_rounds_let_a_run_that_has_ended_go_on(parent):
    child = parent.fork(len(parent.events))
    longer = child.state.config.search.model_copy(update={"rounds": 4})
    config = child.state.config.model_copy(update={"search": longer})
    child.append(ConfigChanged(config=config.model_dump(mode="json")))
    child.finish()
    assert child.state.round == 4
    assert child.state.best.latency_ms <= parent.state.best.latency_ms


# --- judged by something else ----------------------------------------------------------------------


def test_another_target_judges_the_beam_anew_before_anything_else(parent):
    child = parent.fork(len(parent.events), rebase=rebase(parent.state), judge=slower_there)
    wanted = {parent.state.initial.id, *(entry.candidate.id for entry in parent.state.beam)}
    assert {one.id for one in child.state.rejudge} == wanted
    before = len(child.events)
    child.finish(until=lambda state: not state.rejudge)
    asked = [event for event in child.events[before:] if isinstance(event, EvaluationStarted)]
    requests = [EvaluationRequest.model_validate_json(child.blobs[event.request]) for event in asked]
    assert {request.candidate for request in requests} == wanted
    assert {(request.target, request.toolchain) for request in requests} == {("trn1", "world 2")}
    assert child.state.initial.id == parent.state.initial.id
    assert child.state.initial.latency_ms != parent.state.initial.latency_ms
    latencies = [entry.candidate.latency_ms for entry in child.state.beam]
    assert latencies == sorted(latencies)
    assert child.state.best.latency_ms == latencies[0]
    assert set(child.state.checkpoints) == {entry.candidate.lineage for entry in child.state.beam}


def test_who_wrote_a_kernel_is_asked_for_with_it(parent):
    child = parent.fork(len(parent.events), rebase=rebase(parent.state))
    before = len(child.events)
    child.finish(until=lambda state: not state.rejudge)
    asked = [event for event in child.events[before:] if isinstance(event, EvaluationStarted)]
    requests = [EvaluationRequest.model_validate_json(child.blobs[event.request]) for event in asked]
    held = {one.id: one for one in (parent.state.initial, *(entry.candidate for entry in parent.state.beam))}
    assert {one.candidate: one.author for one in requests} == {one.id: one.author for one in held.values()}
    assert held[parent.state.best.id].author in TRUSTED_AUTHORS


def test_what_was_late_for_another_target_is_left_behind(parent):
    world = World(small(rounds=2))
    world.finish(until=lambda state: any(key.endswith(".evaluator") for key in state.open) and state.in_round)
    world.append(RoundDeadlinePassed(round=1))
    assert world.state.late
    child = world.fork(len(world.events), rebase=rebase(world.state), judge=slower_there)
    assert (child.state.late, child.state.expired) == ({}, False)
    assert child.finish().state.stop is not None


@parametrize_sweep("every", [20, CLOSEST])
def test_another_target_from_any_event_runs_to_an_end(parent, every):
    for at in range(1, len(parent.events) + 1, every):
        state = fold(parent.events[:at])
        longer = state.config.search.model_copy(update={"rounds": 3})
        child = parent.fork(at, rebase=rebase(state, search=longer), judge=slower_there).finish()
        assert child.state.stop is not None, at
        rounds = [event.round for event in child.events[at:] if isinstance(event, RoundStarted)]
        assert rounds == list(range(rounds[0], 4)), at
        assert child.state.config.target == "trn1"


def test_a_fork_of_a_fork_that_waits_for_its_verdicts_judges_anew_too(parent):
    child = parent.fork(len(parent.events), rebase=rebase(parent.state), judge=slower_there)
    twin = child.fork(len(child.events)).finish()
    child.finish()
    assert twin.fingerprint == child.fingerprint


def test_before_the_initial_kernel_is_judged_there_is_nothing_to_judge_anew(parent):
    child = parent.fork(1, rebase=rebase(fold(parent.events[:1])))
    assert child.state.rejudge == ()
    child.finish()
    assert child.state.initial is not None


def test_kernels_that_are_wrong_there_are_left_out(parent):
    lost = parent.source(parent.state.best.source)

    def judge(source):
        return (
            refused_evaluation(source, Verdict.COMPILE_ERROR, "not here")
            if source == lost
            else slower_there(source)
        )

    child = parent.fork(len(parent.events), rebase=rebase(parent.state), judge=judge)
    child.finish(until=lambda state: not state.rejudge)
    assert child.of(KernelDiscarded)[-1].reason == "compile_error"
    assert parent.state.best.id not in {entry.candidate.id for entry in child.state.beam}


def test_an_initial_kernel_that_is_wrong_there_gives_way_to_the_next(parent):
    lost = parent.source(parent.state.initial.source)

    def judge(source):
        return (
            refused_evaluation(source, Verdict.INCORRECT, "not here")
            if source == lost
            else slower_there(source)
        )

    child = parent.fork(len(parent.events), rebase=rebase(parent.state), judge=judge)
    child.finish(until=lambda state: not state.rejudge)
    assert child.state.initial.id == parent.state.beam[0].candidate.id


def fail_evaluation(source):
    raise LostHost("gone")


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        (
            lambda source: refused_evaluation(source, Verdict.INCORRECT, "not here"),
            StopReason.INITIAL_REJECTED,
        ),
        (fail_evaluation, StopReason.INFRASTRUCTURE),
    ],
)
def test_a_fork_with_no_kernel_left_ends_and_says_why(parent, judge, reason):
    child = parent.fork(len(parent.events), rebase=rebase(parent.state), judge=judge).finish()
    assert child.of(RunCompleted)[-1].reason is reason
    assert child.of(KernelKept)[-1] == parent.of(KernelKept)[-1]


def test_old_latencies_are_history(parent):
    child = parent.fork(len(parent.events), rebase=rebase(parent.state), judge=slower_there)
    child.finish(until=lambda state: not state.rejudge)
    last = child.of(BeamSelected)[-1]
    assert last.round == parent.state.round
    for entry in last.beam:
        judged = slower_there(child.source(entry.candidate.source))
        assert entry.candidate.benchmark == judged.benchmark
    assert child.state.spent_usd == parent.state.spent_usd


def test_what_a_person_proposed_is_not_lost(parent):
    world = World(small(rounds=3))
    world.finish(until=lambda state: state.in_round)
    key = world.propose("TILE_M = 128\nTILE_N = 512\nBUFFERS = 4\n")
    child = world.fork(len(world.events), rebase=rebase(world.state), judge=judge_constants)
    assert str(key) in child.state.outcomes
    child.finish()
    assert child.state.best.id == key.candidate_id
