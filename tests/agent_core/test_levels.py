"""How much is compared: tiles of all kernels, one seed's outputs before the beam, everything of the best."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent_core.decide import decide
from agent_core.roles import KernelAnswer
from state.events import (
    BeamSelected,
    ConfigChanged,
    EvaluationCompleted,
    EvaluationStarted,
    ExperienceRecorded,
    GuardCheckpointed,
    KernelDiscarded,
    KernelKept,
    KernelRefuted,
    RoundCompleted,
    RunCompleted,
    RunForked,
    RunPaused,
    RunResumed,
    effect_key,
)
from state.model import (
    Evaluation,
    EvaluationRequest,
    Level,
    Rebase,
    Role,
    RunStatus,
    StopReason,
    Verdict,
)
from tests.support.path_kernels import ROOT, Paths, judged_by
from tests.support.world import Catch, LostHost, World, catch_nothing, refused_evaluation, small

SLICES, ONE_SEED, WHOLE = Level


def world_of(table: dict[str, float], catch: Catch = catch_nothing, **search: object) -> World:
    numbers = {
        "beam": 2,
        "plans": 3,
        "implementations": 1,
        "rounds": 2,
        "repairs": 0,
        "explorers": 0,
    } | search
    judge = judged_by({ROOT: 10.0} | table)
    return World(small(**numbers), kernel=ROOT, proposer=Paths(), judge=judge, catch=catch)


def wrong_from_level(**levels: str) -> Catch:
    """Return what shows that kernels are wrong: at the level named, and above, those listed there."""
    known = {name: Level(level) for level, names in levels.items() for name in names.split()}
    return lambda source, level: source in known and level.covers(known[source])


def lose_judge_at(*sources: str, level: Level) -> Catch:
    """Return a judge's host that is lost whenever these kernels are judged at `level`."""

    def catch(source: str, asked: Level) -> bool:
        if source in sources and asked is level:
            raise LostHost("trn2-a is gone")
        return False

    return catch


def list_evaluation_requests(world: World, role: Role) -> dict[str, EvaluationRequest]:
    """Return the evaluations that one role was asked for, by kernel, in the order in which they started."""
    started = [event for event in world.of(EvaluationStarted) if effect_key(event).role is role]
    requests = [EvaluationRequest.model_validate_json(world.blobs[event.request]) for event in started]
    return {world.source(request.source): request for request in requests}


def read_fates(world: World) -> dict[str, str]:
    return {event.candidate: event.reason for event in world.of(KernelDiscarded)}


def list_kept_kernels(world: World) -> list[str]:
    return [world.source(event.candidate.source) for event in world.of(KernelKept)]


# --- levels ----------------------------------------------------------------------------------------


def test_each_judge_is_asked_for_its_level():
    world = world_of({"k.0": 5.0, "k.1": 6.0, "k.2": 7.0}, rounds=1).finish()
    proposed = list_evaluation_requests(world, Role.EVALUATOR)
    assert {name: (one.level, one.base_ms) for name, one in proposed.items()} == {
        "k": (ONE_SEED, None),
        "k.0": (SLICES, 10.0),
        "k.1": (SLICES, 10.0),
        "k.2": (SLICES, 10.0),
    }
    assert {name: one.level for name, one in list_evaluation_requests(world, Role.VERIFIER).items()} == {
        "k.0": ONE_SEED,
        "k.1": ONE_SEED,
    }
    assert {name: one.level for name, one in list_evaluation_requests(world, Role.AUDITOR).items()} == {
        "k.0": WHOLE
    }
    assert {one.author for one in list_evaluation_requests(world, Role.VERIFIER).values()} == {"builtin"}


def test_what_the_state_holds_says_how_much_of_it_was_compared():
    world = world_of({"k.0": 5.0}, rounds=2).finish()
    held = [entry.candidate for event in world.of(BeamSelected) for entry in event.beam]
    held += [event.checkpoint.candidate for event in world.of(GuardCheckpointed)]
    assert {one.level for one in held} == {ONE_SEED}
    (ended,) = world.of(RunCompleted)
    assert (ended.level, world.state.best.level) == (WHOLE, WHOLE)


def change_verdicts(
    world: World, change: Callable[[EvaluationCompleted, EvaluationRequest], Evaluation]
) -> World:
    """Let `change` have the last word on every verdict."""
    judge = world._judge_kernel

    def judged(key, request):
        event = judge(key, request)
        return event.model_copy(update={"evaluation": change(event, request)})

    world._judge_kernel = judged
    return world


def test_who_was_judged_on_more_already_is_not_verified():
    """As when the evaluator looked at everything because the gain was too good."""

    def level(event: EvaluationCompleted, request: EvaluationRequest) -> Evaluation:
        found = event.evaluation
        good = request.base_ms is not None and request.base_ms > 3 * found.benchmark.latency_ms
        return found.model_copy(update={"level": WHOLE}) if good else found

    world = change_verdicts(world_of({"k.0": 2.0, "k.1": 6.0}, rounds=1), level).finish()
    assert list(list_evaluation_requests(world, Role.VERIFIER)) == ["k.1"]
    assert list_evaluation_requests(world, Role.AUDITOR) == {}
    assert world.of(RunCompleted)[0].level is WHOLE


def test_who_entered_once_is_not_verified_again():
    world = world_of({"k.0": 5.0, "k.1": 6.0}, rounds=3).finish()
    assert sorted(list_evaluation_requests(world, Role.VERIFIER)) == ["k.0", "k.1"]


def test_a_checkpoint_is_verified_even_when_it_is_not_in_the_beam():
    """Nothing that a lineage may go back to was compared on tiles only."""
    world = World(small(beam=4, plans=6, implementations=1, rounds=6)).finish()
    marks = [event.checkpoint.candidate for event in world.of(GuardCheckpointed)]
    assert {one.level for one in marks} == {ONE_SEED}


# --- before the beam -------------------------------------------------------------------------------


def test_a_refuted_kernel_gives_way_to_the_next_that_stands():
    table = {"k.0": 5.0, "k.1": 6.0, "k.2": 7.0, "k.3": 8.0}
    world = world_of(table, wrong_from_level(one_seed="k.0 k.2"), plans=4, rounds=1).finish()
    assert list_kept_kernels(world) == ["k", "k.1", "k.3"]
    assert read_fates(world) == {"r1.b0.p0.k0.f0": "refuted", "r1.b0.p2.k0.f0": "refuted"}
    assert {event.verdict for event in world.of(KernelDiscarded)} == {Verdict.INCORRECT}
    assert list(list_evaluation_requests(world, Role.VERIFIER)) == ["k.0", "k.1", "k.2", "k.3"]
    assert world.state.best.latency_ms == 6.0


def test_when_none_stands_the_beam_is_as_it_was():
    world = world_of(
        {"k.0": 5.0, "k.1": 6.0, "k.2": 7.0}, wrong_from_level(one_seed="k.0 k.1 k.2"), rounds=1
    ).finish()
    assert [entry.candidate.id for entry in world.state.beam] == [world.state.initial.id]
    assert set(read_fates(world).values()) == {"refuted"}
    assert world.state.stop is StopReason.ROUNDS


def test_who_would_not_enter_is_not_verified():
    world = world_of(
        {"k.0": 5.0, "k.1": 6.0, "k.2": 7.0, "k.3": 20.0}, wrong_from_level(one_seed="k.3"), plans=4, rounds=1
    )
    world.finish()
    assert list(list_evaluation_requests(world, Role.VERIFIER)) == ["k.0", "k.1"]
    assert read_fates(world)["r1.b0.p3.k0.f0"] == "slower"


def test_copies_of_a_refuted_kernel_are_refuted_with_it():
    class Same(Paths):
        async def implement(self, request, read):
            made = await super().implement(request, read)
            return made if made.source.endswith("2") else KernelAnswer("k.same", "always the same")

    world = World(
        small(beam=2, plans=3, implementations=1, rounds=1, repairs=0),
        kernel=ROOT,
        proposer=Same(),
        judge=judged_by({ROOT: 10.0, "k.same": 5.0, "k.2": 8.0}),
        catch=wrong_from_level(one_seed="k.same"),
    ).finish()
    assert list(list_evaluation_requests(world, Role.VERIFIER)) == ["k.same", "k.2"]
    assert read_fates(world) == {"r1.b0.p0.k0.f0": "refuted", "r1.b0.p1.k0.f0": "refuted"}
    assert sum(credit.gains for credit in world.state.credits.values()) == 1


def test_what_is_learnt_from_a_refuted_kernel_is_that_it_is_wrong():
    catch = wrong_from_level(one_seed="k.0")
    world = world_of({"k.0": 5.0, "k.1": 6.0}, catch, rounds=1).finish(until=lambda state: state.has_ended)
    (completed,) = world.of(RoundCompleted)
    first, second = completed.attempts[:2]
    assert (first.verdict, first.speedup, first.gained) == (Verdict.INCORRECT, None, False)
    assert first.error.message == "wrong at one_seed"
    assert (second.verdict, second.gained) == (Verdict.CORRECT, True)
    assert completed.credits["move_0"].gains == 0
    assert completed.credits["move_1"].gains == 1
    note = next(note for note in completed.reflections if note.technique == "move_0")
    assert note.actual_speedup is None
    told = [event.experience for event in world.of(ExperienceRecorded) if event.experience]
    assert {one.technique for one in told if one.kind == "positive"} == {"move_1"}


def test_who_could_not_be_verified_does_not_enter_and_teaches_nothing():
    world = world_of({"k.0": 5.0, "k.1": 6.0}, lose_judge_at("k.0", level=ONE_SEED), rounds=1).finish()
    assert read_fates(world)["r1.b0.p0.k0.f0"] == "infrastructure"
    assert "k.0" not in list_kept_kernels(world)
    (completed,) = world.of(RoundCompleted)
    assert "r1.b0.p0.k0.f0" not in {attempt.candidate for attempt in completed.attempts}
    assert completed.idle is None, "kernels were judged, if not verified"


def test_a_refuted_kernel_is_not_repaired():
    world = world_of({"k.0": 5.0, "k.1": 6.0}, wrong_from_level(one_seed="k.0"), rounds=1, repairs=2).finish()
    assert all(effect_key(event).repair == 0 for event in world.of(EvaluationStarted))


def test_one_selection_is_verified_whole_before_the_next_is_made():
    """Else which kernels are verified would depend on whose verdict comes first."""
    table = {"k.0": 5.0, "k.1": 6.0, "k.2": 7.0, "k.3": 8.0}
    world = world_of(table, wrong_from_level(one_seed="k.0"), plans=4, rounds=1)
    world.finish(until=lambda state: "r1.b0.p0.k0.f0.verifier" in state.outcomes)
    assert list(world.state.open) == ["r1.b0.p1.k0.f0.verifier"]
    assert decide(world.state) == []
    world.step()
    (effect,) = decide(world.state)
    assert str(effect.key) == "r1.b0.p2.k0.f0.verifier"


def test_a_person_s_kernel_comes_too_late_once_it_is_looked_at_who_won():
    world = world_of({"k.0": 5.0, "mine": 1.0})
    world.finish(until=lambda state: any(key.endswith(Role.VERIFIER) for key in state.open))
    assert world.propose("mine").round == 2
    world.finish()
    assert world.source(world.state.best.source) == "mine"


# --- before the end --------------------------------------------------------------------------------


def test_the_next_best_takes_the_place_of_a_best_that_falls():
    world = world_of(
        {"k.0": 5.0, "k.0.0": 4.0, "k.0.0.0": 3.0}, wrong_from_level(whole="k.0.0.0 k.0.0"), beam=1, rounds=3
    )
    world.finish()
    assert list(list_evaluation_requests(world, Role.AUDITOR)) == ["k.0.0.0", "k.0.0", "k.0"]
    assert [event.candidate for event in world.of(KernelRefuted)] == ["r3.b0.p0.k0.f0", "r2.b0.p0.k0.f0"]
    state = world.state
    assert (world.source(state.best.source), state.best.level) == ("k.0", WHOLE)
    assert [entry.candidate.id for entry in state.beam] == [state.best.id]
    assert {mark.candidate.id for mark in state.checkpoints.values()} == {state.best.id}
    (ended,) = world.of(RunCompleted)
    assert (ended.reason, ended.level) == (StopReason.ROUNDS, WHOLE)


def test_a_target_that_a_wrong_kernel_reached_is_not_reached():
    table = {"k.0": 2.0, "k.1": 9.0, "k.1.0": 3.0}
    world = world_of(table, wrong_from_level(whole="k.0"), rounds=2, target_speedup=3.0, plans=2).finish()
    assert world.state.round == 2
    assert (world.state.stop, world.source(world.state.best.source)) == (StopReason.TARGET, "k.1.0")


def test_what_was_learnt_from_a_best_that_falls_is_taken_back():
    table = {"k.0": 2.0, "k.1": 9.0, "k.1.0": 3.0}
    world = world_of(table, wrong_from_level(whole="k.0"), rounds=2, target_speedup=3.0, plans=2)
    world.finish(until=lambda state: bool(world.of(KernelRefuted)))
    (fallen,) = world.of(KernelRefuted)
    before = next(event for event in world.of(RoundCompleted))
    assert before.credits["move_0"].gains == 1
    assert fallen.credits["move_0"].gains == 0
    assert fallen.credits["move_0"].log_gain == pytest.approx(0.0)
    assert fallen.credits["move_0"].tries == 1
    assert fallen.credits["move_1"] == before.credits["move_1"]
    assert [(one.verdict, one.speedup) for one in fallen.attempts] == [
        (Verdict.INCORRECT, None),
        (Verdict.CORRECT, pytest.approx(10 / 9)),
    ]
    assert all(fallen.candidate not in one.cites for one in fallen.memory)
    assert {one.technique for one in fallen.reflections} == {"move_1"}
    assert world.state.tally.reverts == 1


def test_a_run_whose_initial_kernel_falls_as_well_has_no_best():
    world = world_of({"k.0": 5.0}, wrong_from_level(whole="k k.0 k.1 k.2"), rounds=1, beam=1).finish()
    assert world.state.best is None
    assert world.state.beam == ()
    assert world.state.stop is StopReason.INITIAL_REJECTED
    (ended,) = world.of(RunCompleted)
    assert ended.level is None


def test_a_best_that_nobody_could_audit_stands_at_the_level_it_has():
    world = world_of({"k.0": 5.0}, lose_judge_at("k.0", level=WHOLE), rounds=1).finish()
    (ended,) = world.of(RunCompleted)
    assert (ended.level, ended.reason) == (ONE_SEED, StopReason.ROUNDS)
    assert "not audited: host_lost: trn2-a is gone" in ended.detail


@pytest.mark.parametrize("when", [
    lambda state: any(key.endswith(Role.AUDITOR) for key in state.open),
    lambda state: any(key.endswith(Role.AUDITOR) for key in state.outcomes),
])  # fmt: skip
def test_a_run_that_goes_on_after_an_audit_audits_its_new_best(when: Callable):
    """Its configuration changed while the audit was under way, or just done."""
    world = world_of({"k.0": 5.0, "k.0.0": 4.0}, wrong_from_level(whole="k.0"), rounds=1)
    world.finish(until=when)
    more = world.state.config.model_copy(
        update={"search": world.state.config.search.model_copy(update={"rounds": 2})}
    )
    world.append(ConfigChanged(config=more.model_dump(mode="json")))
    world.finish()
    assert world.state.round == 2
    assert next(iter(list_evaluation_requests(world, Role.AUDITOR))) == "k.0"
    assert "k.0" in {world.source(source_of(world, event.candidate)) for event in world.of(KernelRefuted)}
    assert world.state.stop is StopReason.ROUNDS
    assert world.state.best.level is WHOLE


def source_of(world: World, candidate: str) -> str:
    return next(event.candidate.source for event in world.of(KernelKept) if event.candidate.id == candidate)


def test_an_audit_that_stood_is_not_done_again():
    world = world_of({"k.0": 5.0}, rounds=1)
    world.finish(until=lambda state: state.best is not None and state.best.level is WHOLE)
    more = world.state.config.model_copy(
        update={"search": world.state.config.search.model_copy(update={"rounds": 3})}
    )
    world.append(ConfigChanged(config=more.model_dump(mode="json")))
    world.finish()
    assert world.state.round == 3
    assert len([event for event in world.of(EvaluationStarted) if event.key.endswith(Role.AUDITOR)]) == 1


def test_a_pause_between_audit_and_end_changes_nothing():
    twin = world_of({"k.0": 5.0}, wrong_from_level(whole="k.0"), rounds=1).finish()
    world = world_of({"k.0": 5.0}, wrong_from_level(whole="k.0"), rounds=1)
    world.finish(until=lambda state: any(key.endswith(Role.AUDITOR) for key in state.open))
    world.append(RunPaused(reason="lunch"))
    world.finish()
    assert (world.state.status, world.state.best.level) == (RunStatus.PAUSED, ONE_SEED)
    world.append(RunResumed())
    assert world.finish().fingerprint == twin.fingerprint


def test_the_initial_kernel_is_audited_when_nothing_beats_it():
    world = world_of({}, rounds=1).finish()
    assert list(list_evaluation_requests(world, Role.AUDITOR)) == [ROOT]
    assert world.state.best.level is WHOLE


def test_lessons_of_copies_of_what_fell_are_taken_back_too():
    class Same(Paths):
        async def implement(self, request, read):
            return KernelAnswer("k.same", "always the same")

    world = World(
        small(beam=2, plans=2, implementations=1, rounds=1, repairs=0, explorers=0),
        kernel=ROOT,
        proposer=Same(),
        judge=judged_by({ROOT: 10.0, "k.same": 5.0}),
        catch=wrong_from_level(whole="k.same"),
    ).finish()
    (fallen,) = world.of(KernelRefuted)
    assert [one.verdict for one in fallen.attempts] == [Verdict.INCORRECT] * 2
    assert fallen.reflections == ()
    assert fallen.memory == ()


def test_an_audit_of_the_initial_kernel_makes_it_no_new_best():
    config = small(rounds=1, beam=1).model_copy(update={"approval": ("new_best",)})
    world = World(config, kernel=ROOT, proposer=Paths(), judge=judged_by({ROOT: 10.0})).finish()
    assert world.state.best.level is WHOLE
    assert world.of(RunPaused) == []


def test_a_person_lets_a_run_complete_after_its_audit():
    config = small(rounds=1, beam=1).model_copy(update={"approval": ("completion",)})
    world = World(config, kernel=ROOT, proposer=Paths(), judge=judged_by({ROOT: 10.0}))
    world.finish(until=lambda state: state.status is RunStatus.PAUSED)
    assert world.state.best.level is WHOLE


def test_a_fork_judges_its_beam_anew_as_what_is_in_a_beam():
    parent = world_of({"k.0": 5.0}, rounds=1).finish()
    state = parent.state
    config = state.config.model_copy(update={"target": "trn1"})
    child = World(config, kernel=ROOT, proposer=Paths(), judge=judged_by({ROOT: 10.0, "k.0": 4.0}))
    child.blobs |= parent.blobs
    rebase = Rebase(config=config, problem=state.problem, bounds=state.bounds, toolchain="world 2")
    child.events, child._keys = list(parent.events), set()
    child._state = state
    child.append(RunForked(parent="p", parent_seq=len(parent.events), parent_hash="0" * 64, rebase=rebase))
    before = len(child.events)
    child.finish()
    child.events = child.events[before:]
    assert {one.level for one in list_evaluation_requests(child, Role.EVALUATOR).values()} == {ONE_SEED}
    assert {entry.candidate.level for entry in child.of(BeamSelected)[0].beam} == {ONE_SEED}
    assert {name: one.author for name, one in list_evaluation_requests(child, Role.AUDITOR).items()} == {
        "k.0": "builtin"
    }
    assert child.state.best.level is WHOLE


# --- one code, two verdicts ------------------------------------------------------------------------


@pytest.mark.parametrize("last_first", [False, True])
def test_a_code_refused_in_one_place_is_refused_in_all_whichever_verdict_comes_first(last_first: bool):
    """In the slot whose parent is slow the gain is too good: everything is compared, and it is wrong."""

    class Same(Paths):
        async def implement(self, request, read):
            made = await super().implement(request, read)
            return KernelAnswer("x", "the same") if request.key.startswith("r2") else made

    def refuse(event: EvaluationCompleted, request: EvaluationRequest) -> Evaluation:
        found = event.evaluation
        if world.source(request.source) != "x" or request.base_ms != 30.0:
            return found
        return refused_evaluation("x", Verdict.INCORRECT, "wrong").model_copy(
            update={"code": found.code, "level": WHOLE}
        )

    world = World(
        small(beam=2, plans=1, implementations=1, rounds=2, repairs=0, explorers=0),
        kernel=ROOT,
        proposer=Same(),
        judge=judged_by({ROOT: 30.0, "k.0": 10.0, "x": 9.0}),
    )
    change_verdicts(world, refuse)
    world.finish(until=lambda state: state.round == 2 and sum("evaluator" in key for key in state.open) == 2)
    world._in_flight.sort(reverse=last_first)
    world.finish()
    late = {name: reason for name, reason in read_fates(world).items() if name.startswith("r2.")}
    assert late == {"r2.b0.p0.k0.f0": "incorrect", "r2.b1.p0.k0.f0": "incorrect"}
    said = [event.evaluation.verdict for event in world.of(EvaluationCompleted)]
    assert said.count(Verdict.INCORRECT) == 1
