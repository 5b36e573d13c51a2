"""The folder and the jail of a coding agent: what its program needs is shown, and little else."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from daemon.agents.scratch import CODEX_CONFIG, ScratchFolder, agent_command
from remote.jail_backends import JailStrength
from state.model import AgentConfig


@pytest.fixture
def user(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run_jailed(tmp_path: Path, program: Path, *, usd: float = 0.5, words: tuple[str, ...] = ()) -> str:
    home = tmp_path / "agent-home"
    scratch = ScratchFolder.create(home, "run", "key", {})
    config = AgentConfig(command=(str(program), *words))
    command = agent_command(home.resolve(), config, scratch.path.resolve(), usd=usd, allow_weak=False)
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.needs("bwrap", package="bubblewrap")
def test_a_program_of_node_finds_the_packages_beside_its_own(tmp_path, user):
    """As npm lays it out: a link to a script of one package, which runs the program of another."""
    modules = user / "lib" / "node_modules"
    write_program(modules / "@vendor" / "agent-linux" / "bin" / "agent", "#!/bin/sh\necho native\n")
    script = write_program(
        modules / "@vendor" / "agent" / "bin" / "agent.sh",
        '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/../../agent-linux/bin/agent"\n',
    )
    link = user / "bin" / "agent"
    link.parent.mkdir()
    link.symlink_to(os.path.relpath(script, link.parent))
    assert run_jailed(tmp_path, link) == "native\n"


@pytest.mark.needs("bwrap", package="bubblewrap")
def test_of_a_program_in_the_users_home_the_file_alone_is_shown(tmp_path, user):
    (user / "secret").write_text("a key")
    program = write_program(user / "agent", f"#!/bin/sh\nls {user}\n")
    assert run_jailed(tmp_path, program) == "agent\n"


@pytest.mark.needs("bwrap", package="bubblewrap")
def test_what_is_reserved_is_filled_in(tmp_path, user):
    program = write_program(user / "bin" / "agent", '#!/bin/sh\necho "$@"\n')
    assert run_jailed(tmp_path, program, usd=1.25, words=("--limit", "{usd}")) == "--limit 1.25\n"


def test_the_server_is_the_same_in_both_forms(tmp_path):
    scratch = ScratchFolder.create(tmp_path / "home", "run", "key", {})
    (server,) = json.loads((scratch.path / "mcp.json").read_text())["mcpServers"].values()
    (other,) = tomllib.loads((scratch.path / CODEX_CONFIG).read_text())["mcp_servers"].values()
    assert {key: other[key] for key in ("command", "args", "env")} == {
        key: server[key] for key in ("command", "args", "env")
    }
    assert other["default_tools_approval_mode"] == "approve", "nobody is there to be asked"


def test_without_a_jail_an_agent_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.agents.scratch.jail_strength", lambda: JailStrength.WEAK)
    with pytest.raises(Exception, match="bubblewrap") as refused:
        agent_command(tmp_path, AgentConfig(command=("true",)), tmp_path, usd=0.0, allow_weak=False)
    assert refused.value.info.code == "weak_jail"
