"""Hosts in the configuration: every way to name them, and what naming them means."""

from __future__ import annotations

import tomllib

import pytest

from daemon.config import ConfigError, load_config, nest_keys, render_toml
from daemon.name_checks import find_unknown_names
from daemon.run_settings import apply_settings
from remote.registry import EvaluatorSpec
from state.fold import state_hash
from state.model import HostConfig, RunConfig
from tests.support.world import World, small


def settings(home, text: str = "", env=None, flags=None):
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)
    return load_config(home, env or {}, flags, look_up=find_unknown_names)


TABLES = """
[run]
hosts = [
    "ubuntu@trn-1",
    {address = "trn-2:2222", tags = ["trn2", "lab"], python = "/opt/x/bin/python", cores = [0, 1]},
]
host_tags = ["lab"]
"""

BOTH = (
    HostConfig(address="ubuntu@trn-1"),
    HostConfig(address="trn-2:2222", tags=("trn2", "lab"), python="/opt/x/bin/python", cores=(0, 1)),
)


def test_a_file_names_hosts_as_texts_or_tables_and_is_written_back_as_it_was(home):
    found = settings(home, TABLES)
    assert found.config.run.hosts == BOTH
    written = tomllib.loads(render_toml(found))
    assert written["run"]["hosts"] == tomllib.loads(TABLES)["run"]["hosts"]
    (home / "config.toml").write_text(render_toml(found))
    assert load_config(home, {}).config == found.config


def test_who_names_hosts_means_to_use_them_unless_it_says_otherwise(home):
    assert settings(home).config.run.evaluator == "sim"
    assert settings(home, '[run]\nhosts = ["trn-1"]\n').config.run.evaluator == "ssh"
    assert settings(home, '[run]\nhosts = ["trn-1"]\nevaluator = "sim"\n').config.run.evaluator == "sim"


def test_variables_and_flags_name_hosts_too(home):
    found = settings(home, env={"NKI_AGENT_RUN__HOSTS": "a@b, c"})
    assert [one.address for one in found.config.run.hosts] == ["a@b", "c"]
    flagged = settings(home, TABLES, flags={"run.hosts": ("only@this",)})
    assert [one.address for one in flagged.config.run.hosts] == ["only@this"]
    assert flagged.sources["run.hosts"] == "--host"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('"-oProxyCommand=x"', "run.hosts"),
        ('"a b"', "run.hosts"),
        ('"us er@x"', "run.hosts"),
        ('"host:99999"', "'99999' is not a port"),
        ('{address = "x", tag = "y"}', "run.hosts"),
        ('{tags = ["y"]}', "run.hosts"),
        ('{address = "x", cores = []}', "run.hosts"),
        ("7", "run.hosts"),
        ('"x", "x"', "x is named twice"),
    ],
)
def test_a_host_that_is_none_is_a_fault_of_the_key(home, entry, said):
    with pytest.raises(ConfigError, match=r"config\.toml: run\.hosts") as caught:
        settings(home, f"[run]\nhosts = [{entry}]\n")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            'command = ["bench"]',
            "run.score: no argument of command has {kernel}: no kernel would be swapped in",
        ),
        ('pattern = "([0-9]+)"\njson_path = "a.b"', "run.score: set either pattern or json_path"),
        (
            'command = ["bench", "{kernel}"]',
            "run: score.command is set, and hosts names no host to run it on",
        ),
        ('pattern = "[0-9]+"', 'config.toml: run.score.pattern = "[0-9]+": it must have one group'),
    ],
)
def test_what_is_wrong_with_a_score_is_one_line_in_our_own_words(home, lines, said):
    with pytest.raises(ConfigError) as caught:
        settings(home, f"[run.score]\n{lines}\n")
    (fault,) = caught.value.faults
    assert fault.startswith(said)
    with pytest.raises(ConfigError) as caught:
        apply_settings(RunConfig(), {f"score.{key}": value for key, value in tomllib.loads(lines).items()})
    assert "Value error" not in str(caught.value)


def test_runs_share_an_evaluator_where_they_want_the_same():
    hosts = RunConfig.model_validate(nest_keys({"evaluator": "ssh", "hosts": ["a"], "host_tags": ["x", "y"]}))
    again = hosts.model_copy(update={"host_tags": ("y", "x"), "seed": 7})
    other = hosts.model_copy(update={"prefilter": "sim"})
    assert EvaluatorSpec.from_config(hosts) == EvaluatorSpec.from_config(again)
    assert (
        len(
            {
                EvaluatorSpec.from_config(hosts),
                EvaluatorSpec.from_config(again),
                EvaluatorSpec.from_config(other),
            }
        )
        == 2
    )
    at_home = hosts.model_copy(update={"evaluator": "sim"})
    assert EvaluatorSpec.from_config(at_home) == EvaluatorSpec.from_config(RunConfig())


def test_where_kernels_ran_is_no_part_of_how_a_run_went():
    plain, on_hosts = small(), small().model_copy(update={"hosts": BOTH, "host_tags": ("lab",)})
    states = [World(config).finish().state for config in (plain, on_hosts)]
    assert state_hash(states[0]) == state_hash(states[1])
