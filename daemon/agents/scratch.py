"""The folder that a coding agent works in, its command line, its environment, and the jail around it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import daemon
from agent_core.roles import RoleError
from daemon.agents import SLOT_FILE
from remote.jail_backends import JailStrength, jail_strength
from state.model import AgentConfig, ErrorInfo, digest_of

SERVER = "nki-kernel-agent"
CODEX_CONFIG = ".codex/config.toml"
"""Where Codex looks in its user's home, which the folder is for it."""
START_SECONDS = 60
TOOL_SECONDS = 3600
"""How long Codex waits for the server to start, and for a tool; by itself it would wait 10 and 60 s."""

TASK = f"Read TASK.md in this folder and do what it says, with the tools of the MCP server {SERVER}."
_PATIENCE = dict.fromkeys(("MCP_CONNECT_TIMEOUT_MS", "MCP_TIMEOUT"), f"{START_SECONDS}000")
"""Has Claude Code wait for the server before it asks its model; by itself it goes on after 5 s."""
_ROOT = Path(daemon.__file__).resolve().parents[1]
_NETWORK_FILES = (
    "/etc/ssl", "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd", "/etc/pki",
    "/etc/ca-certificates", "/etc/alternatives",
)  # fmt: skip
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/etc/ld.so.cache")


@dataclass(frozen=True, slots=True)
class ScratchFolder:
    """The folder of one plan; `token` opens its socket."""

    path: Path
    token: str

    @classmethod
    def create(cls, home: Path, run: str, key: str, files: Mapping[str, bytes]) -> ScratchFolder:
        """Make the folder anew, for this user alone; what an earlier delivery left there is removed.

        The server is named in both forms that agents read: `mcp.json`, and Codex's configuration.
        """
        path = scratch_root(home) / digest_of(f"{run}/{key}".encode())[:24]
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, mode=0o700)
        token = secrets.token_urlsafe(32)
        slot = json.dumps({"token": token}).encode()
        configs = {"mcp.json": _mcp_config(path), CODEX_CONFIG: _codex_config(path)}
        for name, content in {**files, **configs, SLOT_FILE: slot}.items():
            place = path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o600)
        return cls(path, token)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


def scratch_root(home: Path) -> Path:
    """Return where the folders of plans are."""
    return home / "cache" / "agents"


def _server_config(path: Path) -> dict[str, Any]:
    return {
        "command": sys.executable,
        "args": ["-m", "agentctl", "mcp", "--slot", str(path)],
        "env": {"PYTHONPATH": str(_ROOT)},
    }


def _mcp_config(path: Path) -> bytes:
    """Return the server in JSON. With `alwaysLoad`, Claude Code tells its model of all tools at once."""
    server = {**_server_config(path), "alwaysLoad": True}
    return json.dumps({"mcpServers": {SERVER: server}}, indent=2).encode()


def _codex_config(path: Path) -> bytes:
    """Return the server in TOML. With it, Codex calls tools unasked, and waits for them."""
    server = _server_config(path)
    lines = [
        f"[mcp_servers.{SERVER}]",
        f"command = {json.dumps(server['command'])}",
        f"args = {json.dumps(server['args'])}",
        "required = true",
        'default_tools_approval_mode = "approve"',
        f"startup_timeout_sec = {START_SECONDS}",
        f"tool_timeout_sec = {TOOL_SECONDS}",
        f"[mcp_servers.{SERVER}.env]",
        *(f"{name} = {json.dumps(value)}" for name, value in server["env"].items()),
    ]
    return ("\n".join(lines) + "\n").encode()


def agent_command(
    home: Path, config: AgentConfig, scratch: Path, *, usd: float, allow_weak: bool
) -> list[str]:
    """Return the command line of an agent, within a jail where this machine has bubblewrap.

    `usd` is what is reserved for it; a command that can be told so keeps it.

    Raises:
        RoleError: no command is set, its program is not there, or nothing confines it.
    """
    if not config.command:
        message = "run.agent.command is not set: it says which coding agent the planner `agent` starts"
        raise RoleError(ErrorInfo(code="no_agent", message=message))
    values = {
        "task": TASK,
        "mcp": str(scratch / "mcp.json"),
        "scratch": str(scratch),
        "python": sys.executable,
        "usd": f"{usd:g}",
    }
    program = find_program(config.command)
    if program is None:
        message = (
            f"run.agent.command: there is no program {config.command[0]!r}: install it, or give its path"
        )
        raise RoleError(ErrorInfo(code="no_agent", message=message))
    command = [program, *(_fill_in(word, values) for word in config.command[1:])]
    dies = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    if jail_strength() is JailStrength.BUBBLEWRAP:
        return [*dies, *_jail(home, config, scratch, program=program), *command]
    if not allow_weak:
        message = (
            "a coding agent runs only in bubblewrap, which does not work here: `agentctl doctor` says why; "
            "or set daemon.allow_weak_jail"
        )
        raise RoleError(ErrorInfo(code="weak_jail", message=message))
    return [*dies, *command]


def find_program(command: Sequence[str]) -> str | None:
    """Return the absolute path of the program that a command starts; None if there is none."""
    program = shutil.which(_fill_in(command[0], {"python": sys.executable}))
    return None if program is None else str(Path(program).absolute())


def _fill_in(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _jail(home: Path, config: AgentConfig, scratch: Path, *, program: str) -> list[str]:
    """Return the words before the command: it sees programs, its folder and the network, and no home."""
    command = [
        "bwrap",
        "--unshare-all",
        "--share-net",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--new-session",
    ]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - a place in the jail
    for place in _SYSTEM_FOLDERS:
        path = Path(place)
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), place]
        elif path.exists():
            command += ["--ro-bind", place, place]
    for place in _NETWORK_FILES:
        command += ["--ro-bind-try", place, place]
    shown: Sequence[str] = (
        sys.base_prefix,
        sys.prefix,
        *map(str, _packages()),
    )
    for place in dict.fromkeys([*shown, *config.shown]):
        command += ["--ro-bind-try", place, place]
    command += _show_program(Path(program))
    command += ["--tmpfs", str(home), "--bind", str(scratch), str(scratch)]
    return [*command, "--chdir", str(scratch), "--"]


def _show_program(program: Path) -> Iterator[str]:
    """Yield what shows a program: its folder, that of what it links to, and the packages of Node around it.

    Of a program that lies in the user's home itself, only the file is shown.
    """
    target, own = program.resolve(), Path.home()
    around = [folder for folder in target.parents if folder.name == "node_modules"]
    for folder in dict.fromkeys([program.parent, target.parent, *around[-1:]]):
        is_shown = any(folder.is_relative_to(one) for one in _SYSTEM_FOLDERS)
        if not (is_shown or own.is_relative_to(folder)):
            yield from ("--ro-bind", str(folder), str(folder))
    if own.is_relative_to(program.parent):
        yield from ("--ro-bind", str(target), str(program))


def _packages() -> list[Path]:
    """Return this program's own packages: not the folder around them, which may hold anything."""
    return [path.parent for path in sorted(_ROOT.glob("*/__init__.py"))]


def agent_environment(config: AgentConfig, scratch: Path) -> dict[str, str]:
    """Return the environment of an agent: what programs need, and the variables that it is given."""
    given = {name: os.environ[name] for name in config.variables if name in os.environ}
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        **_PATIENCE,
        **given,
    }


def task_text(*, seconds: float, tool_calls: int, standing: str) -> str:
    """Return TASK.md: what is to be done, with what, and how it ends."""
    return f"""# Make this kernel faster

`kernel.py` is the kernel to improve: version v0 of every tool. `reference.py` says what it has to compute,
and `problem.toml` on which shapes. {standing}

Work with the tools of the MCP server `nki-kernel-agent` (`mcp.json` starts it); nothing else counts:

- `check`, `evaluate`, `profile` and `what_if` take a version, a version with `edits`, or a whole kernel as
  `source`.
- `list_rewrites` and `apply_rewrite` change a version and keep what it computes. `lookup` has the manual.
- `history` and `recall` say what was tried and learnt before.
- `submit` ends your work with a version that is correct and faster. It is evaluated first if it was not.
- `give_up` ends it without one.

You have {seconds:g} seconds and {tool_calls} calls. If they run out, the fastest correct version that you
evaluated is taken. After `submit` or `give_up`, stop. You may write files in this folder; nobody reads them.
"""
