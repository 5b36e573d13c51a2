"""decide, as runs in memory: phases, repairs, people, faults, and what ends a run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agent_core.decide import decide
from agent_core.effects import Effect, LearningContext, PlanRequest, Record
from agent_core.roles import KernelAnswer
from agent_core.roles.scripted import BROKEN_SOURCE, ScriptedProposer
from state.events import (
    BeamSelected,
    ConfigChanged,
    EvaluationCompleted,
    EvaluationStarted,
    ExecutionStarted,
    KernelDiscarded,
    KernelKept,
    KernelProposed,
    KernelReverted,
    MemoryCurated,
    PlanStarted,
    ReflectionRecorded,
    ReflectionStarted,
    RoundCompleted,
    RoundStarted,
    RunCancelled,
    RunCompleted,
    RunForked,
    RunPaused,
    RunResumed,
    SummaryStarted,
)
from state.fold import RunState, apply_event
from state.model import (
    INITIAL_KEY,
    BeamRole,
    EffectKey,
    Role,
    RunStatus,
    StopReason,
    Verdict,
    digest_of,
)
from tests.support.path_kernels import ROOT, Paths, judge_flaws, judged_by, list_started_effects
from tests.support.world import (
    LostHost,
    World,
    correct_evaluation,
    judge_constants,
    refused_evaluation,
    small,
)


def create_path_world(table: dict[str, float], **search: object) -> World:
    """Return a world whose kernels are the paths of `table`."""
    numbers = {"beam": 2, "plans": 2, "implementations": 1, "rounds": 4, "repairs": 0} | search
    judge = judged_by({ROOT: 10.0} | table)
    return World(small(**numbers), kernel=ROOT, proposer=Paths(), judge=judge)


def in_round(number: int):
    return lambda state: state.round == number and state.in_round


# --- the initial kernel ----------------------------------------------------------------------------


def test_first_the_initial_kernel_is_judged_and_asked_for_once():
    world = World()
    (effect,) = decide(world.state)
    assert isinstance(effect, Effect)
    assert effect.key == INITIAL_KEY
    assert effect.request.source == world.state.kernel
    world.step()
    assert decide(world.state) == []


def test_a_correct_initial_kernel_is_the_first_beam_lineage_and_checkpoint():
    world = World().finish(until=lambda state: state.initial is not None)
    state = world.state
    initial = state.initial
    assert initial is not None
    assert (initial.id, initial.parent, initial.lineage) == ("r0.b0.p0.k0.f0", None, "r0.b0.p0.k0.f0")
    assert [entry.candidate for entry in state.beam] == [initial]
    assert state.checkpoints[initial.lineage].candidate == initial
    assert state.best == initial


@pytest.mark.parametrize("verdict", [Verdict.INCORRECT, Verdict.TIMEOUT])
def test_a_refused_initial_kernel_ends_the_run_saying_why(verdict):
    world = World(judge=lambda source: refused_evaluation(source, verdict, "far off")).finish()
    assert world.state.stop is StopReason.INITIAL_REJECTED
    assert world.state.status_reason == f"{verdict.value}: world_{verdict.value}: far off"


def test_a_correct_kernel_without_a_latency_cannot_start_a_run():
    world = World(judge=lambda source: correct_evaluation(source, 1.0, benchmark=None)).finish()
    assert world.state.stop is StopReason.INITIAL_REJECTED
    assert "no latency" in world.state.status_reason


def test_an_initial_kernel_that_nobody_could_judge_ends_the_run_as_infrastructure():
    def lost(source: str):
        raise LostHost("trn2-a is gone")

    world = World(judge=lost).finish()
    assert world.state.stop is StopReason.INFRASTRUCTURE
    assert "trn2-a is gone" in world.state.status_reason


# --- rounds ----------------------------------------------------------------------------------------


def test_every_slot_gets_its_plans_every_plan_its_kernels_every_kernel_its_verdict():
    world = World(small(beam=3, plans=3, implementations=2, rounds=2), proposer=Paths(), kernel=ROOT,
                  judge=judged_by({}, otherwise=1.0)).finish()  # fmt: skip
    for event in world.of(RoundStarted):
        slots = len(event.slots)
        assert (
            len([key for key in list_started_effects(world, Role.PLANNER) if key.round == event.round])
            == slots * 3
        )
        assert (
            len([key for key in list_started_effects(world, Role.EXECUTOR) if key.round == event.round])
            == slots * 6
        )
        assert (
            len([key for key in list_started_effects(world, Role.EVALUATOR) if key.round == event.round])
            == slots * 6
        )


def test_planners_are_dealt_to_slots_in_turn_one_further_each_round():
    config = small(beam=3, plans=6, rounds=2, repairs=2).model_copy(
        update={"planner": ("scripted", "builtin")}
    )
    world = World(config).finish()
    first, second = world.of(RoundStarted)
    assert [(slot.planner, slot.repairs) for slot in first.slots] == [("scripted", 2)]
    assert [(slot.planner, slot.repairs) for slot in second.slots] == [
        ("builtin", 0),
        ("scripted", 2),
        ("builtin", 0),
    ]


def test_all_plans_of_a_round_read_the_same_frozen_learning_state():
    world = World(small(rounds=3)).finish()
    for number in (1, 2, 3):
        keys = [event for event in world.of(PlanStarted) if event.key.startswith(f"r{number}.")]
        requests = [PlanRequest.model_validate_json(world.blobs[event.request]) for event in keys]
        (digest,) = {request.context for request in requests}
        context = LearningContext.model_validate_json(world.blobs[digest])
        assert {attempt.round for attempt in context.attempts} == set(range(1, number))
        draws = {request.draw for request in requests}
        assert len(draws) == len(requests)


def test_a_round_closes_with_one_verdict_on_each_kernel_in_slot_order():
    world = World(small(plans=6)).finish(until=lambda state: state.selected)
    started_at = world.events.index(world.of(RoundStarted)[0])
    verdicts = [one for one in world.events[started_at:] if isinstance(one, KernelKept | KernelDiscarded)]
    ids = [one.candidate if isinstance(one, KernelDiscarded) else one.candidate.id for one in verdicts]
    proposed = {EffectKey.parse(event.key) for event in world.of(KernelProposed)}
    assert ids == [key.candidate_id for key in sorted(proposed)]
    assert len(ids) > 6


def test_between_rounds_nothing_of_the_rounds_gone_by_is_left_but_what_was_learnt():
    world = World().finish(until=in_round(2))
    assert world.state.outcomes == {}
    lineages = {entry.candidate.lineage for entry in world.state.beam}
    assert set(world.state.checkpoints) == lineages


def test_discards_say_why():
    table = {"k.0": 5.0, "k.1": 6.0, "k.2": 7.0, "k.3": 12.0}
    world = create_path_world(table, plans=4, beam=2, explorers=0, rounds=1).finish()
    reasons = {event.candidate: event.reason for event in world.of(KernelDiscarded)}
    assert reasons == {"r1.b0.p2.k0.f0": "not_selected", "r1.b0.p3.k0.f0": "slower"}
    kept = {event.candidate.id: event.speedup for event in world.of(KernelKept)}
    assert kept == {"r0.b0.p0.k0.f0": None, "r1.b0.p0.k0.f0": 2.0, "r1.b0.p1.k0.f0": pytest.approx(10 / 6)}


def test_the_lowest_slot_owns_a_duplicate_and_all_are_judged():
    class Same(Paths):
        async def implement(self, request, read):
            return KernelAnswer("k.same", "always the same")

    world = World(small(plans=3, implementations=1, rounds=1), kernel=ROOT, proposer=Same(),
                  judge=judged_by({ROOT: 10.0}, otherwise=5.0)).finish()  # fmt: skip
    assert [event.candidate.id for event in world.of(KernelKept)[1:]] == ["r1.b0.p0.k0.f0"]
    assert [(event.reason, event.duplicate_of) for event in world.of(KernelDiscarded)] == [
        ("duplicate", "r1.b0.p0.k0.f0")
    ] * 2
    assert len(list_started_effects(world, Role.EVALUATOR)) == 4
    assert len(list_started_effects(world, Role.VERIFIER)) == 1
    assert world.state.tally.duplicates == 2
    credit = world.state.credits
    assert sum(one.gains for one in credit.values()) == 1
    assert sum(one.tries for one in credit.values()) == 3


def test_a_copy_of_the_parent_is_a_duplicate_of_it():
    class Lazy(Paths):
        async def implement(self, request, read):
            return KernelAnswer(read(request.parent.source).decode(), "nothing")

    world = World(small(plans=1, implementations=1, rounds=1), kernel=ROOT, proposer=Lazy(),
                  judge=judged_by({ROOT: 10.0})).finish()  # fmt: skip
    (discarded,) = world.of(KernelDiscarded)
    assert discarded.duplicate_of == "r0.b0.p0.k0.f0"


def test_the_global_best_is_never_lost_and_is_what_the_run_reports():
    world = World(small(beam=2, rounds=6, explorers=1)).finish()
    fastest = min(
        event.evaluation.benchmark.latency_ms
        for event in world.of(EvaluationCompleted)
        if event.evaluation.benchmark
    )
    assert world.state.best is not None
    assert world.state.best.latency_ms == fastest
    for event in world.of(BeamSelected):
        before = [e for e in world.events[: world.events.index(event)] if isinstance(e, KernelKept)]
        assert event.beam[0].candidate.latency_ms == min(e.candidate.latency_ms for e in before)


# --- idempotence and faults ------------------------------------------------------------------------


def test_asked_twice_it_says_the_same_and_never_reissues_what_is_open_or_done():
    world = World(order=5)
    while not world.state.has_ended:
        assert decide(world.state) == decide(world.state)
        assert world.step()  # step itself asserts that nothing open or done is asked for


def test_a_paused_run_asks_for_nothing_and_goes_on_where_it_was():
    twin = World(order=1).finish()
    world = World(order=1).finish(until=in_round(2))
    world.append(RunPaused(reason="lunch"))
    assert decide(world.state) == []
    world.finish()  # what was in flight may still end
    assert world.state.status is RunStatus.PAUSED
    assert not world.state.open
    world.append(RunResumed(reason="back"))
    assert world.finish().fingerprint == twin.fingerprint


def test_a_cancelled_run_asks_for_nothing_more():
    world = World().finish(until=in_round(1))
    world.append(RunCancelled(reason="enough"))
    assert decide(world.state) == []
    assert not world.state.open


def test_a_fork_asks_again_for_what_was_in_flight_at_the_cut():
    world = World(order=2).finish(until=lambda state: len(state.open) >= 3)
    asked = set(world.state.open)
    forked = apply_event(world.state, RunForked(parent="other", parent_seq=7, parent_hash=digest_of(b"x")))
    effects = {str(effect.key) for effect in decide(forked) if isinstance(effect, Effect)}
    assert asked <= effects


def test_infrastructure_failures_count_against_nobody():
    def flaky(source: str):
        if source == "k.1":
            raise LostHost("gone")
        return judged_by({ROOT: 10.0, "k.0": 5.0})(source)

    world = World(
        small(plans=2, implementations=1, rounds=1), kernel=ROOT, proposer=Paths(), judge=flaky
    ).finish()
    (discarded,) = world.of(KernelDiscarded)
    assert (discarded.candidate, discarded.reason) == ("r1.b0.p1.k0.f0", "infrastructure")
    assert [attempt.technique for attempt in world.state.attempts] == ["move_0"]
    assert set(world.state.credits) == {"move_0"}
    assert len(world.of(ReflectionRecorded)) == 1
    assert world.state.stop is StopReason.ROUNDS


def test_a_round_that_nobody_could_judge_ends_the_run_as_infrastructure():
    def gone(source: str):
        if source != ROOT:
            raise LostHost("gone")
        return correct_evaluation(source, 10.0)

    world = World(small(rounds=5), kernel=ROOT, proposer=Paths(), judge=gone).finish()
    assert world.state.stop is StopReason.INFRASTRUCTURE
    assert "gone" in world.state.status_reason
    assert world.state.round == 1
    assert len(world.of(RoundCompleted)) == 1


# --- people ----------------------------------------------------------------------------------------


def test_a_persons_kernel_competes_in_the_round_that_is_open():
    world = create_path_world({"mine": 1.0}).finish(until=in_round(1))
    key = world.propose("mine", note="my own")
    world.finish(until=lambda state: state.round == 1 and not state.in_round)
    assert world.state.best is not None
    best = world.state.best
    assert (best.id, best.title, best.technique) == (key.candidate_id, "my own", None)
    assert best.parent == "r0.b0.p0.k0.f0"
    attempt = world.state.attempts[-1]
    assert (attempt.candidate, attempt.technique, attempt.speedup) == (key.candidate_id, "person", 10.0)


def test_a_persons_kernel_that_comes_after_the_selection_waits_for_the_next_round():
    world = create_path_world({"mine": 1.0}).finish(until=lambda state: state.selected)
    key = world.propose("mine")
    assert key.round == 2
    world.finish(until=in_round(2))
    assert str(key) in world.state.outcomes
    world.finish(until=lambda state: state.round == 2 and not state.in_round)
    assert world.state.best is not None
    assert world.state.best.id == key.candidate_id


def test_a_persons_kernel_that_comes_too_late_for_the_last_round_gets_one_to_itself():
    world = create_path_world({"mine": 1.0}, rounds=1).finish(until=lambda state: state.selected)
    key = world.propose("mine")
    world.finish()
    assert world.state.best is not None
    assert (world.state.best.id, world.state.round) == (key.candidate_id, 2)
    (extra,) = [event for event in world.of(RoundStarted) if event.round == 2]
    assert {slot.plans for slot in extra.slots} == {0}
    assert world.state.stop is StopReason.ROUNDS


def test_a_persons_kernel_is_neither_reflected_on_nor_repaired_nor_made_an_experience():
    world = World(small(plans=1, rounds=1), kernel=ROOT, proposer=Paths(), judge=judge_flaws)
    world.finish(until=in_round(1))
    fast, broken = world.propose("mine"), world.propose("mine!")
    world.finish()
    about = {
        event.key.rsplit(".", 1)[0] for event in (*world.of(ReflectionStarted), *world.of(SummaryStarted))
    }
    assert about.isdisjoint({fast.candidate_id, broken.candidate_id})
    assert not [key for key in list_started_effects(world, Role.EXECUTOR) if key.slot == fast.slot]
    reasons = {event.candidate: event.reason for event in world.of(KernelDiscarded)}
    assert reasons[broken.candidate_id] == "compile_error"


def test_a_persons_duplicate_never_owns():
    world = create_path_world({"k.0": 5.0}).finish(until=in_round(1))
    key = world.propose("k.0")
    world.finish(until=lambda state: state.selected)
    copies = {event.candidate: event.duplicate_of for event in world.of(KernelDiscarded)}
    assert copies[key.candidate_id] == "r1.b0.p0.k0.f0"


def test_a_persons_kernel_improves_on_the_best_of_the_beam_at_the_rounds_start():
    world = create_path_world({"k.0": 5.0, "mine": 4.0}).finish(until=in_round(2))
    key = world.propose("mine")
    world.finish(until=lambda state: state.selected)
    (kept,) = [event for event in world.of(KernelKept) if event.candidate.id == key.candidate_id]
    assert (kept.candidate.parent, kept.speedup) == ("r1.b0.p0.k0.f0", 1.25)


@pytest.mark.parametrize("told", [True, False])
def test_attempts_keep_titles_and_copies_where_planners_are_told_them(told):
    config = small(beam=1, plans=2, implementations=1, rounds=1, repairs=0)
    config = config.model_copy(update={"llm": config.llm.model_copy(update={"tell_titles": told})})
    proposer = Paths()
    propose = proposer.implement

    async def implement(request, read):
        made = await propose(request, read)
        return KernelAnswer(made.source.split(".")[0] + ".same", made.note)

    proposer.implement = implement
    world = World(
        config, kernel=ROOT, proposer=proposer, judge=judged_by({ROOT: 10.0, "k.same": 5.0})
    ).finish()
    first, second = world.state.attempts
    assert (first.speedup, first.gained, first.duplicate_of) == (2.0, True, None)
    assert second.duplicate_of == (first.candidate if told else None)
    assert bool(first.title) == told


# --- explorers and the guard -----------------------------------------------------------------------


def test_an_explorer_that_diverges_is_reverted_to_its_checkpoint():
    table = {"k.0": 9.0, "k.1": 12.0, "k.0.0": 8.0, "k.0.1": 8.5, "k.1.0": 20.0, "k.1.1": 21.0}
    world = create_path_world(table, rounds=2).finish()
    explored = world.of(BeamSelected)[1].beam[1]
    assert (explored.role, explored.candidate.lineage) == (BeamRole.EXPLORER, explored.candidate.id)
    (reverted,) = world.of(KernelReverted)
    assert reverted.reason == "slower"
    assert reverted.lineage == explored.candidate.id
    assert reverted.dropped == "r2.b1.p0.k0.f0"
    assert reverted.restored == "r1.b0.p0.k0.f0"
    assert world.state.tally.reverts == 1
    assert explored.candidate.lineage not in world.state.checkpoints
    assert all(entry.candidate.lineage != explored.candidate.id for entry in world.state.beam)


def test_an_explorer_without_gain_is_reverted_after_its_depth():
    table = {"k.0": 9.0, "k.1": 12.0, "k.1.0": 12.5, "k.1.0.0": 12.4, "k.1.0.0.0": 12.3}
    world = create_path_world(table, rounds=6, explorer_depth=3).finish(
        until=lambda state: state.tally.reverts > 0
    )
    (reverted,) = world.of(KernelReverted)
    assert (world.state.round, reverted.reason) == (4, "depth")


def test_an_explorer_that_pays_off_becomes_an_elite_and_is_not_reverted():
    table = {"k.0": 9.0, "k.1": 12.0, "k.1.0": 11.0, "k.1.0.1": 4.0}
    world = create_path_world(table, rounds=3).finish()
    assert not world.of(KernelReverted)
    assert world.state.best is not None
    assert world.source(world.state.best.source) == "k.1.0.1"
    assert world.state.best.lineage == "r1.b0.p1.k0.f0"
    mark = world.state.checkpoints["r1.b0.p1.k0.f0"]
    assert (mark.candidate.id, mark.depth) == (world.state.best.id, 0)


def test_noise_decides_what_is_a_gain_of_an_explorer():
    table = {ROOT: 10.0, "k.0": 9.0, "k.1": 13.0, "k.0.0": 5.0, "k.1.0": 8.9, "k.1.1": 14.5}
    config = small(beam=2, plans=2, implementations=1, rounds=2)
    quiet = World(config, kernel=ROOT, proposer=Paths(), judge=judged_by(table)).finish()
    noisy = World(config, kernel=ROOT, proposer=Paths(), judge=judged_by(table, noise=0.02)).finish()
    assert quiet.state.checkpoints["r1.b0.p1.k0.f0"].depth == 0
    assert noisy.state.checkpoints["r1.b0.p1.k0.f0"].depth == 1


# --- learning --------------------------------------------------------------------------------------


def test_every_attempt_with_a_plan_is_reflected_on_and_graded():
    world = World(small(beam=3, plans=4, rounds=3)).finish()
    assert world.state.reflections
    for event in world.of(RoundCompleted):
        asked = {
            one.key.rsplit(".", 1)[0]
            for one in world.of(ReflectionStarted)
            if one.key.startswith(f"r{event.round}.")
        }
        assert asked == {attempt.candidate for attempt in event.attempts}
    grades = {event.reflection.grade.value for event in world.of(ReflectionRecorded)}
    assert {"failed", "refuted"} <= grades


def test_the_memory_is_a_queue_bounded_to_its_length():
    world = World(small(beam=3, plans=4, rounds=4, experiences=3)).finish()
    queues = [event.memory for event in world.of(MemoryCurated)]
    assert max(map(len, queues)) == 3
    for older, newer in pairwise(queues):
        kept = [one for one in older if one in newer]
        assert tuple(kept) == newer[: len(kept)]


def test_the_reflexion_notes_are_bounded_to_their_number():
    world = World(small(beam=3, plans=4, rounds=3, reflections=1)).finish()
    assert {len(event.reflections) for event in world.of(RoundCompleted)} == {1}


def test_experiences_of_none_and_a_memory_of_nothing():
    world = World(small(rounds=2, experiences=0)).finish()
    assert world.state.memory == ()
    assert not world.of(SummaryStarted)


# --- settings --------------------------------------------------------------------------------------


def test_a_changed_setting_counts_from_the_next_round_also_for_stopping():
    world = World(small(rounds=2, plans=2)).finish(until=in_round(2))
    changed = small(rounds=3, plans=1)
    world.append(ConfigChanged(config=changed.model_dump(mode="json")))
    world.finish()
    assert [event.slots[0].plans for event in world.of(RoundStarted)] == [2, 2, 1]
    assert world.state.stop is StopReason.ROUNDS
    assert world.state.round == 3


def test_a_round_names_the_prompts_that_hold_in_it():
    """Those that arrive while it is under way count from the next one on."""
    old, new = digest_of(b"old"), digest_of(b"new")
    config = small(rounds=3).model_dump(mode="json")
    world = World(small(rounds=3))
    world.append(ConfigChanged(config=config, prompts=old))
    world.finish(until=in_round(1))
    world.append(ConfigChanged(config=config, prompts=new))
    assert (world.state.prompts, world.state.pending_prompts) == (old, new)
    world.append(ConfigChanged(config=config))
    assert world.state.pending_prompts == new
    world.finish()
    assert [event.prompts for event in world.of(RoundStarted)] == [old, new, new]
    assert (world.state.prompts, world.state.pending_prompts) == (new, None)


def test_the_last_record_of_a_run_names_the_reason():
    world = World(small(rounds=1)).finish()
    (ended,) = world.of(RunCompleted)
    assert (ended.reason, ended.detail) == (StopReason.ROUNDS, "1 rounds")
    assert decide(world.state) == []


def test_an_evaluation_request_does_not_say_where_in_the_search_it_belongs():
    world = World(small(rounds=1)).finish()
    (first, *_) = world.of(EvaluationStarted)
    request = world.blobs[first.request].decode()
    assert "role" not in request
    assert "draw" not in request


def test_a_broken_kernel_of_the_scripted_proposer_is_refused_by_the_judge():
    assert judge_constants("A = 1" + BROKEN_SOURCE).verdict is Verdict.COMPILE_ERROR


def test_records_come_alone_and_effects_in_key_order():
    world = World(small(plans=3, beam=3))
    state: RunState = world.finish(until=in_round(2)).state
    decisions = decide(state)
    assert not any(isinstance(one, Record) for one in decisions)
    keys = [one.key for one in decisions if isinstance(one, Effect)]
    assert keys == sorted(keys)
    assert len(keys) == sum(slot.plans for slot in state.slots)
    assert len(world.of(ExecutionStarted)) > 0
    assert isinstance(world.proposer, ScriptedProposer)
