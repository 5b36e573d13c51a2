"""Configuration: precedence and origins, every fault at once, and what is shown loads again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds
from daemon.config import (
    FLAGS,
    MAX_BYTES,
    Config,
    ConfigError,
    DaemonConfig,
    EffectiveConfig,
    load_config,
    parse_setting,
    render_json,
    render_toml,
)
from daemon.home_paths import resolve_home
from daemon.name_checks import find_unknown_names
from state.model import RunConfig, SearchConfig


def write(home: Path, text: str) -> Path:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text, encoding="utf-8")
    return home


def faults(home: Path, env: dict[str, str] | None = None, overrides: dict | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(home, env or {}, overrides)
    assert caught.value.code == "config_invalid"
    return caught.value.faults


def test_a_home_without_a_file_has_the_defaults(home):
    effective = load_config(home, {})
    assert effective.config == Config()
    assert {origin for _, _, origin in effective.items()} == {"default"}


def test_a_later_source_wins_key_by_key_and_is_named(home):
    write(home, "[run]\nseed = 1\nsize = 'reduced'\n[run.search]\nbeam = 2\nplans = 3\n")
    env = {"NKI_AGENT_RUN__SEARCH__BEAM": "5", "NKI_AGENT_RUN__SEED": "8"}
    effective = load_config(home, env, {"run.seed": 9})
    run = effective.config.run
    assert (run.seed, run.size, run.search.beam, run.search.plans) == (9, "reduced", 5, 3)
    assert effective.sources == {
        "run.seed": "--seed",
        "run.size": "config.toml",
        "run.search.beam": "NKI_AGENT_RUN__SEARCH__BEAM",
        "run.search.plans": "config.toml",
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("RUN__SEARCH__TARGET_SPEEDUP", "2.5", 2.5),
        ("RUN__SEARCH__TARGET_SPEEDUP", "none", None),
        ("RUN__PLANNER", "builtin, openai", ["builtin", "openai"]),
        ("RUN__PROBLEM", "none", "none"),
        ("DAEMON__ALLOW_WEAK_JAIL", "true", True),
        ("DAEMON__LOG_LEVEL", "debug", "debug"),
    ],
)
def test_variables_are_read_by_the_type_of_their_key(home, name, text, value):
    shown = render_json(load_config(home, {f"NKI_AGENT_{name}": text}))
    key = name.lower().replace("__", ".")
    assert shown[key] == {"value": value, "origin": f"NKI_AGENT_{name}"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("builtin", ("builtin",)),
        ("builtin, openai", ("builtin", "openai")),
        ("[builtin,openai]", ("builtin", "openai")),  # what a shell leaves of ["builtin","openai"]
    ],
)
def test_a_text_stands_for_a_list_in_files_and_flags_too(home, text, value):
    write(home, f"[run]\nplanner = {json.dumps(text)}\n")
    assert load_config(home, {}).config.run.planner == value
    assert load_config(home, {}, {"run.planner": text}).config.run.planner == value
    assert parse_setting("planner", text) == ("run.planner", value)


def test_a_text_without_items_is_an_empty_list(home):
    assert load_config(home, {}, {"run.llm.models": ""}).config.run.llm.models == ()
    (line,) = faults(home, overrides={"run.planner": ""})
    assert "at least 1 item" in line


def test_a_variable_overrides_the_file_with_nothing(home):
    write(home, "[run.search]\ntarget_speedup = 3.0\n")
    effective = load_config(home, {"NKI_AGENT_RUN__SEARCH__TARGET_SPEEDUP": "none"})
    assert effective.config.run.search.target_speedup is None


def test_all_faults_of_all_sources_are_reported_at_once(home):
    write(
        home, "[run]\nseed = true\nproblm = 'silu'\n[run.search]\nbeam = '6'\n[daemon]\nlog_level = 'loud'\n"
    )
    lines = faults(
        home,
        {"NKI_AGENT_RUN__SEARCH__BEAM": "99", "NKI_AGENT_DAEMON__GRACE_SECONDS": "nan"},
        {"run.search.rounds": 0, "run.serach.plans": 1},
    )
    assert len(lines) == 8
    assert lines[0] == "config.toml: run.seed = true: Input should be a valid integer (seed of all draws)"
    assert lines[1] == "config.toml: run.problm: no such key; did you mean run.problem?"
    assert lines[2].startswith('config.toml: run.search.beam = "6": Input should be a valid integer')
    assert "'debug', 'info', 'warning' or 'error'" in lines[3]
    assert lines[4].startswith('NKI_AGENT_DAEMON__GRACE_SECONDS: daemon.grace_seconds = "nan": ')
    assert "less than or equal to 64 (B: candidates kept" in lines[5]
    assert lines[6].startswith("--rounds: run.search.rounds = 0: ")
    assert lines[7] == "--set: run.serach.plans: no such key; did you mean run.search.plans?"


def test_a_wrong_value_is_reported_even_where_a_flag_overrides_it(home):
    write(home, "[run]\nseed = -1\n")
    (line,) = faults(home, overrides={"run.seed": 1})
    assert line.startswith("config.toml: run.seed = -1: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("run = 3", "config.toml: run: a section, not a value"),
        ("[run]\nsearch = 'x'", "config.toml: run.search: a section, not a value"),
        ("[run.serch]\nbeam = 2", "config.toml: run.serch: no such key; did you mean run.search?"),
        ("[wholly]\nother = 2", "config.toml: wholly: no such key"),
        ('home = "elsewhere"', "config.toml: home: no such key; the flag --home names the home"),
        ("[run]\nx = 2", "config.toml: run.x: no such key"),
        (
            "[run.seed]\nx = 2",
            'config.toml: run.seed = {"x": 2}: Input should be a valid integer (seed of all draws)',
        ),
        (
            "[run]\nproblem = 2026-01-02T03:04:05\nseed = 2026-01-02",
            'config.toml: run.seed = "2026-01-02": Input should be a valid integer (seed of all draws)',
        ),
    ],
)
def test_a_key_of_the_wrong_kind(home, text, line):
    assert faults(write(home, text))[-1] == line


@pytest.mark.parametrize("content", [b"[run\nseed = 1", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_one_fault_beside_the_others(home, content):
    path = write(home, "") / "config.toml"
    path.write_bytes(content)
    first, second = faults(home, {"NKI_AGENT_RUN__SEED": "x"})
    assert first.startswith(f"{path}: not a TOML file: ")
    assert second.startswith("NKI_AGENT_RUN__SEED: run.seed")


def test_a_file_that_cannot_be_read(home):
    (home / "config.toml").mkdir(parents=True)
    (line,) = faults(home)
    assert line == f"{home / 'config.toml'}: cannot be read: Is a directory"


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "[" * 5000 + "]" * 5000,
        "[run]\nseed" + ".a" * 5000 + " = 1",
        "[run]\nseed = " + "{a=" * 5000 + "1" + "}" * 5000,
    ],
)
def test_what_is_nested_too_deeply_is_a_fault(home, text):
    (line,) = faults(write(home, text))
    assert line.endswith("nested too deeply")


def test_a_pipe_is_not_waited_for(home):
    home.mkdir()
    os.mkfifo(home / "config.toml")
    (line,) = faults(home)
    assert line.endswith("cannot be read: not a regular file")


def test_a_device_is_not_read(home):
    home.mkdir()
    (home / "config.toml").symlink_to("/dev/zero")
    (line,) = faults(home)
    assert line.endswith("cannot be read: not a regular file")


def test_a_file_is_read_up_to_a_size(home):
    path = write(home, "") / "config.toml"
    os.truncate(path, MAX_BYTES + 1)
    (line,) = faults(home)
    assert line.endswith(f"larger than {MAX_BYTES} bytes")


def test_a_misspelt_variable_is_a_fault_and_a_foreign_one_is_not(home):
    assert load_config(home, {"NKI_AGENT_CRASH_AT": "log:1", "RUN__SEED": "7"}).config == Config()
    (line,) = faults(home, {"NKI_AGENT_RUN_SEED": "7"})
    assert line == "NKI_AGENT_RUN_SEED: run_seed: no such key; did you mean NKI_AGENT_RUN__SEED?"
    (line,) = faults(home, {"NKI_AGENT_SEED": "5"})
    assert line == "NKI_AGENT_SEED: seed: no such key; did you mean NKI_AGENT_RUN__SEED?"


def test_names_can_be_looked_up_beside_the_other_faults(home):
    write(home, '[run]\nproblem = "nope"\nplanner = ["foo", "builtin", "bar"]\nevaluator = "foo"\nsize = "x"')
    with pytest.raises(ConfigError) as caught:
        load_config(home, {"NKI_AGENT_RUN__TARGET": "trn9"}, look_up=find_unknown_names)
    lines = caught.value.faults
    assert len(lines) == 6
    for words in ("'nope'", "'foo'; there", "'bar'", "evaluator 'foo'", "run.size", "target 'trn9'"):
        assert any(words in line for line in lines), (words, lines)


@pytest.mark.parametrize("problem", ["silu", "folder"])
def test_what_exists_is_no_fault(home, tmp_path, problem):
    folder = tmp_path / "folder"
    shutil.copytree(Path(seeds.__file__).parent / "problems" / "silu", folder)
    env = {"NKI_AGENT_RUN__PROBLEM": str(tmp_path / problem) if problem == "folder" else problem}
    settings = {"run.target": "trn1", "run.evaluator": "sim", "run.planner": ["builtin"]}
    assert load_config(home, env, settings, look_up=find_unknown_names).config.run.target == "trn1"


SEARCHES = st.builds(
    SearchConfig,
    beam=st.integers(1, 64),
    t_pos=st.floats(1, 10, exclude_min=True),
    target_speedup=st.none() | st.floats(1, 1e9, exclude_min=True),
    target_ms=st.none() | st.floats(0, 1e9, exclude_min=True),
)
# Surrogates are no text, in TOML as anywhere else in UTF-8.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
CONFIGS = st.builds(
    Config,
    run=st.builds(
        RunConfig,
        problem=TEXTS,
        seed=st.integers(0, 2**63 - 1),
        planner=st.lists(TEXTS, min_size=1).map(tuple),
        search=SEARCHES,
    ),
    daemon=st.builds(
        DaemonConfig, allow_weak_jail=st.booleans(), grace_seconds=st.floats(0, 3600, allow_subnormal=False)
    ),
)


@given(config=CONFIGS)
def test_what_is_shown_loads_again(config, tmp_path_factory):
    home = write(tmp_path_factory.mktemp("home"), render_toml(EffectiveConfig(config, {})))
    assert load_config(home, {}).config == config


def test_the_shown_file_names_the_origin_of_each_value(home):
    text = render_toml(load_config(write(home, "[run]\nseed = 4\n"), {}, {"run.target": "trn1"}))
    lines = text.splitlines()
    assert "seed = 4  # config.toml" in lines
    assert 'target = "trn1"  # --target' in lines
    assert "# target_speedup is not set  # default" in lines
    assert lines.count("[run.search]") == 1


def test_json_lists_every_key(home):
    shown = json.loads(json.dumps(render_json(load_config(home, {}))))
    assert shown["run.search.beam"] == {"value": 4, "origin": "default"}
    assert set(FLAGS) <= set(shown)


@pytest.mark.parametrize(
    ("option", "env", "expected"),
    [
        ("/x/y", {"STATE_DIRECTORY": "/s"}, "/x/y"),
        (None, {"STATE_DIRECTORY": "/s:/t", "XDG_STATE_HOME": "/u"}, "/s"),
        (None, {"XDG_STATE_HOME": "/u"}, "/u/nki-kernel-agent"),
    ],
)
def test_the_home_is_the_option_else_the_services_else_the_users(option, env, expected):
    assert resolve_home(option, env) == Path(expected)


def test_the_users_home_ignores_a_relative_xdg_folder_and_options_may_be_relative(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/u")
    default = Path("/home/u/.local/state/nki-kernel-agent")
    assert resolve_home(None, {}) == resolve_home(None, {"XDG_STATE_HOME": "rel"}) == default
    assert resolve_home("~/h", {}) == Path("/home/u/h")
    monkeypatch.chdir(tmp_path)
    assert resolve_home("h", {}) == tmp_path / "h"
    assert resolve_home("work/../h", {}) == tmp_path.resolve() / "h", "a jail would lack `work`"


ENDPOINTS = """
[daemon.endpoints.trainium]
service = "bedrock"
region = "us-west-2"
profile = "kernels"
[daemon.endpoints.together]
service = "compatible"
base_url = "https://api.together.xyz/v1"
calls = 3
[daemon.endpoints.vertex]
project = "mine"
"""


def test_any_number_of_endpoints_has_names_of_ones_own(home):
    write(home, ENDPOINTS)
    env = {"NKI_AGENT_DAEMON__ENDPOINTS__TOGETHER__FIRST_TOKEN_SECONDS": "900"}
    found = load_config(home, env, {"daemon.endpoints.trainium.region": "eu-west-1"})
    daemon = found.config.daemon
    assert daemon.endpoint_names[-2:] == ("trainium", "together")
    assert (daemon.endpoint("trainium").region, daemon.endpoint("trainium").profile) == (
        "eu-west-1",
        "kernels",
    )
    assert daemon.endpoint("together").first_token_seconds == 900
    assert daemon.endpoint("vertex").project == "mine"
    assert daemon.calls == sum(daemon.endpoint(name).calls for name in daemon.endpoint_names)
    assert found.sources["daemon.endpoints.trainium.region"] == "--set"


@pytest.mark.parametrize(("text", "line"), [
    ("[daemon.endpoints.mine]\ncalls = 2", "daemon.endpoints.mine.service: say what serves it"),
    ("[daemon.endpoints.openai]\ncalls = 2", "this endpoint's section is daemon.openai"),
    ('[daemon.endpoints.mine]\nservice = "bedrok"', "daemon.endpoints.mine.service"),
    ('[daemon.endpoints.mine]\nregon = "x"', "daemon.endpoints.mine.regon: no such key"),
    ('[daemon]\nprices = ["opnai/gpt-5=1/0.5/2"]', "no endpoint is called 'opnai' (did you mean 'openai'?)"),
    ('[daemon]\nwindows = ["llm/m=65536/16384"]', "no endpoint is called 'llm'"),
])  # fmt: skip
def test_what_is_wrong_with_an_endpoint_is_said(home, text, line):
    assert line in "\n".join(faults(write(home, text)))
