"""Forks, settings and approvals as commands: what each becomes in the log, and what is refused."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

import seeds
from daemon.command_models import Approve, Command, Fork, Pause, Resume, Set, run_id
from daemon.commands import CommandHandler
from daemon.inbox import put_command
from state.events import (
    CommandCompleted,
    CommandRejected,
    ConfigChanged,
    EvaluationStarted,
    KernelKept,
    RunForked,
    RunPaused,
)
from state.fold import state_hash
from state.log import EventLog
from state.model import SYSTEM_STREAM, EvaluationRequest, RunStatus
from state.reader import LogReader
from state.records import NewEvent
from state.verify import verify_log
from tests.support import fakes
from tests.support.twins import assert_like_twin, read_end


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> tuple[Path, str]:
    """A home with one run that has ended, made once."""
    home = tmp_path_factory.mktemp("parent") / "home"
    run = fakes.submit_run(home, id_="parent")
    fakes.finish_runs(home, run)
    return home, run


@pytest.fixture
def parent(home, template) -> str:
    shutil.copytree(template[0], home)
    return template[1]


@pytest.fixture
def event_log(home, parent):
    with EventLog.open(home) as log:
        yield log


@pytest.fixture
def commands(event_log) -> CommandHandler:
    return CommandHandler(event_log, fakes.fake_workers(), touched=lambda *_: None)


async def send_command(event_log: EventLog, commands: CommandHandler, command: Command, id_: str = "it"):
    await commands.handle(id_, command.model_dump_json().encode())
    answers = [item.event for item in event_log.read(stream=SYSTEM_STREAM, limit=10_000)]
    (found,) = [e for e in answers if isinstance(e, CommandCompleted | CommandRejected) and e.id == id_]
    return found


def list_own_events(event_log: EventLog, run: str) -> list:
    return [item.event for item in event_log.read(stream=run, limit=10_000) if item.stream == run]


# --- fork ------------------------------------------------------------------------------------------


async def test_a_fork_continues_its_parent_and_leaves_it_alone(event_log, commands, parent):
    before = event_log.run_seq(parent)
    answer = await send_command(event_log, commands, Fork(run=parent, seq=20))
    child = run_id("it", "silu")
    opened = len(event_log.run_state(parent, 20).open)
    assert answer.result == {
        "run": child,
        "parent": parent,
        "seq": 20,
        "abandoned": opened,
        "rejudged": False,
    }
    (event,) = list_own_events(event_log, child)
    assert isinstance(event, RunForked)
    assert (event.parent, event.parent_seq, event.rebase) == (parent, 20, None)
    assert event_log.run_seq(parent) == before
    assert event_log.active_runs() == (child,)
    assert event_log.run_state(child).open == {}


async def test_without_a_place_a_fork_continues_from_the_last_event(event_log, commands, parent):
    last = event_log.run_seq(parent)
    answer = await send_command(event_log, commands, Fork(run=parent))
    assert answer.result["seq"] == last
    assert event_log.run_state(answer.result["run"]).status is RunStatus.RUNNING


async def test_changed_settings_are_part_of_how_a_fork_begins(event_log, commands, parent):
    answer = await send_command(
        event_log, commands, Fork(run=parent, settings={"search.rounds": 5, "search.plans": 2})
    )
    forked, changed = list_own_events(event_log, answer.result["run"])
    assert isinstance(forked, RunForked)
    assert isinstance(changed, ConfigChanged)
    assert event_log.run_state(answer.result["run"]).pending_config.search.rounds == 5


async def test_another_target_is_part_of_a_fork_s_first_event(event_log, commands, parent):
    answer = await send_command(event_log, commands, Fork(run=parent, settings={"run.target": "trn1"}))
    assert answer.result["rejudged"] is True
    (forked,) = list_own_events(event_log, answer.result["run"])
    assert forked.rebase.config.target == "trn1"
    assert forked.rebase.bounds != event_log.run_state(parent).bounds
    state = event_log.run_state(answer.result["run"])
    assert {one.author for one in state.rejudge} <= {"person", "scripted"}


async def test_another_toolchain_has_kernels_judged_anew_too(event_log, parent, monkeypatch):
    monkeypatch.setattr(fakes.FakeEvaluator, "toolchain", lambda self: "fake 2")
    commands = CommandHandler(event_log, fakes.fake_workers(), touched=lambda *_: None)
    answer = await send_command(event_log, commands, Fork(run=parent))
    (forked,) = list_own_events(event_log, answer.result["run"])
    assert forked.rebase.toolchain == "fake 2"


async def test_another_problem_comes_with_its_files(event_log, commands, parent):
    files = dict(seeds.load_problem("silu").files)
    files["kernel.py"] += b"\n# another\n"
    command = Fork.model_construct(run=parent, files=files)
    answer = await send_command(event_log, commands, command)
    (forked,) = list_own_events(event_log, answer.result["run"])
    assert forked.rebase.problem.digest == seeds.build_problem(files).digest
    for digest in forked.rebase.problem.files.values():
        assert event_log.get_blob(digest)


async def test_rewinding_pauses_what_is_rewound(event_log, commands, parent):
    running = await send_command(event_log, commands, Fork(run=parent, seq=10), "first")
    child = running.result["run"]
    await send_command(event_log, commands, Fork(run=child, seq=9, rewind=True), "second")
    state = event_log.run_state(child)
    assert state.status is RunStatus.PAUSED
    assert run_id("second", "silu") in state.status_reason
    assert event_log.active_runs() == (child, run_id("second", "silu"))


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (Fork(run="silu-nobody"), "unknown_run", "agentctl status lists the runs"),
        (Fork(run="system"), "unknown_run", "system"),
        (Fork(run="", seq=9999), "unknown_event", "its last is"),
        (Fork(run="", settings={"search.beem": 2}), "config_invalid", "did you mean run.search.beam"),
        (Fork(run="", settings={"planner": ["nobody"]}), "config_invalid", "nobody"),
        (Fork(run="", settings={"target": "trn9"}), "config_invalid", "trn9"),
        (Fork(run="", settings={"problem": "adamw"}), "bad_command", "send its files"),
        (Fork.model_construct(run="", files={"problem.toml": b""}), "invalid_problem", "problem.toml"),
    ],
)
async def test_what_cannot_be_forked_is_refused(event_log, parent, command, code, words):
    commands = CommandHandler(event_log, fakes.fake_workers(), touched=lambda *_: None)
    answer = await send_command(
        event_log, commands, command.model_copy(update={"run": command.run or parent})
    )
    assert isinstance(answer, CommandRejected)
    assert answer.error.code == code
    assert words in f"{answer.error.message} {answer.error.hint}"
    assert event_log.active_runs() == ()


async def test_a_run_that_is_nearly_named_is_suggested(event_log, commands, parent):
    answer = await send_command(event_log, commands, Fork(run=parent[:-1]))
    assert answer.error.hint == f"did you mean {parent}?"


async def test_a_fork_within_a_record_is_listed_as_it_begins(event_log, commands, parent):
    """Where a kernel was kept and nothing else of its record had happened, the fork has not kept it."""
    told = event_log.read(stream=parent, limit=10_000)
    kept = next(item for item in told if isinstance(item.event, KernelKept))
    answer = await send_command(event_log, commands, Fork(run=parent, seq=kept.run_seq))
    child = answer.result["run"]
    assert answer.result["seq"] == kept.run_seq - 1
    assert event_log.run_state(child).best is None
    with LogReader.open(event_log.home) as reader:
        (listed,) = [row for row in reader.run_summaries() if row["run"] == child]
    assert (listed["best"], listed["best_ms"], listed["initial_ms"]) == (None, None, None)


@pytest.mark.parametrize("at", [1, 4, 17, 30, 44])
def test_a_fork_runs_to_the_end_that_its_parent_had(home, parent, template, at):
    child = run_id(put_command(home, Fork(run=parent, seq=at)), "silu")
    fakes.finish_runs(home, child)
    assert read_end(home, child) == read_end(template[0], parent)
    assert verify_log(home).is_ok


def test_a_fork_with_more_rounds_goes_on_where_its_parent_ended(home, parent):
    child = run_id(put_command(home, Fork(run=parent, settings={"search.rounds": 3})), "silu")
    fakes.finish_runs(home, child)
    with LogReader.open(home) as reader:
        assert (reader.run_state(parent).round, reader.run_state(child).round) == (2, 3)
        assert {row["round"] for row in reader.attempt_rows(child)} == {0, 1, 2, 3}
    assert verify_log(home).is_ok


def test_a_fork_for_another_target_judges_anew_and_goes_on(home, parent):
    settings = {"search.rounds": 3, "target": "trn1"}
    child = run_id(put_command(home, Fork(run=parent, seq=25, settings=settings)), "silu")
    fakes.finish_runs(home, child)
    with EventLog.open(home) as log:
        state = log.run_state(child)
        asked = [event for event in list_own_events(log, child) if isinstance(event, EvaluationStarted)]
        requests = [EvaluationRequest.model_validate_json(log.get_blob(event.request)) for event in asked]
    assert state.config.target == "trn1"
    assert {request.target for request in requests} == {"trn1"}
    assert requests[0].candidate == state.initial.id
    assert verify_log(home).is_ok


# --- a crash inside a fork -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_crash_inside_a_fork_leaves_one_of_the_two_legal_states(server, template, tmp_path):
    """Killed at any of its points there is no fork yet, or a whole one; then it ends like its twin."""
    command = Fork(run=template[1], seq=20, settings={"search.plans": 1})
    whole = tmp_path / "twin"
    shutil.copytree(template[0], whole)
    child = run_id(put_command(whole, command, id_="fork"), "silu")
    fakes.finish_runs(whole, child)
    twin = read_end(whole, child)
    seen = set()
    for n in range(1, 8):
        home = tmp_path / f"home{n}"
        shutil.copytree(template[0], home)
        put_command(home, command, id_="fork")
        assert server.run(home, child, crash=str(n)) == -signal.SIGKILL
        with LogReader.open(home) as reader:
            there = child in reader.run_ids()
            begun = reader.read(stream=child, types=("RunForked", "ConfigChanged")) if there else []
            assert [item.type for item in begun] == (["RunForked", "ConfigChanged"] if there else [])
        seen.add(there)
        assert server.run(home, child) == 0
        assert_like_twin(home, child, twin)
    assert seen == {False, True}


# --- set -------------------------------------------------------------------------------------------


async def submit_run(commands: CommandHandler, config=fakes.CONFIG) -> str:
    await commands.handle("new", fakes.create_submission(config).model_dump_json().encode())
    return run_id("new", config.problem)


async def test_a_setting_is_recorded_and_waits_for_the_next_round(event_log, commands):
    run = await submit_run(commands)
    answer = await send_command(
        event_log, commands, Set(run=run, settings={"search.beam": 7, "run.cap_usd": 3})
    )
    changed = {"run.search.beam": [2, 7], "run.cap_usd": [0.0, 3.0]}
    assert answer.result == {"run": run, "changed": changed, "from_round": 1}
    state = event_log.run_state(run)
    assert (state.config.search.beam, state.pending_config.search.beam) == (2, 7)


async def test_settings_add_up_until_they_count(event_log, commands):
    run = await submit_run(commands)
    await send_command(event_log, commands, Set(run=run, settings={"search.beam": 7}), "a")
    await send_command(event_log, commands, Pause(run=run), "b")
    await send_command(event_log, commands, Set(run=run, settings={"search.plans": 3}), "c")
    pending = event_log.run_state(run).pending_config
    assert (pending.search.beam, pending.search.plans) == (7, 3)


async def test_what_is_so_already_is_no_event(event_log, commands):
    run = await submit_run(commands)
    answer = await send_command(event_log, commands, Set(run=run, settings={"search.beam": 2}))
    assert answer.result["changed"] == {}
    assert len(list_own_events(event_log, run)) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"search.beem": 3}, "did you mean"),
        ({"target": "trn1"}, "fork"),
        ({"search.beam": 0}, "greater than"),
    ],
)
async def test_wrong_settings_are_refused_as_a_whole(event_log, commands, settings, words):
    run = await submit_run(commands)
    answer = await send_command(event_log, commands, Set(run=run, settings={**settings, "search.plans": 3}))
    assert isinstance(answer, CommandRejected)
    assert answer.error.code == "config_invalid"
    assert words in answer.error.message
    assert event_log.run_state(run).pending_config is None


async def test_settings_of_what_has_ended_cannot_be_changed(event_log, commands, parent):
    answer = await send_command(event_log, commands, Set(run=parent, settings={"search.beam": 3}))
    assert answer.error.code == "illegal_state"


# --- approve ---------------------------------------------------------------------------------------


async def waiting(event_log: EventLog, commands: CommandHandler) -> str:
    run = await submit_run(commands)
    paused = RunPaused(reason="needs approval: before_round 1", needs_approval=("before_round 1",))
    await event_log.append([NewEvent(run, paused)])
    return run


async def test_approving_lets_the_run_pass_its_points(event_log, commands):
    run = await waiting(event_log, commands)
    answer = await send_command(event_log, commands, Approve(run=run))
    assert answer.result == {"run": run, "approved": ["before_round 1"]}
    state = event_log.run_state(run)
    assert (state.status, state.approved) == (RunStatus.RUNNING, {"before_round": "before_round 1"})


async def test_resume_is_no_approval(event_log, commands):
    run = await waiting(event_log, commands)
    answer = await send_command(event_log, commands, Resume(run=run))
    assert answer.error.code == "needs_approval"
    assert answer.error.hint == f"agentctl approve {run}"
    assert event_log.run_state(run).status is RunStatus.PAUSED


@pytest.mark.parametrize("paused", [True, False])
async def test_what_waits_for_nobody_cannot_be_approved(event_log, commands, paused):
    run = await submit_run(commands)
    if paused:
        await send_command(event_log, commands, Pause(run=run), "p")
    answer = await send_command(event_log, commands, Approve(run=run))
    assert answer.error.code == "illegal_state"


def test_a_run_with_points_waits_and_goes_on_when_approved(home):
    config = fakes.CONFIG.model_copy(update={"approval": ("before_round", "completion")})
    run = fakes.submit_run(home, config)
    plain = fakes.submit_run(home)
    fakes.finish_runs(home, plain)
    approvals = 0
    while True:
        with LogReader.open(home) as reader:
            state = reader.run_state(run)
        if state.has_ended:
            break
        assert state.needs_approval
        approvals += 1
        put_command(home, Approve(run=run))
        child = fakes.submit_run(home)  # something to wait for while the run goes on to its next point
        fakes.finish_runs(home, child)
    assert approvals == 3
    with LogReader.open(home) as reader:
        assert reader.run_state(run).decision_digest == reader.run_state(plain).decision_digest
        assert state_hash(reader.run_state(run)) != state_hash(reader.run_state(plain))
