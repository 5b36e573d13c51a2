"""Edits of the configuration file under a running owner: taken whole or refused, recorded, never half."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest
from structlog.testing import capture_logs

from agent_core.prompting import PromptSet, builtin_prompts
from daemon import prompt_overrides
from daemon.command_models import Fork, Set, run_id
from daemon.commands import CommandHandler
from daemon.config import FILE_NAME
from daemon.config_watcher import ConfigWatcher
from daemon.home_owner import serve_runs
from daemon.stop_signal import StopSignal
from state.archive import archive_run
from state.compact import compact_log
from state.events import ConfigChanged, ConfigRefused, RoundStarted, RunCancelled, RunCreated
from state.log import EventLog
from state.model import RunStatus
from state.records import NewEvent
from state.verify import verify_log
from tests.support import fakes


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


@pytest.fixture
def commands(event_log):
    return CommandHandler(event_log, fakes.fake_workers(), touched=lambda *_: None)


@pytest.fixture
def applied():
    return []


@pytest.fixture
def edits(event_log, commands, applied):
    return ConfigWatcher(event_log, turn=commands.turn, apply=applied.append, env={})


def write(home, text: str) -> None:
    (home / FILE_NAME).write_text(text)


async def look_for_edits(edits: ConfigWatcher) -> None:
    await edits.poll()
    await edits.poll()


async def submit(commands: CommandHandler, id_: str = "a", pinned: tuple[str, ...] = ()) -> str:
    command = fakes.create_submission().model_copy(update={"pinned": pinned})
    await commands.handle(id_, command.model_dump_json().encode())
    return run_id(id_, "silu")


def list_recorded_events(event_log) -> list:
    kinds = (ConfigChanged, ConfigRefused)
    return [item.event for item in event_log.read(limit=10_000) if isinstance(item.event, kinds)]


async def test_what_changed_counts_for_runs_under_way_from_their_next_round(home, event_log, commands, edits):
    run = await submit(commands)
    write(home, "[run.search]\nbeam = 7\n")
    await look_for_edits(edits)
    state = event_log.run_state(run)
    assert (state.config.search.beam, state.pending_config.search.beam) == (2, 7)
    assert state.pending_config.search.plans == fakes.CONFIG.search.plans
    event = list_recorded_events(event_log)[0]
    assert event.config["run"]["search"]["beam"] == 7
    assert event_log.system_state().config == event.config


async def test_what_was_set_for_a_run_stays(home, event_log, commands, edits):
    flags = await submit(commands, "a", pinned=("run.search.beam",))
    other = await submit(commands, "b")
    await commands.handle("c", Set(run=other, settings={"search.beam": 5}).model_dump_json().encode())
    write(home, "[run.search]\nbeam = 7\nplans = 3\n")
    await look_for_edits(edits)
    for run, beam in ((flags, 2), (other, 5)):
        pending = event_log.run_state(run).pending_config
        assert (pending.search.beam, pending.search.plans) == (beam, 3)


async def test_what_kernels_are_judged_by_stays(home, event_log, commands, edits):
    run = await submit(commands)
    write(home, '[run]\ntarget = "trn1"\nsize = "full"\n')
    await look_for_edits(edits)
    assert event_log.run_state(run).pending_config is None
    assert event_log.system_state().config["run"]["target"] == "trn1"


async def test_the_daemon_s_own_settings_count_at_once(home, edits, applied):
    write(home, "[daemon]\nruns = 3\nevaluations = 5\n")
    await look_for_edits(edits)
    assert [(config.runs, config.evaluations) for config in applied] == [(3, 5)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run.search]\nbeem = 7\nplans = 0\n", ["beem", "plans = 0"]),
        ('[run]\nplanner = ["nobody"]\n', ["nobody"]),
        ("[run\n", ["not a TOML file"]),
    ],
)
async def test_a_file_with_faults_changes_nothing_and_is_refused(home, event_log, commands, text, words):
    applied = []
    edits = ConfigWatcher(event_log, turn=commands.turn, apply=applied.append, env={})
    run = await submit(commands)
    write(home, text)
    with capture_logs() as lines:
        await look_for_edits(edits)
    assert event_log.run_state(run).pending_config is None
    assert applied == []
    (event,) = list_recorded_events(event_log)
    assert isinstance(event, ConfigRefused)
    assert all(word in event.error.message for word in words)
    assert [line["event"] for line in lines] == ["config_refused"]
    assert event_log.system_state().refused == event.error.message
    write(home, "")
    await look_for_edits(edits)
    assert event_log.system_state().refused is None


async def test_a_file_is_taken_only_when_it_has_settled(home, event_log, edits):
    write(home, "[run.search]\nbeam = 7\n")
    await edits.poll()
    assert list_recorded_events(event_log) == []
    write(home, "[run.search]\nbeam = 8\nplans = 2\n")
    await edits.poll()
    assert list_recorded_events(event_log) == []
    await edits.poll()
    assert list_recorded_events(event_log)[0].config["run"]["search"]["beam"] == 8


async def test_a_link_in_a_circle_is_refused(home, event_log, edits):
    (home / FILE_NAME).symlink_to(home / FILE_NAME)
    await look_for_edits(edits)
    (event,) = list_recorded_events(event_log)
    assert "cannot be read" in event.error.message


async def test_a_file_that_says_the_same_is_no_event(home, event_log, edits):
    write(home, "# nothing yet\n")
    await look_for_edits(edits)
    os.utime(home / FILE_NAME, ns=(1, 1))
    await look_for_edits(edits)
    assert list_recorded_events(event_log) == []


async def test_a_file_that_goes_away_means_the_defaults_again(home, event_log, commands, edits):
    write(home, "[run.search]\nbeam = 7\n")
    await look_for_edits(edits)
    run = await submit(commands)
    (home / FILE_NAME).unlink()
    await look_for_edits(edits)
    assert event_log.run_state(run).pending_config.search.beam == 4


def restart_watcher(event_log, commands, apply=lambda _: None) -> ConfigWatcher:
    """The edits of a next process of the same home."""
    return ConfigWatcher(event_log, turn=commands.turn, apply=apply, env={})


@pytest.mark.parametrize(
    ("before", "after", "beam"),
    [
        ("", "[run.search]\nbeam = 7\n", 7),
        ("[run.search]\nbeam = 7\n", "[run.search]\nbeam = 8\n", 8),
        ("[run.search]\nbeam = 7\n", "", 4),
        ("[run.search]\nbeam = 7\n", None, 4),
    ],
)
async def test_edits_that_nobody_saw_are_found_at_the_next_start(event_log, commands, before, after, beam):
    write(event_log.home, before)
    await restart_watcher(event_log, commands).poll()
    run = await submit(commands)
    pinned = await submit(commands, "b", pinned=("run.search.beam",))
    if after is None:
        (event_log.home / FILE_NAME).unlink()
    else:
        write(event_log.home, after)
    await restart_watcher(event_log, commands).poll()
    assert event_log.run_state(run).pending_config.search.beam == beam
    assert event_log.run_state(pinned).pending_config is None
    known = event_log.head.seq
    await restart_watcher(event_log, commands).poll()
    assert event_log.head.seq == known


async def test_what_a_process_began_with_is_not_put_into_force_again(home, event_log, commands, applied):
    """Flags of that process would be undone."""
    write(home, "[daemon]\nruns = 3\n")
    edits = restart_watcher(event_log, commands, applied.append)
    await edits.poll()
    write(home, "[daemon]\nruns = 3\n[run.search]\nbeam = 7\n")
    await look_for_edits(edits)
    assert applied == []
    assert event_log.system_state().config["daemon"]["runs"] == 3


async def test_a_refusal_of_before_is_over_when_the_file_is_right_at_the_next_start(
    home, event_log, commands, applied
):
    write(home, "[run\n")
    await restart_watcher(event_log, commands, applied.append).poll()
    assert event_log.system_state().refused is not None
    write(home, "")
    await restart_watcher(event_log, commands, applied.append).poll()
    assert event_log.system_state().refused is None


async def test_an_edit_meets_a_run_that_is_just_ending(home, event_log, commands, edits):
    """Its end is queued when the edit is looked at, and stored before it."""
    run = await submit(commands)
    write(home, "[run.search]\nbeam = 7\n")
    await edits.poll()
    end = asyncio.create_task(event_log.append([NewEvent(run, RunCancelled(reason="enough"))]))
    await asyncio.sleep(0)
    await edits.poll()
    await end
    assert event_log.run_state(run).status is RunStatus.CANCELLED
    assert event_log.system_state().config["run"]["search"]["beam"] == 7


async def test_an_owner_picks_edits_up(home, event_log):
    stop = StopSignal()
    hosting = asyncio.create_task(
        serve_runs(event_log, fakes.daemon_config(), stop=stop, workers=fakes.fake_workers())
    )
    await asyncio.sleep(0.05)
    write(home, "[run.search]\nbeam = 7\n")
    async with asyncio.timeout(60):
        while not list_recorded_events(event_log):  # noqa: ASYNC110 - the log has no event to wait for
            await asyncio.sleep(0.05)
    stop.request()
    await hosting
    assert event_log.system_state().config["run"]["search"]["beam"] == 7


# --- prompts ---------------------------------------------------------------------------------------


ASK = builtin_prompts().files["planner/ask.md"] + "Prefer what is simple.\n"


def write_setting(home, path: str = "planner/ask.md", text: str = ASK) -> None:
    file = home / "prompts" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


async def test_an_edited_prompt_is_recorded_and_counts_from_the_next_round(home, event_log, commands, edits):
    run = await submit(commands)
    assert event_log.run_state(run).prompts == builtin_prompts().version
    assert PromptSet.from_json(event_log.get_blob(builtin_prompts().version)) == builtin_prompts()
    write_setting(home)
    await look_for_edits(edits)
    version = event_log.system_state().prompts
    assert PromptSet.from_json(event_log.get_blob(version)).files["planner/ask.md"] == ASK
    state = event_log.run_state(run)
    assert (state.prompts, state.pending_prompts) == (builtin_prompts().version, version)
    later = await submit(commands, "b")
    assert event_log.run_state(later).prompts == version
    await fakes.host_until_ended(event_log, run, later)
    rounds = [item.event for item in event_log.read(stream=run, limit=10_000)]
    assert {event.prompts for event in rounds if isinstance(event, RoundStarted)} == {version}
    assert verify_log(home).is_ok


async def test_a_round_under_way_keeps_its_prompts(home, event_log, commands, edits):
    run = await submit(commands)
    hosting = asyncio.create_task(fakes.host_until_ended(event_log, run))
    async with asyncio.timeout(30):
        while event_log.run_state(run).round < 1:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)
    write_setting(home)
    await look_for_edits(edits)
    await hosting
    rounds = [item.event for item in event_log.read(stream=run, limit=10_000)]
    versions = [event.prompts for event in rounds if isinstance(event, RoundStarted)]
    assert versions == [builtin_prompts().version, event_log.system_state().prompts]


async def test_files_are_taken_together_or_not_at_all(home, event_log, commands, edits):
    run = await submit(commands)
    write(home, "[run.search]\nbeam = 7\n")
    write_setting(home, "planner/task.md", "{{kernal}}")
    write_setting(home, "planer/task.md")
    await look_for_edits(edits)
    assert event_log.run_state(run).pending_config is None
    (event,) = list_recorded_events(event_log)
    assert event.error.message.splitlines() == [
        "prompts/planer/task.md: no such prompt; did you mean planner/task.md?",
        "prompts/planner/task.md, line 1: {{kernal}}: no such value here; did you mean kernel?",
    ]
    write(home, "[run.search]\nbeem = 7\n")
    await look_for_edits(edits)
    assert event_log.system_state().refused.splitlines()[0].startswith("config.toml: run.search.beem")
    assert len(event_log.system_state().refused.splitlines()) == 3
    shutil.rmtree(home / "prompts")
    write(home, "[run.search]\nbeam = 7\n")
    await look_for_edits(edits)
    assert event_log.system_state().refused is None
    assert event_log.system_state().prompts is None
    assert event_log.run_state(run).pending_config.search.beam == 7


async def test_prompts_that_are_removed_mean_the_program_s_own_again(home, event_log, commands, edits):
    write_setting(home)
    await look_for_edits(edits)
    run = await submit(commands)
    shutil.rmtree(home / "prompts")
    await look_for_edits(edits)
    assert event_log.system_state().prompts == builtin_prompts().version
    assert event_log.run_state(run).pending_prompts == builtin_prompts().version
    known = event_log.head.seq
    await restart_watcher(event_log, commands).poll()
    assert event_log.head.seq == known


async def test_prompts_of_another_version_of_the_program_reach_runs_under_way(
    event_log, commands, monkeypatch
):
    run = await submit(commands)
    write_setting(event_log.home)
    with monkeypatch.context() as patch:  # what the program's own set would be after an upgrade
        fresh = prompt_overrides.load_prompts(event_log.home)
        patch.setattr(prompt_overrides, "builtin_prompts", lambda: fresh)
        shutil.rmtree(event_log.home / "prompts")
        patch.setattr(prompt_overrides, "load_prompts", lambda _: fresh)
        await restart_watcher(event_log, commands).poll()
    assert event_log.run_state(run).pending_prompts == fresh.version
    assert event_log.system_state().prompts is None


async def test_a_run_of_before_prompts_were_recorded_is_left_alone(event_log, commands, edits):
    run = await submit(commands)
    created = event_log.read(stream=run)[0].event
    old = created.model_copy(update={"prompts": None})
    await event_log.append([NewEvent("old-run", old)])
    write_setting(event_log.home)
    await look_for_edits(edits)
    assert event_log.run_state("old-run").pending_prompts is None
    assert event_log.run_state(run).pending_prompts is not None


async def test_a_fork_goes_by_the_prompts_that_count_now(home, event_log, commands, edits, ctl):
    run = await submit(commands)
    write_setting(home)
    await look_for_edits(edits)
    cut = next(item.run_seq for item in event_log.read(stream=run) if isinstance(item.event, RunCreated))
    await commands.handle("f", Fork(run=run, seq=cut).model_dump_json().encode())
    child = run_id("f", "silu")
    state = event_log.run_state(child)
    assert (state.prompts, state.pending_prompts) == (
        builtin_prompts().version,
        event_log.system_state().prompts,
    )
    found = ctl("lineage", run, "--json").json["runs"][0]["forks"][0]["changed"]
    assert found == {"prompts": [builtin_prompts().version, event_log.system_state().prompts]}
    said = ctl("lineage", run).out
    assert f"prompts {builtin_prompts().version[:12]} -> {event_log.system_state().prompts[:12]}\n" in said
    await commands.handle("g", Fork(run=run).model_dump_json().encode())
    assert event_log.run_seq(run_id("g", "silu")) == event_log.run_seq(run) + 1


async def test_prompts_outlive_the_runs_that_were_told_them(home, commands, edits, tmp_path, event_log):
    write_setting(home)
    await look_for_edits(edits)
    run = await submit(commands)
    await fakes.host_until_ended(event_log, run)
    event_log.close()
    archive_run(home, run, tmp_path / "a.gz")
    compact_log(home, [tmp_path / "a.gz"])
    with EventLog.open(home) as log:
        assert log.active_runs() == log.run_ids() == ()
        fresh = PromptSet.from_json(log.get_blob(log.system_state().prompts))
        assert fresh.files["planner/ask.md"] == ASK
        later = CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None)
        assert log.run_state(await submit(later, "z")).prompts == fresh.version
    assert verify_log(home).is_ok


@pytest.mark.parametrize("name", [".task.md.swp", "task.md~", ".git/config"])
async def test_what_editors_leave_behind_is_passed_over(home, event_log, edits, name):
    write_setting(home, f"planner/{name}", "left behind")
    await look_for_edits(edits)
    assert list_recorded_events(event_log) == []


async def test_a_look_that_finds_nothing_new_opens_no_file(home, edits, monkeypatch):
    write_setting(home)
    write(home, "[run.search]\nbeam = 7\n")
    await look_for_edits(edits)
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", None)
        patch.setattr("os.open", None)
        patch.setattr("io.open", None)
        await look_for_edits(edits)
        os.utime(home / "prompts" / "planner" / "ask.md", ns=(1, 1))
        await edits.poll()
        with pytest.raises(TypeError, match="not callable"):
            await edits.poll()


async def test_where_there_is_no_folder_none_is_walked_and_no_set_is_made(event_log, commands, monkeypatch):
    for name in ("os.walk", "daemon.prompt_overrides.assemble_prompts"):
        monkeypatch.setattr(name, None)
    edits = restart_watcher(event_log, commands)
    await look_for_edits(edits)
    assert list_recorded_events(event_log) == []


def _a_file(folder) -> None:
    folder.write_text("no folder")


def _a_link(folder) -> None:
    (folder / "planner").mkdir(parents=True)
    (folder / "planner" / "task.md").symlink_to("nowhere")


def _a_pipe(folder) -> None:
    (folder / "planner").mkdir(parents=True)
    os.mkfifo(folder / "planner" / "task.md")


def _many(folder) -> None:
    folder.mkdir()
    for number in range(prompt_overrides.MAX_FILES + 1):
        (folder / f"{number}.md").touch()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_a_file, "prompts: cannot be read: Not a directory"),
        (_a_link, "prompts/planner/task.md: cannot be read: No such file or directory"),
        (_a_pipe, "prompts/planner/task.md: cannot be read: not a regular file"),
        (_many, "more than 200 files"),
    ],
)
async def test_what_is_no_folder_of_prompts_is_refused(home, event_log, edits, make, words):
    make(home / "prompts")
    await look_for_edits(edits)
    (event,) = list_recorded_events(event_log)
    assert words in event.error.message


def test_status_says_that_an_edit_was_refused(ctl, home):
    with EventLog.open(home) as log:
        commands = CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None)
        edits = ConfigWatcher(log, turn=commands.turn, apply=lambda _: None, env={})
        write(home, "[run.search]\nbeem = 7\n")
        asyncio.run(look_for_edits(edits))
    (home / FILE_NAME).unlink()
    assert (
        "an edit was refused, and changes nothing: config.toml: run.search.beem: no such key"
        in fakes.join_wrapped_lines(ctl("status").out)
    )
    assert "beem" in ctl("status", "--json").json["daemon"]["config_refused"]
