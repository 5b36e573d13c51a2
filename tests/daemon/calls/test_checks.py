"""What is wrong with a run's models is said before it starts, in a line each."""

from __future__ import annotations

import json

import pytest

from daemon.calls.model_checks import find_model_faults, models_of_run
from daemon.command_models import run_id
from daemon.commands import CommandHandler
from daemon.config import MODEL_DEFAULTS, ConfigError, DaemonConfig, load_config
from state.errors import StreamUnknown
from state.log import EventLog
from state.model import LlmConfig, RunConfig
from tests.daemon.calls import fake_models
from tests.daemon.calls.fake_models import CONFIG, FakeProvider
from tests.support import fakes

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-0123456789", "OPENAI_API_KEY": "sk-0123456789"}
CLAUDE = "anthropic/claude-sonnet-4-5"


def run(*planner: str, cap_usd: float = 5.0, **llm) -> RunConfig:
    return RunConfig(planner=planner, cap_usd=cap_usd, llm=LlmConfig(**llm))


@pytest.mark.parametrize(
    ("config", "env", "told"),
    [
        (RunConfig(), {}, None),
        (run("builtin", models=("nobody/m",)), {}, None),
        (run("anthropic", models=(CLAUDE,)), KEYS, None),
        (run("local", models=("local/m",), cap_usd=0), {}, None),
        (run("llm", models=("local/m", CLAUDE)), KEYS, None),
        (run("anthropic", models=("local/m",)), KEYS, "run.planner: no model is given for anthropic"),
        (run("llm"), KEYS, "run.planner: no model is given for llm"),
        (run("local", models=("local/m", "locl/m")), {}, "'locl' (did you mean 'local'?)"),
        (run("anthropic", models=(CLAUDE,)), {}, "no key for anthropic: give it by the environment variable"),
        (run("local", models=("local/m",), executor_models=(CLAUDE,)), {}, "no key for anthropic"),
        (run("anthropic", models=(CLAUDE,), cap_usd=0), KEYS, "run.cap_usd = 0: anthropic/claude-sonnet-4-5"),
    ],
)  # fmt: skip
def test_each_fault_is_one_line_that_names_the_key(config, env, told):
    found = find_model_faults(config, DaemonConfig(), env)
    assert len(found) == (told is not None)
    assert told is None or told in found[0]
    assert all("\n" not in line for line in found)


def test_a_server_of_one_s_own_needs_no_key_and_a_key_file_must_be_private(tmp_path):
    config = run("openai", models=("openai/m",))
    own = DaemonConfig.model_validate({"openai": {"base_url": "http://127.0.0.1:9/v1"}})
    assert find_model_faults(config, own, {}) == []
    file = tmp_path / "key"
    file.write_text("sk-0123456789")
    file.chmod(0o644)
    (told,) = find_model_faults(config, DaemonConfig.model_validate({"openai": {"key_file": str(file)}}), {})
    assert "chmod 600" in told
    assert "sk-0123456789" not in told


def test_the_models_of_a_run_are_those_that_its_planners_may_ask():
    config = run("anthropic", "builtin", models=(CLAUDE, "local/m"), summarizer_models=("openai/s=2",))
    assert models_of_run(config) == [CLAUDE, "openai/s"]
    assert models_of_run(RunConfig(llm=LlmConfig(models=(CLAUDE,)))) == []


async def test_a_run_whose_models_cannot_be_asked_is_refused(home):
    with EventLog.open(home) as event_log:
        roles = fake_models.create_role_factory(event_log, FakeProvider())
        commands = CommandHandler(
            event_log, fakes.fake_workers(), touched=lambda *_: None, check=roles.find_model_faults
        )
        free = CONFIG.model_copy(update={"cap_usd": 0.0})
        submission = fakes.create_submission(free)
        await commands.handle("bad", submission.model_dump_json().encode())
        (rejected,) = event_log.read(stream="system", types=("CommandRejected",))
        assert rejected.event.error.code == "config_invalid"
        assert "run.cap_usd = 0: local/some-model costs money" in rejected.event.error.message
        with pytest.raises(StreamUnknown):
            event_log.run_state(run_id("bad", "silu"))


async def test_a_fork_or_a_setting_that_nobody_could_answer_is_refused(home):
    with EventLog.open(home) as event_log:
        run = await fake_models.submit_run(event_log)
        roles = fake_models.create_role_factory(event_log, FakeProvider())
        commands = CommandHandler(
            event_log, fakes.fake_workers(), touched=lambda *_: None, check=roles.find_model_faults
        )

        async def answer(id_: str, **command) -> object:
            await commands.handle(id_, json.dumps({"run": run, **command}).encode())
            (found,) = event_log.read(stream="system", types=("CommandRejected", "CommandCompleted"))[-1:]
            return found.event

        refused = await answer("a", verb="set", settings={"planner": ["openai"]})
        assert "no model is given for openai" in refused.error.message
        refused = await answer("b", verb="fork", settings={"planner": ["openai"]})
        assert "no model is given for openai" in refused.error.message
        assert (await answer("c", verb="set", settings={"cap_usd": 7.0})).result["changed"]
        forked = await answer("d", verb="fork", settings={"planner": ["local", "builtin"]})
        assert forked.result["parent"] == run


async def test_no_new_run_fork_or_setting_asks_a_model_whose_price_nobody_knows(home):
    """A cap cannot be kept for it, and a cap of 0 least of all."""
    with EventLog.open(home) as event_log:
        run = await fake_models.submit_run(event_log)
        roles = fake_models.create_role_factory(event_log, FakeProvider())
        commands = CommandHandler(
            event_log,
            fakes.fake_workers(),
            touched=lambda *_: None,
            check=roles.find_model_faults,
            check_prices=roles.find_unpriced_models,
        )

        async def answer(id_: str, **command) -> object:
            await commands.handle(id_, json.dumps({"run": run, **command}).encode())
            (found,) = event_log.read(stream="system", types=("CommandRejected", "CommandCompleted"))[-1:]
            return found.event

        free = CONFIG.model_copy(update={"cap_usd": 0.0, "llm": LlmConfig(models=("local/other",))})
        submission = fakes.create_submission(free)
        await commands.handle("free", submission.model_dump_json().encode())
        (rejected,) = event_log.read(stream="system", types=("CommandRejected",))
        said = rejected.event.error.message
        assert "run.cap_usd = 0 cannot be kept, as the price of local/other is unknown" in said
        assert '["local/other=0/0/0"]' in said
        assert "--allow-unknown-prices" in said
        other = {"llm.models": ["local/other"]}
        for id_, verb in (("a", "set"), ("b", "fork")):
            refused = await answer(id_, verb=verb, settings=other)
            assert "the price of local/other is unknown" in refused.error.message
            assert "--allow" not in refused.error.message, "neither verb has that flag"
        allowed = submission.model_copy(update={"allow_unknown_prices": True})
        await commands.handle("asked_for", allowed.model_dump_json().encode())
        assert event_log.run_state(run_id("asked_for", "silu")).config.llm.models == ("local/other",)
        run = run_id("asked_for", "silu")
        assert (await answer("c", verb="set", settings={"cap_usd": 7.0})).result["changed"]


def test_config_check_says_it_too(ctl, home):
    home.mkdir()
    (home / "config.toml").write_text('[run]\nplanner = ["anthropic"]\n')
    called = ctl("config", "check")
    assert called.status != 0
    assert "no model is given for anthropic" in called.err


def test_searches_with_models_have_defaults_of_their_own(home):
    home.mkdir()
    (home / "config.toml").write_text('[run]\nplanner = ["builtin"]\n')
    assert load_config(home, {}).config.run.search.plans == 6
    effective = load_config(home, {}, {"run.planner": ["local"], "run.search.plans": 3})
    search = effective.config.run.search
    assert (search.beam, search.plans, search.implementations, search.rounds) == (6, 3, 2, 16)
    assert effective.sources.keys() == {"run.planner", "run.search.plans"}
    assert MODEL_DEFAULTS["run.search.plans"] == 12


def test_prices_and_windows_of_one_s_own_are_checked_when_they_are_read(home):
    with pytest.raises(ConfigError, match="no price: ENDPOINT/MODEL=INPUT/CACHED/OUTPUT"):
        load_config(home, {}, {"daemon.prices": ["local/m=1"]})
    with pytest.raises(ConfigError, match="no window"):
        load_config(home, {}, {"daemon.windows": ["local/m"]})
    for key, value in {"daemon.prices": "antropic/m=1/0.1/2", "daemon.windows": "antropic/m=9/1"}.items():
        with pytest.raises(ConfigError, match=r"antropic.*did you mean 'anthropic'") as refused:
            load_config(home, {}, {key: [value]})
        assert len(refused.value.faults) == 1
        assert "\n" not in str(refused.value)
    assert load_config(home, {}, {"daemon.prices": ["local/m=1/0.1/2"]}).config.daemon.prices


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter2@gate.example/v1",
        "ftp://me:hunter2@gate.example",
        "http://gate.example/v1?api_key=hunter2&x=1",
        "http://gate.example/v1#token=hunter2",
    ],
)
def test_an_address_with_a_password_is_refused_without_telling_it(home, url):
    with pytest.raises(ConfigError, match=r"daemon\.local\.base_url") as refused:
        load_config(home, {}, {"daemon.local.base_url": url})
    assert "hunter2" not in str(refused.value)
    assert "gate.example" in str(refused.value)
    assert load_config(
        home, {}, {"daemon.local.base_url": "http://gate.example/a@b"}
    ).config.daemon.local.base_url
