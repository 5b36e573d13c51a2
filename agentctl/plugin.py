"""Puts the plug-in for coding agents in place: skills as folders, the server in the agent's configuration.

Every change is planned first, as files with their new contents, so that it can be shown, and a fault leaves
everything as it was. A folder of skills is ours if it has our mark; others are never touched.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.errors import DaemonError
from state.output_files import write_output

NAME = "nki-kernel-agent"
PLUGIN = Path(__file__).resolve().parents[1] / "plugins" / NAME
MARK = ".installed-by-agentctl"
"""The file that marks a folder of skills as ours."""

START_SECONDS = 60
TOOL_SECONDS = 660
"""How long Codex waits for the server, and for a tool (60 s by itself): `wait` takes up to 600 s."""

_BLOCK = re.compile(rf"\n*# {NAME}: begin\n.*?# {NAME}: end\n?", re.DOTALL)


class PluginFault(DaemonError):  # noqa: N818 - named for what it is about
    """The plug-in cannot be put in place, or taken out."""

    default_code = "plugin"


@dataclass(frozen=True, slots=True)
class AgentPlaces:
    """Where a coding agent looks: skills, and its configuration in a project and of the user."""

    title: str
    skills: str
    project_config: str
    user_config: str


AGENTS: Mapping[str, AgentPlaces] = {
    "claude": AgentPlaces("Claude Code", ".claude/skills", ".mcp.json", ".claude.json"),
    "codex": AgentPlaces("Codex", ".agents/skills", ".codex/config.toml", ".codex/config.toml"),
    "kiro": AgentPlaces("Kiro", ".kiro/skills", ".kiro/settings/mcp.json", ".kiro/settings/mcp.json"),
    "cursor": AgentPlaces("Cursor", ".cursor/skills", ".cursor/mcp.json", ".cursor/mcp.json"),
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that is written with this content, or removed if it is None; folders are removed whole."""

    path: Path
    content: bytes | None

    def describe(self) -> str:
        """Return it in one line."""
        if self.content is None:
            return f"remove {self.path}"
        return f"{'change' if self.path.exists() else 'write'} {self.path}"


def server_command(home_words: Sequence[str]) -> list[str]:
    """Return the command with which a coding agent starts the server of this installation."""
    return [sys.executable, "-m", "agentctl", "mcp", "--agentd", *home_words]


def plan_install(agent: str, root: Path, command: Sequence[str], *, project: bool) -> list[FileChange]:
    """Return the changes that put the plug-in in place for an agent, below a project or the user's folder.

    Raises:
        PluginFault: a folder of that name is not ours, or the configuration cannot be read.
    """
    places = AGENTS[agent]
    changes = list(_plan_skills(root / places.skills))
    config = root / (places.project_config if project else places.user_config)
    changes.append(FileChange(config, _with_server(config, command)))
    return changes


def plan_removal(agent: str, root: Path, *, project: bool) -> list[FileChange]:
    """Return the changes that take the plug-in out; nothing if it is not there.

    A configuration that would then hold nothing is removed.

    Raises:
        PluginFault: the configuration cannot be read.
    """
    places = AGENTS[agent]
    folders = [root / places.skills / name for name in skill_names()]
    changes = [FileChange(folder, None) for folder in folders if (folder / MARK).is_file()]
    config = root / (places.project_config if project else places.user_config)
    if config.is_file():
        content = _without_server(config)
        if content != config.read_bytes():
            changes.append(FileChange(config, content))
    return changes


def apply_changes(home: Path, root: Path, changes: Sequence[FileChange]) -> None:
    """Carry changes out, each file at once; folders below `root` that removals leave empty go too."""
    for change in changes:
        if change.content is not None:
            change.path.parent.mkdir(parents=True, exist_ok=True)
            write_output(home, change.path, change.content)
            continue
        if change.path.is_dir():
            shutil.rmtree(change.path)
        else:
            change.path.unlink(missing_ok=True)
        for folder in change.path.parents:
            if folder == root or any(folder.iterdir()):
                break
            folder.rmdir()


def skill_names() -> list[str]:
    """Return the names of the skills.

    Raises:
        PluginFault: this installation has none.
    """
    names = sorted(path.parent.name for path in (PLUGIN / "skills").glob("*/SKILL.md"))
    if not names:
        raise PluginFault(f"there is no plug-in in {PLUGIN}", hint="install from the source tree")
    return names


def _plan_skills(folder: Path) -> Iterator[FileChange]:
    for name in skill_names():
        target = folder / name
        if target.exists() and not (target / MARK).is_file():
            hint = "rename or remove it; nothing was changed"
            raise PluginFault(f"{target} is there, and agentctl did not write it", hint=hint)
        source = PLUGIN / "skills" / name
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield FileChange(target / path.relative_to(source), path.read_bytes())
        yield FileChange(target / MARK, b"agentctl plugin install --remove takes this folder out\n")


# --- configurations --------------------------------------------------------------------------------


def _with_server(config: Path, command: Sequence[str]) -> bytes:
    if config.suffix == ".toml":
        return _with_toml_server(config, command)
    content = _read_json(config)
    servers = content.setdefault("mcpServers", {})
    if not isinstance(servers, dict):
        raise PluginFault(f"{config}: mcpServers is no object", hint="correct it; nothing was changed")
    servers[NAME] = {"command": command[0], "args": list(command[1:])}
    return _format_json(content)


def _without_server(config: Path) -> bytes | None:
    """Return the configuration without our server; None if nothing else is in it."""
    if config.suffix == ".toml":
        text = _read_toml(config)
        if not _BLOCK.search(text):
            return text.encode()
        return _BLOCK.sub("\n", text).lstrip("\n").encode() or None
    content = _read_json(config)
    servers = content.get("mcpServers")
    if not isinstance(servers, dict) or NAME not in servers:
        return config.read_bytes()
    del servers[NAME]
    return _format_json(content) if servers or content.keys() - {"mcpServers"} else None


def _with_toml_server(config: Path, command: Sequence[str]) -> bytes:
    text = _BLOCK.sub("\n", _read_toml(config)).rstrip("\n")
    if NAME in tomllib.loads(text).get("mcp_servers", {}):
        raise PluginFault(f"{config} has a server {NAME} already", hint="remove it; nothing was changed")
    words = ", ".join(json.dumps(word) for word in command[1:])
    block = (
        f"# {NAME}: begin\n[mcp_servers.{NAME}]\ncommand = {json.dumps(command[0])}\nargs = [{words}]\n"
        f"startup_timeout_sec = {START_SECONDS}\ntool_timeout_sec = {TOOL_SECONDS}\n# {NAME}: end\n"
    )
    return (f"{text}\n\n{block}" if text else block).encode()


def _read_json(config: Path) -> dict[str, Any]:
    if not config.exists():
        return {}
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PluginFault(f"{config} cannot be read: {error}", hint="nothing was changed") from error
    if not isinstance(content, dict):
        raise PluginFault(f"{config} is no JSON object", hint="nothing was changed")
    return content


def _read_toml(config: Path) -> str:
    if not config.exists():
        return ""
    try:
        text = config.read_text(encoding="utf-8")
        tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise PluginFault(f"{config} cannot be read: {error}", hint="nothing was changed") from error
    return text


def _format_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
