"""Which settings a process begins with when the file has faults: those last in force, where there are any."""

from __future__ import annotations

import pytest

from daemon.commands import CommandHandler
from daemon.config import FILE_NAME, ConfigError, DaemonConfig
from daemon.config_watcher import ConfigWatcher, load_start_config
from state.events import ConfigRefused
from state.log import EventLog
from tests.support import fakes

FAULTY = "[daemon]\nevaluations = 0\n"


def write(home, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / FILE_NAME).write_text(text)


def edits_of(log: EventLog, applied: list[DaemonConfig]) -> ConfigWatcher:
    commands = CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None)
    return ConfigWatcher(log, turn=commands.turn, apply=applied.append, env={})


async def look_for_edits(edits: ConfigWatcher) -> None:
    await edits.poll()
    await edits.poll()


async def test_a_process_that_starts_again_goes_on_with_what_was_in_force(home):
    applied: list[DaemonConfig] = []
    write(home, "[daemon]\nevaluations = 3\n")
    with EventLog.open(home) as log:
        await look_for_edits(edits_of(log, applied))
    write(home, FAULTY)
    with EventLog.open(home) as log:
        assert load_start_config(home, log, {}).evaluations == 3
        assert load_start_config(home, log, {"NKI_AGENT_DAEMON__EVALUATIONS": "5"}).evaluations == 5
        edits = edits_of(log, applied)
        await look_for_edits(edits)
        assert isinstance(log.read()[-1].event, ConfigRefused)
        assert applied == []
        write(home, "[daemon]\nevaluations = 4\n")
        await look_for_edits(edits)
        assert [one.evaluations for one in applied] == [4]


async def test_what_was_never_in_force_is_not_made_up(home):
    write(home, FAULTY)
    with EventLog.open(home) as log, pytest.raises(ConfigError, match="evaluations"):
        load_start_config(home, log, {})


async def test_faults_of_the_environment_are_told(home):
    with EventLog.open(home) as log:
        write(home, "[daemon]\nruns = 7\n")
        await look_for_edits(edits_of(log, []))
        with pytest.raises(ConfigError, match="EVALUATIONS"):
            load_start_config(home, log, {"NKI_AGENT_DAEMON__EVALUATIONS": "0"})
