"""`agentctl plugin install`: what it writes for each agent, what it leaves alone, how it goes again."""

from __future__ import annotations

import json
import tomllib

import pytest

from agentctl.plugin import AGENTS, MARK, NAME, skill_names


@pytest.fixture
def user(tmp_path, monkeypatch):
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_servers(path):
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text())["mcp_servers"]
    return json.loads(path.read_text())["mcpServers"]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("project", [True, False])
def test_it_is_put_in_place_and_taken_out(ctl, user, home, tmp_path, *, agent, project):
    root = tmp_path / "project" if project else user
    root.mkdir(exist_ok=True)
    where = ["--project", root] if project else []
    called = ctl("plugin", "install", f"--{agent}", *where)
    assert called.status == 0
    places = AGENTS[agent]
    for name in skill_names():
        assert (root / places.skills / name / "SKILL.md").read_text().startswith("---\nname: ")
        assert str(root / places.skills / name / "SKILL.md") in called.out
    config = root / (places.project_config if project else places.user_config)
    server = read_servers(config)[NAME]
    assert server["args"] == ["-m", "agentctl", "mcp", "--agentd", "--home", str(home)]
    before = tree(root)
    assert ctl("plugin", "install", f"--{agent}", *where).status == 0
    assert tree(root) == before, "a second time changes nothing"
    assert ctl("plugin", "install", f"--{agent}", *where, "--remove").status == 0
    assert list(root.iterdir()) == [], "nothing is left of it"
    assert "nothing to take out" in ctl("plugin", "install", f"--{agent}", *where, "--remove").out


@pytest.mark.parametrize(
    ("agent", "config", "text"),
    [
        ("claude", ".mcp.json", '{"mcpServers": {"other": {"command": "x"}}, "more": 1}\n'),
        ("codex", ".codex/config.toml", 'model = "m"  # mine\n\n[mcp_servers.other]\ncommand = "x"\n'),
    ],
)
def test_what_others_wrote_stays(ctl, tmp_path, agent, config, text):
    path = tmp_path / config
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert ctl("plugin", "install", f"--{agent}", "--project", tmp_path).status == 0
    assert set(read_servers(path)) == {"other", NAME}
    assert ctl("plugin", "install", f"--{agent}", "--project", tmp_path, "--remove").status == 0
    assert set(read_servers(path)) == {"other"}
    if agent == "codex":
        assert path.read_text() == text


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (".mcp.json", "{"),
        (".mcp.json", "[]"),
        (".mcp.json", '{"mcpServers": 7}'),
        (".codex/config.toml", "["),
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused_and_nothing_is_written(ctl, tmp_path, config, text):
    path = tmp_path / config
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    before = tree(tmp_path)
    agent = "--codex" if config.endswith("toml") else "--claude"
    called = ctl("plugin", "install", agent, "--project", tmp_path)
    assert called.status == 2
    assert str(path) in called.err
    assert tree(tmp_path) == before


def test_a_folder_of_the_same_name_is_refused(ctl, tmp_path):
    own = tmp_path / ".claude/skills/tune-kernel/SKILL.md"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    called = ctl("plugin", "install", "--claude", "--project", tmp_path)
    assert called.status == 2
    assert "tune-kernel" in called.err
    assert list(tree(tmp_path)) == [".claude/skills/tune-kernel/SKILL.md"]
    assert ctl("plugin", "install", "--claude", "--project", tmp_path, "--remove").status == 0
    assert own.read_text() == "mine"
    assert not (own.parent / MARK).exists()


def test_what_would_be_written_can_be_shown(ctl, tmp_path):
    called = ctl("plugin", "install", "--cursor", "--project", tmp_path, "--show")
    assert "write " in called.out
    assert tree(tmp_path) == {}
    assert ctl("plugin", "install").status == 2
    assert ctl("plugin", "install", "--claude", "--project", tmp_path / "no").status == 2
