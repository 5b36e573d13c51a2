"""Edits that concern models: one that is unknown, or has no key, is refused like any other fault."""

from __future__ import annotations

import pytest

from daemon.command_models import run_id
from daemon.commands import CommandHandler
from daemon.config import FILE_NAME
from daemon.config_watcher import ConfigWatcher
from state.events import ConfigChanged, ConfigRefused
from state.log import EventLog
from state.model import LlmConfig
from tests.support import fakes

ASKS = '[run]\nplanner = ["{0}"]\nllm.models = ["{0}/some-model"]\n'
WITH_FILE = '[daemon.anthropic]\nkey_file = "{}"\n'


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


@pytest.fixture
def commands(event_log):
    return CommandHandler(event_log, fakes.fake_workers(), touched=lambda *_: None)


@pytest.fixture
def edits(event_log, commands):
    return ConfigWatcher(event_log, turn=commands.turn, apply=lambda _: None, env={})


async def look_for_edits(edits: ConfigWatcher, text: str | None = None) -> None:
    if text is not None:
        (edits._home / FILE_NAME).write_text(text)
    for _ in range(4):  # files with keys are looked at once a file names them
        await edits.poll()


def find_refusal(event_log: EventLog) -> str | None:
    return event_log.system_state().refused


async def list_asked_models(commands: CommandHandler, event_log: EventLog, **changes) -> str:
    config = fakes.CONFIG.model_copy(update={"cap_usd": 1.0, **changes})
    await commands.handle("a", fakes.create_submission(config).model_dump_json().encode())
    return run_id("a", "silu")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ASKS.format("anthropic"), "no key for anthropic: give it by the environment variable"),
        ('[run]\nplanner = ["llm"]\nllm.models = ["antropic/m"]\n', "no endpoint is called 'antropic'"),
        (ASKS.format("anthropic") + WITH_FILE.format("/nowhere/key"), "/nowhere/key: the key cannot be read"),
    ],
)
async def test_a_model_that_is_unknown_or_has_no_key_is_refused(event_log, edits, text, words):
    await look_for_edits(edits, text)
    assert words in (find_refusal(event_log) or "")
    assert [item.type for item in event_log.read()] == [ConfigRefused.__name__]


async def test_what_may_still_come_with_the_run_is_no_fault_of_the_file(event_log, edits):
    """Money and models may be given on the command line."""
    await look_for_edits(edits, '[run]\nplanner = ["local"]\n[daemon]\nprices = ["local/m=3/0.3/15"]\n')
    assert find_refusal(event_log) is None
    assert [item.type for item in event_log.read()] == [ConfigChanged.__name__]


async def test_a_key_that_is_mended_lets_the_edit_be_taken(event_log, edits, tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-ant-0123456789")
    key.chmod(0o644)
    await look_for_edits(edits, ASKS.format("anthropic") + WITH_FILE.format(key))
    assert "others may use it" in (find_refusal(event_log) or "")
    assert "sk-ant-0123456789" not in (find_refusal(event_log) or "")
    key.chmod(0o600)
    await look_for_edits(edits)
    assert find_refusal(event_log) is None
    assert event_log.system_state().config["run"]["planner"] == ["anthropic"]


async def test_an_edit_leaves_runs_under_way_their_models(event_log, commands, edits, tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-ant-0123456789")
    key.chmod(0o600)
    await look_for_edits(edits, WITH_FILE.format(key))
    models = LlmConfig(models=("anthropic/claude-sonnet-4-5",))
    run = await list_asked_models(commands, event_log, planner=("anthropic",), llm=models)
    await look_for_edits(edits, WITH_FILE.format(key) + "[run.search]\nbeam = 7\n")
    assert event_log.run_state(run).pending_config.search.beam == 7
    await look_for_edits(edits, "[run.search]\nbeam = 3\n")
    assert "no key for anthropic" in (find_refusal(event_log) or "")
    assert event_log.run_state(run).pending_config.search.beam == 7


async def test_an_edit_gives_no_run_under_way_a_model_without_a_price(event_log, commands, edits):
    prices = '[daemon]\nprices = ["local/m=3/0.3/15"]\n'
    await look_for_edits(edits, prices)
    run = await list_asked_models(commands, event_log, planner=("local",), llm=LlmConfig(models=("local/m",)))
    await look_for_edits(edits, f'[run]\nllm.executor_models = ["local/other"]\n{prices}')
    assert "the price of local/other is unknown" in (find_refusal(event_log) or "")
    await look_for_edits(edits, "")
    assert "the price of local/m is unknown" in (find_refusal(event_log) or "")
    await look_for_edits(edits, f"[run.search]\nbeam = 7\n{prices}")
    assert find_refusal(event_log) is None
    assert event_log.run_state(run).pending_config.search.beam == 7


async def test_what_was_wrong_before_an_edit_does_not_stand_in_its_way(event_log, commands, edits):
    """As where a key was in the environment of the process before this one."""
    models = LlmConfig(models=("anthropic/claude-sonnet-4-5",))
    run = await list_asked_models(commands, event_log, planner=("anthropic",), llm=models)
    await look_for_edits(edits, "[run.search]\nbeam = 7\n")
    assert find_refusal(event_log) is None
    assert event_log.run_state(run).pending_config.search.beam == 7
