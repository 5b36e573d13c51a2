"""Commands: what each becomes in the log, how it is answered, and that seeing it twice changes nothing."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from agentctl.event_lines import describe_event
from daemon.command_models import Cancel, Pause, Propose, Resume, run_id
from daemon.commands import CommandHandler, next_person_key
from daemon.errors import BadFile
from state.errors import StaleAppend
from state.events import CommandCompleted, CommandRejected, KernelProposed, PlanProposed
from state.log import EventLog
from state.model import PERSON_SLOT, SYSTEM_STREAM, EffectKey, Plan, Prediction, RunStatus
from state.reader import LogReader
from state.records import NewEvent
from state.verify import verify_log
from tests.support import fakes


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


@pytest.fixture
def touched():
    return []


@pytest.fixture
def commands(event_log, touched):
    return CommandHandler(
        event_log, fakes.fake_workers(), touched=lambda command, run: touched.append((command.verb, run))
    )


def encode_command(command) -> bytes:
    return command.model_dump_json().encode()


async def start_run(commands: CommandHandler, config=fakes.CONFIG) -> str:
    await commands.handle("first", encode_command(fakes.create_submission(config)))
    return run_id("first", config.problem)


def answer(event_log: EventLog, id_: str):
    answers = [item.event for item in event_log.read(stream=SYSTEM_STREAM)]
    (found,) = [e for e in answers if isinstance(e, CommandCompleted | CommandRejected) and e.id == id_]
    return found


async def test_submit_creates_a_run_that_holds_all_it_refers_to(event_log, commands, touched):
    run = await start_run(commands)
    state = event_log.run_state(run)
    assert answer(event_log, "first").result == {"run": run}
    assert touched == [("submit", run)]
    assert event_log.active_runs() == (run,)
    assert state.config == fakes.CONFIG
    assert state.toolchain == fakes.TOOLCHAIN
    assert event_log.get_blob(state.kernel).decode() == fakes.KERNEL
    kernels = {"kernel.c", "kernel.py"}
    assert set(state.problem.files) == kernels | {"problem.toml", "reference.py", "workload.json"}
    for digest in state.problem.files.values():
        assert event_log.get_blob(digest)
    assert 0 < state.bounds.plain_ms <= state.bounds.tight_ms


async def test_submit_starts_from_the_problems_own_kernel_unless_given_one(event_log, commands):
    submission = fakes.create_submission().model_copy(update={"kernel": None})
    await commands.handle("own", encode_command(submission))
    state = event_log.run_state(run_id("own", "silu"))
    assert state.kernel == state.problem.files["kernel.py"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"target": "trn9"}, "unknown_target"),
        ({"planner": ("nobody",)}, "unknown_proposer"),
        ({"planner": ("scripted", "antropic")}, "unknown_proposer"),
    ],
)
async def test_submit_is_rejected_with_what_is_wrong(event_log, commands, change, code):
    config = fakes.CONFIG.model_copy(update=change)
    await commands.handle("bad", encode_command(fakes.create_submission(config)))
    assert answer(event_log, "bad").error.code == code
    assert event_log.active_runs() == ()


async def test_submit_of_a_broken_problem_names_every_fault(event_log, commands):
    submission = fakes.create_submission()
    files = {**submission.files, "problem.toml": b"", "reference.py": b"def (:"}
    await commands.handle("bad", encode_command(submission.model_copy(update={"files": files})))
    error = answer(event_log, "bad").error
    assert error.code == "invalid_problem"
    assert "reference.py" in error.message
    assert "problem.toml" in error.message


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ({"verb": "paus"}, "unknown_verb", "did you mean 'pause'"),
        ({"verb": "fly"}, "unknown_verb", "submit, pause"),
        ({"verb": "pause"}, "bad_command", "run: field required"),
        ({"verb": "pause", "run": "a", "x": 1}, "bad_command", "x: extra"),
        ({"verb": "pause", "run": "nobody-000000"}, "unknown_run", "nobody-000000"),
        ({"verb": "pause", "run": "system"}, "unknown_run", "system"),
        ({"verb": "propose", "run": "a", "source": ""}, "bad_command", "source"),
    ],
)
async def test_a_command_that_cannot_be_carried_out_gets_its_answer(
    event_log, commands, content, code, words
):
    await commands.handle("it", json.dumps(content).encode())
    error = answer(event_log, "it").error
    assert error.code == code
    assert words in f"{error.message} {error.hint}"
    assert event_log.system_state().pending == {}


async def test_a_run_id_that_is_taken_is_refused(event_log, commands, monkeypatch):
    run = await start_run(commands)
    monkeypatch.setattr("daemon.commands.run_id", lambda *_: run)
    other = fakes.CONFIG.model_copy(update={"seed": 1})
    await commands.handle("second", encode_command(fakes.create_submission(other)))
    assert answer(event_log, "second").error.code in ("duplicate_outcome", "event_refused")
    assert event_log.run_state(run).config == fakes.CONFIG


async def test_pause_resume_and_cancel(event_log, commands, touched):
    run = await start_run(commands)
    seen = []
    for number, command in enumerate([Pause(run=run), Resume(run=run), Resume(run=run), Cancel(run=run)]):
        await commands.handle(f"c{number}", encode_command(command))
        seen.append(event_log.run_state(run).status)
    assert seen == [RunStatus.PAUSED, RunStatus.RUNNING, RunStatus.RUNNING, RunStatus.CANCELLED]
    assert [item.type for item in event_log.read(stream=run)] == [
        "RunCreated", "RunPaused", "RunResumed", "RunCancelled",
    ]  # fmt: skip
    assert touched[1:] == [("pause", run), ("resume", run), ("resume", run), ("cancel", run)]


async def test_what_has_ended_cannot_be_steered(event_log, commands):
    run = await start_run(commands)
    await commands.handle("end", encode_command(Cancel(run=run)))
    later = [Pause(run=run), Resume(run=run), Cancel(run=run), Propose(run=run, source="x = 1")]
    for number, command in enumerate(later):
        await commands.handle(f"late{number}", encode_command(command))
        error = answer(event_log, f"late{number}").error
        assert error.code == "illegal_state"
        assert "cancelled" in error.message


async def test_a_paused_run_cannot_be_paused(event_log, commands):
    run = await start_run(commands)
    await commands.handle("p1", encode_command(Pause(run=run)))
    await commands.handle("p2", encode_command(Pause(run=run)))
    assert answer(event_log, "p2").error.code == "illegal_state"


async def test_a_persons_kernel_waits_for_the_next_round(event_log, commands):
    run = await start_run(commands)
    for number in range(2):
        await commands.handle(
            f"k{number}", encode_command(Propose(run=run, source=f"TILE_M = {number}\n", note="mine"))
        )
    keys = [EffectKey(1, PERSON_SLOT, number, 0, 0, "executor") for number in range(2)]
    state = event_log.run_state(run)
    assert [state.outcomes[str(key)].author for key in keys] == ["person", "person"]
    assert answer(event_log, "k1").result == {"run": run, "candidate": keys[1].candidate_id, "round": 1}
    proposed = state.outcomes[str(keys[1])]
    assert isinstance(proposed, KernelProposed)
    assert proposed.note == "mine"
    assert event_log.get_blob(proposed.source) == b"TILE_M = 1\n"


@pytest.mark.parametrize(
    ("selected", "slots", "round_"), [(False, True, 2), (True, True, 3), (False, False, 3)]
)
async def test_a_persons_kernel_joins_a_round_until_its_beam_is_selected(
    event_log, commands, selected, slots, round_
):
    run = await start_run(commands)
    state = event_log.run_state(run)
    marks = ("r2.b0.p0.k0.f0.planner",)
    plan = Plan(technique="t", site="s", title="t", prediction=Prediction(speedup=1.1))
    changed = state.model_copy(
        update={
            "round": 2,
            "selected": selected,
            "slots": marks if slots else (),
            "outcomes": {key: PlanProposed(key=key, plan=plan) for key in marks},
        }
    )
    assert next_person_key(changed) == EffectKey(round_, PERSON_SLOT, 0, 0, 0, "executor")


async def test_a_command_seen_again_changes_nothing(event_log, commands, touched):
    run = await start_run(commands)
    head = event_log.head
    await commands.handle("first", encode_command(fakes.create_submission()))
    assert event_log.head == head
    assert touched == [("submit", run)]


async def test_a_command_taken_in_but_not_answered_is_answered_when_seen_again(home, monkeypatch):
    data = encode_command(fakes.create_submission())
    with EventLog.open(home) as log:
        cut = CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None)

        async def crash(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(cut, "_answer_command", crash)
        with pytest.raises(KeyboardInterrupt):
            await cut.handle("first", data)
        assert "first" in log.system_state().pending
    with EventLog.open(home) as log:
        await CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None).handle("first", data)
        assert log.active_runs() == (run_id("first", "silu"),)
        assert log.system_state().pending == {}
    assert verify_log(home).is_ok


async def test_an_id_cannot_be_used_for_another_command(commands):
    run = await start_run(commands)
    with pytest.raises(BadFile, match="first"):
        await commands.handle("first", encode_command(Pause(run=run)))


async def test_a_run_that_moves_on_meanwhile_is_looked_at_again(event_log, commands, monkeypatch):
    run = await start_run(commands)
    append, stale = event_log.append, []

    async def racing(events, **options):
        if "expect" in options and not stale:
            stale.append(True)
            raise StaleAppend(run, 1, 2)
        return await append(events, **options)

    monkeypatch.setattr(event_log, "append", racing)
    await commands.handle("p", encode_command(Pause(run=run)))
    assert stale == [True]
    assert event_log.run_state(run).status is RunStatus.PAUSED


async def test_the_answer_and_what_it_caused_are_one_append(home, event_log, commands):
    """Between them no crash can fall: their rows were committed together, or not at all."""
    run = await start_run(commands)
    appends = []
    append = event_log.append

    async def noting(events: list[NewEvent], **options):
        appends.append([type(new.event).__name__ for new in events])
        return await append(events, **options)

    event_log.append = noting
    await commands.handle("p", encode_command(Pause(run=run)))
    assert appends == [["CommandReceived"], ["RunPaused", "CommandCompleted"]]
    with LogReader.open(home) as reader:
        assert reader.run_state(run).status is RunStatus.PAUSED


async def test_what_became_of_a_command_is_logged(commands, event_log):
    with capture_logs() as lines:
        await commands.handle("a", fakes.create_submission().model_dump_json().encode())
        await commands.handle("b", Pause(run="nobody").model_dump_json().encode())
    done, refused = lines
    assert (done["event"], done["verb"], done["log_level"]) == ("command_completed", "submit", "info")
    assert done["run"] in event_log.active_runs()
    assert (refused["event"], refused["command"], refused["code"]) == ("command_rejected", "b", "unknown_run")


async def test_a_command_that_finds_a_bug_is_answered_and_stops_nothing(event_log, commands, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    run = await start_run(commands)
    monkeypatch.setattr("daemon.commands.steer_run", broken)
    with capture_logs() as lines:
        await commands.handle("second", encode_command(Pause(run=run)))
    assert answer(event_log, "second").error.code == "internal_error"
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["command_failed"]
    assert event_log.run_state(run).status is RunStatus.RUNNING
    assert event_log.system_state().pending == {}


async def test_the_log_says_where_a_command_was_given(event_log, commands):
    run = await start_run(commands)
    await commands.handle("page", encode_command(Pause(run=run, origin="page")))
    await commands.handle("old", b'{"verb": "resume", "run": "%s"}' % run.encode())
    await commands.handle("odd", b'{"verb": "resume", "run": "%s", "origin": "moon"}' % run.encode())
    received = [item.event for item in event_log.read(stream=SYSTEM_STREAM, types=("CommandReceived",))]
    assert [event.origin for event in received] == ["agentctl", "page", None, None]
    assert "given on the page" in describe_event(received[1])
    assert isinstance(answer(event_log, "old"), CommandCompleted)
    assert answer(event_log, "odd").error.code == "bad_command"
    assert "origin" in answer(event_log, "odd").error.message
