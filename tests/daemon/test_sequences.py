"""Runs of a home hand on what they learnt: taken in with a run's end, given before a run's first round."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent_core import proposers
from agent_core.effects import LearningContext
from agentctl import event_lines
from agentctl.formatting import narrate_event
from agentctl.run_tracker import RunTracker
from daemon.command_models import Fork, run_id
from daemon.transfer_events import with_transfer_events
from state.errors import BlobMissing
from state.events import (
    ExperiencesGiven,
    ExperiencesLearnt,
    KernelKept,
    PlanStarted,
    RoundStarted,
    RunCompleted,
    RunCreated,
    SequenceLearnt,
    SequencesGiven,
    TechniquesGiven,
    TechniquesLearnt,
)
from state.fold import RunState
from state.log import EventLog
from state.model import SYSTEM_STREAM, Level, RunConfig, StopReason
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.system import SystemState
from state.verify import verify_log
from targets.nki.target import NkiTarget, read_menu
from tests.support import fakes
from tests.support.fakes import CONFIG, KERNEL, create_submission, finish_runs
from tests.support.learnt_sequences import learnt_technique, problem_tags
from tests.support.sweeps import parametrize_sweep

SOURCE = KERNEL + "\n\ndef kernel(x):\n    nisa.activation(dst=x, op=nl.exp, data=x)\n"
"""A kernel for the fake judge that has an instruction."""


@pytest.fixture(autouse=True)
def scripted_looks_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(proposers._NEUTRAL["scripted"], looks_ahead=True)
    monkeypatch.setitem(proposers._NEUTRAL, "scripted", entry)
    known, any_ = read_menu(), next(iter(read_menu().values()))
    names = ("double_constant", "halve_constant")
    monkeypatch.setattr(NkiTarget, "menu", lambda self: known | dict.fromkeys(names, any_))


def submit(home: Path, id_: str, config: RunConfig = CONFIG) -> str:
    return run_id(fakes.put_command(home, create_submission(config, SOURCE), id_=id_), config.problem)


def read(home: Path, stream: str, *kinds: type) -> list[RecordedEvent]:
    with LogReader.open(home) as reader:
        found = reader.read(stream=stream, limit=10_000)
    return [item for item in found if isinstance(item.event, kinds)]


@pytest.fixture(scope="module")
def templates() -> dict[bool, tuple[Path, str]]:
    """Homes with a run that has ended, and its id, by whether its proposer counts as a model."""
    return {}


@pytest.fixture
def first(home: Path, templates, tmp_path_factory, request) -> str:
    """The id of a run of `home` that has ended."""
    reads = "scripted_reads" in request.fixturenames
    if reads:
        request.getfixturevalue("scripted_reads")
    if reads not in templates:
        made = tmp_path_factory.mktemp("first") / "home"
        ended = submit(made, "0001-a")
        finish_runs(made, ended)
        templates[reads] = made, ended
    template, run = templates[reads]
    shutil.copytree(template, home)
    return run


def searching(**changes: Any) -> RunConfig:
    return CONFIG.model_copy(update={"search": CONFIG.search.model_copy(update=changes)})


def test_what_paid_in_one_run_is_given_to_the_next_before_its_first_round(home, first):
    (taught,) = read(home, SYSTEM_STREAM, SequenceLearnt)
    (end,) = read(home, first, RunCompleted)
    assert taught.seq == end.seq + 1, "in one transaction"
    sequence = taught.event.sequence
    (kept,) = [item for item in read(home, first, KernelKept) if item.run_seq == sequence.run_seq]
    with LogReader.open(home) as reader:
        best = reader.run_state(first).best
        assert kept.event.candidate.id == best.id
        assert sequence.speedup == pytest.approx(reader.run_state(first).initial.latency_ms / best.latency_ms)
    assert sequence.event_id == f"{first}@{kept.run_seq}"

    second = submit(home, "0002-b", CONFIG.model_copy(update={"seed": 3}))
    finish_runs(home, second)
    (given,) = read(home, second, SequencesGiven)
    (started,) = [item for item in read(home, second, RoundStarted) if item.event.round == 1]
    assert (given.event.round, given.seq) == (1, started.seq - 1)
    assert given.event.sequences == (sequence,)
    with LogReader.open(home) as reader:
        assert reader.replay_run(second).state.sequences == (sequence,)
        assert reader.run_state(first).sequences is None
    assert verify_log(home).is_ok


@pytest.mark.parametrize(
    "config",
    [
        searching(reuse=False),
        searching(strategy="greedy"),
        searching(lookahead_predictions=0),
        CONFIG.model_copy(update={"target": "trn1"}),
    ],
    ids=["turned off", "another strategy", "no predictions", "another target"],
)
def test_who_may_not_or_cannot_use_them_is_given_none(home, config, first):
    run = submit(home, "0002-b", config)
    finish_runs(home, run)
    assert read(home, run, SequencesGiven) == []


def test_who_cannot_look_ahead_is_given_none(home, monkeypatch, first):
    entry = replace(proposers._NEUTRAL["scripted"], looks_ahead=False)
    monkeypatch.setitem(proposers._NEUTRAL, "scripted", entry)
    run = submit(home, "0002-b")
    finish_runs(home, run)
    assert read(home, run, SequencesGiven) == []


def test_runs_side_by_side_learn_in_the_order_in_which_they_end(home):
    runs = [submit(home, f"000{n}-a", CONFIG.model_copy(update={"seed": n})) for n in (1, 2, 3)]
    finish_runs(home, *runs, at_a_time=2)
    ends = {run: read(home, run, RunCompleted)[0].seq for run in runs}
    taught = read(home, SYSTEM_STREAM, SequenceLearnt)
    assert [item.event.sequence.run for item in taught] == [
        run for run in sorted(ends, key=ends.__getitem__) if run in {one.event.sequence.run for one in taught}
    ]
    with LogReader.open(home) as reader:
        gains = [item.event.sequence.speedup for item in taught]
        assert [one.speedup for one in reader.system_state().sequences] == [max(gains)], (
            "all have the same tags"
        )
    assert verify_log(home).is_ok


def test_a_fork_keeps_what_the_run_was_given_and_needs_nothing_else(home, tmp_path, first):
    run = submit(home, "0002-b", CONFIG.model_copy(update={"seed": 3}))
    finish_runs(home, run)
    (given,) = read(home, run, SequencesGiven)
    child = run_id(fakes.put_command(home, Fork(run=run, seq=given.run_seq), id_="0003-c"), CONFIG.problem)
    finish_runs(home, child)
    own = [item for item in read(home, child, SequencesGiven) if item.stream == child]
    assert own == []
    with LogReader.open(home) as reader:
        assert reader.run_state(child).sequences == given.event.sequences
        assert reader.run_state(child).decision_digest == reader.run_state(run).decision_digest


def test_people_are_told_what_a_run_was_given_and_where_that_is_from(home, ctl, first):
    second = submit(home, "0002-b", CONFIG.model_copy(update={"seed": 3}))
    finish_runs(home, second)
    (taught,) = read(home, SYSTEM_STREAM, SequenceLearnt)[:1]
    sequence = taught.event.sequence
    (given,) = read(home, second, SequencesGiven)
    told = {row["id"]: row["given"] for row in ctl("status", "--json").json["runs"]}
    assert told == {
        first: [],
        second: [
            {
                "from": sequence.event_id,
                "problem": "silu",
                "speedup": sequence.speedup,
                "steps": len(sequence.steps),
            }
        ],
    }
    words = f"tried first what paid in {sequence.event_id} (silu, {sequence.speedup:.2f}x by "
    assert words in ctl("status", second).out
    assert "tried first" not in ctl("status", first).out
    assert f"{sequence.event_id} (silu, " in event_lines.describe_event(given.event)
    assert event_lines.describe_event(taught.event).startswith(
        f"{sequence.event_id} (silu, {sequence.speedup:.2f}x by "
    )
    tracker = RunTracker(run=second)
    tracker.add(read(home, second, RunCreated)[0])
    said = narrate_event(given.event, tracker)
    assert said is not None
    assert said.startswith(f"tries first what paid in {sequence.event_id} (silu, ")
    shown = ctl("show", f"{second}@{given.run_seq}", "--json").json
    assert set(shown["blobs"]) == {leg.source for leg in sequence.legs}
    assert ctl("tail", "--type", "learning", "--run", second, "--since", "1970-01-01T00:00:00Z").out.count(
        "SequencesGiven"
    )


class Log:
    """Reads as a log does that lost its blobs."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def get_blob(self, digest: str) -> bytes:
        raise BlobMissing(digest)


def test_a_run_whose_files_are_gone_goes_on_without(home, first):
    with EventLog.open(home) as log, capture_logs() as said:
        state = log.run_state(first)
        begun = state.model_copy(update={"sequences": None})
        started = RoundStarted(round=1, slots=())
        ended = RunCompleted(reason=StopReason.ROUNDS, level=Level.WHOLE)
        assert [one.event for one in with_transfer_events(Log(log), "other", begun, [started])] == [started]
        assert [one.event for one in with_transfer_events(Log(log), "other", begun, [ended])] == [ended]
        assert [one["event"] for one in said] == ["problem_unreadable"] * 2
        assert len(with_transfer_events(log, "other", begun, [started])) == 2
        taught = [type(one.event) for one in with_transfer_events(log, first, begun, [ended])]
        assert taught == [RunCompleted, SequenceLearnt, ExperiencesLearnt]


def test_a_sequence_whose_kernels_are_lost_is_not_given(home, monkeypatch, first):
    with EventLog.open(home) as log:
        begun = log.run_state(first).model_copy(update={"sequences": None})
        started = RoundStarted(round=1, slots=())
        (whole,) = log.system_state().sequences
        gone = whole.legs[0].model_copy(update={"source": "0" * 64})
        lost = whole.model_copy(update={"legs": (*whole.legs, gone)})
        monkeypatch.setattr(log, "system_state", lambda: SystemState(sequences=(lost, whole)))
        given, _ = with_transfer_events(log, "other", begun, [started])
        assert given.event.sequences == (whole,)


@parametrize_sweep("level", [None, Level.SLICES, Level.ONE_SEED], quick=[Level.ONE_SEED])
def test_what_was_not_verified_whole_is_not_learnt(home, level, first):
    ended = RunCompleted(reason=StopReason.ROUNDS, level=level)
    with EventLog.open(home) as log:
        assert [one.event for one in with_transfer_events(log, first, log.run_state(first), [ended])] == [
            ended
        ]


def test_later_rounds_are_given_nothing(home, first):
    started = RoundStarted(round=2, slots=())
    with EventLog.open(home) as log:
        state = log.run_state(first).model_copy(update={"sequences": None})
        assert [one.event for one in with_transfer_events(log, first, state, [started])] == [started]


# --- experiences ---


@pytest.fixture
def scripted_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the scripted proposer for one that asks models."""
    monkeypatch.setattr("daemon.transfer_events.is_llm_proposer", lambda name: name == "scripted")


def test_what_a_run_has_in_its_memory_as_it_ends_is_told_to_the_next(home, scripted_reads, first):
    (learnt,) = read(home, SYSTEM_STREAM, ExperiencesLearnt)
    (sequence,) = read(home, SYSTEM_STREAM, SequenceLearnt)
    assert learnt.seq == sequence.seq + 1, "in one transaction"
    with LogReader.open(home) as reader:
        memory = reader.run_state(first).memory
        assert [(one.slow, one.fast, one.cites) for one in learnt.event.experiences] == [
            (one.slow, one.fast, one.cites) for one in memory
        ]
        kept = reader.system_state().experiences
        assert set(kept) <= set(learnt.event.experiences)

    second = submit(home, "0002-b", CONFIG.model_copy(update={"seed": 3}))
    finish_runs(home, second)
    (given,) = read(home, second, ExperiencesGiven)
    (started,) = [item for item in read(home, second, RoundStarted) if item.event.round == 1]
    assert (given.event.round, given.seq) == (1, started.seq - 1)
    assert set(given.event.experiences) == set(kept)
    assert {one.origin for one in given.event.experiences} == {first}
    with LogReader.open(home) as reader:
        assert reader.replay_run(second).state.experiences == given.event.experiences
        assert reader.run_state(first).experiences is None
        request = json.loads(reader.get_blob(read(home, second, PlanStarted)[0].event.request))
        told = LearningContext.model_validate_json(reader.get_blob(request["context"]))
        assert told.others == given.event.experiences
        before = json.loads(reader.get_blob(read(home, first, PlanStarted)[0].event.request))
        assert "others" not in json.loads(reader.get_blob(before["context"])), "requests of before are alike"
    assert verify_log(home).is_ok


@pytest.mark.parametrize(
    "config",
    [
        searching(reuse=False),
        searching(strategy="greedy"),
        CONFIG.model_copy(update={"target": "trn1"}),
    ],
    ids=["turned off", "another strategy", "another target"],
)
def test_who_may_not_be_told_is_given_no_experiences(home, config, scripted_reads, first):
    run = submit(home, "0002-b", config)
    finish_runs(home, run)
    assert read(home, run, ExperiencesGiven) == []


def test_who_asks_no_model_is_given_no_experiences(home, first):
    run = submit(home, "0002-b")
    finish_runs(home, run)
    assert read(home, run, ExperiencesGiven) == []


def test_a_run_that_cannot_predict_is_told_all_the_same(home, scripted_reads, first):
    run = submit(home, "0002-b", searching(lookahead_predictions=0))
    finish_runs(home, run)
    assert len(read(home, run, ExperiencesGiven)) == 1
    assert len(read(home, run, SequencesGiven)) == 1, "its models are told of them"


def test_an_experience_whose_kernels_are_lost_is_not_given(home, monkeypatch, scripted_reads, first):
    with EventLog.open(home) as log:
        begun = log.run_state(first).model_copy(update={"experiences": None})
        whole = log.system_state().experiences
        lost = whole[0].model_copy(update={"slow": "0" * 64})
        monkeypatch.setattr(log, "system_state", lambda: SystemState(experiences=(lost, *whole)))
        given, _ = with_transfer_events(log, "other", begun, [RoundStarted(round=1, slots=())])
        assert set(given.event.experiences) == set(whole)


def test_people_are_told_which_experiences_a_run_was_given(home, ctl, scripted_reads, first):
    second = submit(home, "0002-b", CONFIG.model_copy(update={"seed": 3}))
    finish_runs(home, second)
    (learnt,) = read(home, SYSTEM_STREAM, ExperiencesLearnt)[:1]
    (given,) = read(home, second, ExperiencesGiven)
    told = {row["id"]: row["told"] for row in ctl("status", "--json").json["runs"]}
    assert told == {first: [], second: [one.id for one in given.event.experiences]}
    number = len(given.event.experiences)
    assert f"told {number} experience" in ctl("status", second).out
    assert "of others" not in ctl("status", first).out
    assert f" of {first}" in event_lines.describe_event(given.event)
    assert event_lines.describe_event(learnt.event) == f"{number} experience{'s' * (number > 1)} of {first}"
    tracker = RunTracker(run=second)
    tracker.add(read(home, second, RunCreated)[0])
    assert narrate_event(given.event, tracker) == f"told {event_lines.describe_event(given.event)}"
    shown = ctl("show", f"{second}@{given.run_seq}", "--json").json
    assert set(shown["blobs"]) == {source for one in given.event.experiences for source in one.source_digests}


# --- techniques ---


def test_a_run_is_offered_what_models_invented_in_others(home, scripted_reads, ctl, first):
    with EventLog.open(home) as log:
        (found,) = log.system_state().sequences
        near = learnt_technique("new:near", found.tags, run=first)
        far = learnt_technique("new:far", problem_tags("nothing", "of", "this"))
        log.append_now([NewEvent(SYSTEM_STREAM, TechniquesLearnt(techniques=(near, far)))])
    second = submit(home, "0002-b")
    finish_runs(home, second)
    (given,) = read(home, second, TechniquesGiven)
    assert given.event.techniques == (near,)
    with LogReader.open(home) as reader:
        assert reader.run_state(second).techniques == (near,)
        assert reader.replay_run(second).state.techniques == (near,)
    assert f"new:near ({first}@9)" in ctl("tail", "--type", "TechniquesGiven").out
    alone = submit(home, "0003-c", searching(reuse=False))
    finish_runs(home, alone)
    assert read(home, alone, TechniquesGiven) == []


def test_what_a_run_s_models_invented_is_learnt_as_it_ends(home, monkeypatch, scripted_reads):
    told: list[RunState] = []

    def taught(run, state, history, where):
        told.append(state)
        assert {type(item.event).__name__ for item in history} <= {
            "RunForked",
            "RoundStarted",
            "PlanProposed",
        }
        return (learnt_technique("new:mine", where.tags, run=run),)

    monkeypatch.setattr("agent_core.inventions.collect_techniques", taught)
    run = submit(home, "0001-a")
    finish_runs(home, run)
    assert len(told) == 1
    with LogReader.open(home) as reader:
        assert [one.event_id for one in reader.system_state().techniques] == [f"{run}@9"]
