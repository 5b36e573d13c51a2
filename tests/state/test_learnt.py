"""What runs learnt in both folds, and what becomes of them when a log is made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from state import system
from state.archive import archive_run
from state.archive_import import import_archive
from state.compact import compact_log
from state.errors import BlobPruned, EventRefused
from state.events import (
    ExperiencesForgotten,
    ExperiencesGiven,
    ExperiencesLearnt,
    RoundStarted,
    RunCancelled,
    RunForked,
    SequenceLearnt,
    SequencesGiven,
    TechniquesGiven,
    TechniquesLearnt,
)
from state.fold import IllegalEvent, apply_event, dump_semantic, state_hash
from state.learning import (
    EXPERIENCES_PER_KIND,
    MAX_EXPERIENCES,
    MAX_IMPORTED,
    MAX_SEQUENCES,
    SEQUENCES_PER_KIND,
    TECHNIQUES_PER_KIND,
    add_experiences,
    retain_strongest,
)
from state.log import EventLog
from state.model import SYSTEM_STREAM, ExperienceKind, Rebase, SearchConfig, TechniqueCredit, digest_of
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.system import SystemState
from state.verify import verify_log
from tests.support.learnt_sequences import (
    SOURCE,
    imported_experience,
    learnt_experience,
    learnt_sequence,
    learnt_technique,
    problem_tags,
)
from tests.support.scripted_runs import append_run
from tests.support.world import World, small


def sequences_learnt_event(**fields) -> NewEvent:
    return NewEvent(SYSTEM_STREAM, SequenceLearnt(sequence=learnt_sequence(**fields)))


# --- what the system keeps ---


def test_of_the_same_setting_the_one_that_gained_most_is_kept():
    first, worse, better = (learnt_sequence(f"run-{n}", gain) for n, gain in enumerate((2.0, 1.5, 3.0)))
    assert retain_strongest((first,), worse) == (first,)
    assert retain_strongest((first,), better) == (better,)
    assert retain_strongest((first,), learnt_sequence("run-3", 2.0)) == (first,), "of equal ones the first"
    other = learnt_sequence("run-4", 1.5, arguments=(3,))
    assert retain_strongest((first,), other) == (first, other)


def test_of_a_kind_those_that_gained_most_are_kept():
    known: tuple = ()
    for number, gain in enumerate((2.0, 5.0, 3.0, 4.0, 1.5, 2.5)):
        known = retain_strongest(
            known, learnt_sequence(f"run-{number}", gain, problem_tags(extents=(number,)))
        )
    assert [one.speedup for one in known] == [5.0, 3.0, 4.0, 2.5]
    assert len(known) == SEQUENCES_PER_KIND
    other = learnt_sequence("other", 1.1, problem_tags("activation"))
    assert retain_strongest(known, other) == (*known, other)


def test_of_all_those_learnt_last_are_kept():
    known: tuple = ()
    for number in range(MAX_SEQUENCES + 3):
        known = retain_strongest(
            known, learnt_sequence(f"run-{number}", 2.0, problem_tags(f"operator-{number}"))
        )
    assert [one.run for one in known] == [f"run-{number}" for number in range(3, MAX_SEQUENCES + 3)]


def test_techniques_are_kept_by_name_those_that_brought_most_a_try():
    state = None
    for number in range(TECHNIQUES_PER_KIND + 2):
        credit = TechniqueCredit(tries=2, gains=1, log_gain=0.1 * (number + 1))
        found = learnt_technique(f"new:t{number:02}", credit=credit)
        state = system.apply_system_event(state, TechniquesLearnt(techniques=(found,)))
    assert [one.technique for one in state.techniques] == [
        f"new:t{number:02}" for number in range(2, TECHNIQUES_PER_KIND + 2)
    ]
    better = learnt_technique("new:t05", run="later", credit=TechniqueCredit(tries=1, gains=1, log_gain=9.0))
    state = system.apply_system_event(state, TechniquesLearnt(techniques=(better,)))
    assert [one.run for one in state.techniques if one.technique == "new:t05"] == ["later"]
    worse = learnt_technique("new:t05", run="last", credit=TechniqueCredit(tries=9))
    assert system.apply_system_event(state, TechniquesLearnt(techniques=(worse,))) == state
    assert system.dump_semantic(state)["techniques"]
    assert "techniques" not in system.dump_semantic(SystemState())


def test_a_run_has_the_techniques_that_it_is_given_and_hashes_as_before_without():
    world = World(small(rounds=1)).finish(until=lambda state: bool(state.beam))
    after = apply_event(world.state, TechniquesGiven(round=1, techniques=(learnt_technique(),)))
    assert after.techniques == (learnt_technique(),)
    assert state_hash(after) != state_hash(world.state)
    assert "techniques" not in dump_semantic(world.state)
    with pytest.raises(IllegalEvent):
        apply_event(after, TechniquesGiven(round=3, techniques=(learnt_technique(),)))


def test_the_order_of_events_decides_and_nothing_else():
    events = [
        SequenceLearnt(sequence=learnt_sequence(f"run-{n}", 2.0, problem_tags(extents=(n,))))
        for n in range(6)
    ]
    state = None
    for event in events:
        state = system.apply_system_event(state, event)
    assert [one.run for one in state.sequences] == ["run-0", "run-1", "run-2", "run-3"]
    again = SystemState.model_validate_json(state.model_dump_json())
    assert system.state_hash(again) == system.state_hash(state) != system.state_hash(SystemState())
    assert "sequences" not in system.dump_semantic(SystemState()), (
        "hashes of logs without any are as they were"
    )


def test_of_a_technique_in_the_same_setting_the_strongest_experience_is_kept():
    first, worse, better = (
        learnt_experience(f"run-{n}", speedup=gain) for n, gain in enumerate((2.0, 1.5, 3.0))
    )
    assert add_experiences((first,), [worse]) == (first,)
    assert add_experiences((first,), [worse, better]) == (better,)
    others = (
        learnt_experience("run-3", technique="fuse"),
        learnt_experience("run-4", kind=ExperienceKind.NEGATIVE),
        learnt_experience("run-5", problem_tags(extents=(3,))),
    )
    assert add_experiences((first,), others) == (first, *others)


def test_of_a_kind_the_strongest_experiences_are_kept():
    found = [learnt_experience(f"run-{n}", technique=f"t{n}", speedup=2.0 + n) for n in range(12)]
    kept = add_experiences((), found[::-1])
    assert [one.about.speedup for one in kept] == [13.0 - n for n in range(EXPERIENCES_PER_KIND)]


def test_of_all_experiences_of_runs_those_learnt_last_are_kept():
    found = [learnt_experience(f"run-{n}", problem_tags(f"operator-{n}")) for n in range(MAX_EXPERIENCES + 3)]
    assert add_experiences((), found) == tuple(found[3:])


def test_runs_do_not_push_out_what_was_imported_nor_the_other_way_round():
    files = [imported_experience(n) for n in range(MAX_IMPORTED + 2)]
    runs = [learnt_experience(f"run-{n}", problem_tags(f"operator-{n}")) for n in range(MAX_EXPERIENCES)]
    kept = add_experiences(add_experiences((), files), runs)
    assert kept == (*runs, *files[2:]), (
        "of files' those imported last, though they say the same of themselves"
    )
    assert add_experiences(kept, [files[-1]]) == kept, "the same once"


def test_what_a_run_taught_is_not_imported_again():
    one = learnt_experience()
    again = one.model_copy(update={"imported": True, "origin": "rewrites.json"})
    assert again.id == one.id
    assert add_experiences((one,), [again]) == (one,)
    assert add_experiences((again,), [one]) == (again,)


def test_an_experience_s_name_follows_from_what_it_says():
    one = learnt_experience()
    assert learnt_experience("another", summary=one.summary).id == one.id
    for fields in ({"summary": "x"}, {"slow": None}, {"kind": None}, {"technique": "fuse"}):
        assert learnt_experience(**fields).id != one.id


def test_what_is_forgotten_is_gone_and_what_is_not_there_is_nothing():
    first, second = learnt_experience("a"), imported_experience(1)
    state = system.apply_system_event(None, ExperiencesLearnt(experiences=(first, second)))
    assert system.apply_system_event(state, ExperiencesForgotten(ids=("nothing", first.id))).experiences == (
        second,
    )
    again = SystemState.model_validate_json(state.model_dump_json())
    assert system.state_hash(again) == system.state_hash(state) != system.state_hash(SystemState())
    empty = system.apply_system_event(state, ExperiencesForgotten(ids=(first.id, second.id)))
    assert system.state_hash(empty) == system.state_hash(SystemState())
    assert "experiences" not in system.dump_semantic(SystemState()), (
        "hashes of logs without any are as they were"
    )


# --- what a run is given ---


def begun() -> World:
    return World(small(rounds=1)).finish(until=lambda state: bool(state.beam))


def test_what_a_run_is_given_is_part_of_its_state_and_of_its_forks():
    world = begun()
    before = state_hash(world.state)
    world.append(SequencesGiven(round=1, sequences=(learnt_sequence(),)))
    assert world.state.sequences == (learnt_sequence(),)
    assert state_hash(world.state) != before
    assert world.fork(len(world.events)).state.sequences == (learnt_sequence(),)
    world.finish()
    assert world.state.has_ended
    assert world.state.sequences == (learnt_sequence(),)


def test_experiences_that_a_run_is_given_are_part_of_its_state_and_of_its_forks():
    world = begun()
    assert "experiences" not in dump_semantic(world.state), "hashes of runs without any are as they were"
    world.append(ExperiencesGiven(round=1, experiences=(learnt_experience(),)))
    world.append(SequencesGiven(round=1, sequences=(learnt_sequence(),)))
    assert (world.state.experiences, world.state.sequences) == ((learnt_experience(),), (learnt_sequence(),))
    assert dump_semantic(world.state)["experiences"][0]["origin"] == "donor"
    assert world.fork(len(world.events)).state.experiences == (learnt_experience(),)
    world.finish()
    assert world.state.has_ended
    assert world.state.experiences == (learnt_experience(),)


def test_a_fork_for_another_target_begins_without_what_was_given_for_this_one():
    world = begun()
    world.append(SequencesGiven(round=1, sequences=(learnt_sequence(),)))
    world.append(ExperiencesGiven(round=1, experiences=(learnt_experience(),)))
    state = world.state
    rebase = Rebase(
        config=state.config.model_copy(update={"target": "trn1"}),
        problem=state.problem,
        bounds=state.bounds,
        toolchain=state.toolchain,
    )
    child = world.fork(len(world.events), rebase=rebase).state
    assert (child.sequences, child.experiences) == (None, None)


@pytest.mark.parametrize("round_", [2, 7])
def test_nothing_is_given_but_for_the_round_to_come(round_):
    with pytest.raises(IllegalEvent, match="SequencesGiven"):
        apply_event(begun().state, SequencesGiven(round=round_, sequences=(learnt_sequence(),)))
    with pytest.raises(IllegalEvent, match="ExperiencesGiven"):
        apply_event(begun().state, ExperiencesGiven(round=round_, experiences=(learnt_experience(),)))


def test_nothing_is_given_in_a_round_nor_to_a_run_that_is_over():
    given = SequencesGiven(round=1, sequences=(learnt_sequence(),))
    world = begun().finish(until=lambda state: state.in_round)
    assert world.of(RoundStarted)
    with pytest.raises(IllegalEvent, match="SequencesGiven"):
        apply_event(world.state, given)
    with pytest.raises(IllegalEvent, match="cancelled"):
        apply_event(apply_event(begun().state, RunCancelled(reason="")), given)


def test_the_setting_leaves_the_state_of_who_is_given_nothing_as_it_was():
    on, off = (World(small(reuse=reuse)).finish() for reuse in (True, False))
    assert SearchConfig().reuse
    assert on.fingerprint == off.fingerprint


# --- logs ---


def test_a_log_holds_what_was_learnt_in_its_own_stream(home: Path):
    with EventLog.open(home) as log:
        log.append_now([sequences_learnt_event()], blobs=[SOURCE])
        log.append_now(
            [sequences_learnt_event()]
        )  # of a run that was brought back by a repair, and ended again
        with pytest.raises(EventRefused):
            log.append_now([NewEvent(SYSTEM_STREAM, SequencesGiven(round=1, sequences=(learnt_sequence(),)))])
        assert log.system_state().sequences == (learnt_sequence(),)
    with LogReader.open(home) as reader:
        assert reader.system_state().sequences == (learnt_sequence(),)


def test_what_was_learnt_outlives_the_run_that_taught_it(home: Path, tmp_path: Path):
    unnamed = b"what nobody names"
    with EventLog.open(home) as log:
        append_run(log, "donor", seed=1)
        told = NewEvent(SYSTEM_STREAM, ExperiencesLearnt(experiences=(learnt_experience(),)))
        log.append_now([sequences_learnt_event(), told], blobs=[SOURCE, unnamed])
    archive_run(home, "donor", tmp_path / "donor.gz")
    compact_log(home, [tmp_path / "donor.gz"])
    with LogReader.open(home) as reader:
        assert reader.run_ids() == ()
        assert reader.system_state().sequences == (learnt_sequence(),)
        assert reader.system_state().experiences == (learnt_experience(),)
        assert reader.get_blob(digest_of(SOURCE)) == SOURCE
        with pytest.raises(BlobPruned):
            reader.get_blob(digest_of(unnamed))
    assert verify_log(home).is_ok


def test_what_a_run_was_given_travels_with_it(home: Path, tmp_path: Path):
    given = SequencesGiven(round=1, sequences=(learnt_sequence(),))
    with EventLog.open(home) as log:
        stored = append_run(log, "first", seed=1)
        at = next(item for item in stored if isinstance(item.event, RoundStarted))
        fork_before(log, "taught", stored, at)
        told = ExperiencesGiven(round=1, experiences=(learnt_experience(),))
        log.append_now([NewEvent("taught", given), NewEvent("taught", told)], blobs=[SOURCE])
    archive_run(home, "taught", tmp_path / "a.gz")
    import_archive(tmp_path / "other", tmp_path / "a.gz")
    with LogReader.open(tmp_path / "other") as reader:
        assert reader.run_state("taught").sequences == given.sequences
        assert reader.run_state("taught").experiences == told.experiences
        assert reader.get_blob(digest_of(SOURCE)) == SOURCE
        assert reader.replay_run("taught").state.sequences == given.sequences
    assert verify_log(tmp_path / "other").is_ok


def fork_before(log: EventLog, child: str, stored: list[RecordedEvent], at: RecordedEvent) -> None:
    parent = stored[stored.index(at) - 1]
    event = RunForked(parent=parent.stream, parent_seq=parent.run_seq, parent_hash=parent.hash)
    log.append_now([NewEvent(child, event)])
