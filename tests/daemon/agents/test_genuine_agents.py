"""Claude Code and Codex themselves, with a scripted model: does each take what we give it?

They are optional: CLAUDE_CLI and CODEX_CLI name their programs, for instance of

    npm install --prefix /tmp/agents @anthropic-ai/claude-code @openai/codex
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from agent_core.tools.registry import list_tools
from agentctl.mcp.tool_table import SERVER_TOOLS
from agentctl.plugin import apply_changes, plan_install, server_command, skill_names
from state.events import AgentEnded, KernelKept
from state.reader import LogReader
from tests.daemon.agents.test_agents import HELD_USD, blob, check_day, check_log, config_of, events
from tests.support import fakes
from tests.support.llm_server import LlmServer
from tests.support.model_of_agents import EngineerModel, tool_names

pytestmark = [pytest.mark.needs("bwrap", package="bubblewrap"), pytest.mark.slow]
CLAUDE = pytest.mark.optional("CLAUDE_CLI", "@anthropic-ai/claude-code")
CODEX = pytest.mark.optional("CODEX_CLI", "@openai/codex")
SECONDS = 280
TRIED_TOKENS = (700, 120)
"""What the scripted model counts for one change, its submission and a last word."""

CLAUDE_WORDS = (
    "-p", "{task}", "--mcp-config", "{mcp}", "--strict-mcp-config", "--output-format", "json",
    "--allowedTools", "mcp__nki-kernel-agent", "--max-budget-usd", "{usd}",
)  # fmt: skip
CODEX_WORDS = ("exec", "--json", "--skip-git-repo-check")


@pytest.fixture
def engineer():
    return EngineerModel()


@pytest.fixture
def model(engineer, monkeypatch):
    with LlmServer(engineer) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.anthropic)
        for name in ("ANTHROPIC_API_KEY", "CODEX_API_KEY"):
            monkeypatch.setenv(name, "a-key-of-nobody")
        monkeypatch.setenv("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        yield server


def codex_words(model: LlmServer) -> tuple[str, ...]:
    """Codex, asking the scripted model as one that it does not know: it is told of each tool then."""
    provider = {"name": "here", "base_url": model.openai, "wire_api": "responses"}
    pairs = [
        ("model_provider", "here"),
        *((f"model_providers.here.{key}", value) for key, value in provider.items()),
    ]
    return (
        *CODEX_WORDS,
        "-m",
        "scripted",
        *(word for key, value in pairs for word in ("-c", f'{key}="{value}"')),
    )


def run_with(home: Path, command: tuple[str, ...], *variables: str) -> AgentEnded:
    config = config_of("unused", seconds=SECONDS, variables=variables)
    agent = config.agent.model_copy(update={"command": command})
    run = fakes.submit_run(home, config.model_copy(update={"agent": agent}))
    fakes.finish_runs(home, run)
    check_log(home, run)
    (ended,) = events(home, run, AgentEnded)
    written = blob(home, ended.transcript).decode()
    assert (ended.reason, ended.status, ended.tool_calls) == ("submitted", 0, 2), written
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == TRIED_TOKENS
    assert len(events(home, run, KernelKept)) == 2
    with LogReader.open(home) as reader:
        spent = reader.run_state(run).spent_usd
    assert spent == pytest.approx(ended.charged_usd or ended.usage.cost_usd)
    check_day(home, spent)
    return ended


@CLAUDE
def test_claude_code_makes_a_kernel_faster(home, model, engineer):
    names = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
    ended = run_with(home, (os.environ["CLAUDE_CLI"], *CLAUDE_WORDS), *names)
    assert 0 < ended.usage.cost_usd < HELD_USD, "as its JSON output says"
    assert {tool.name for tool in list_tools("trn2")} <= engineer.tools
    assert json.loads(blob(home, ended.transcript))["subtype"] == "success"


@CODEX
def test_codex_makes_a_kernel_faster(home, model, engineer):
    command = (os.environ["CODEX_CLI"], *codex_words(model), "{task}")
    ended = run_with(home, command, "CODEX_API_KEY")
    assert (ended.usage.cost_usd, ended.charged_usd) == (None, HELD_USD), "it counts tokens only"
    assert {tool.name for tool in list_tools("trn2")} <= engineer.tools
    assert b'"type":"turn.completed"' in blob(home, ended.transcript)


@pytest.fixture
def user(home, tmp_path, monkeypatch):
    """A user for whom the plug-in is installed, as `agentctl plugin install` does it."""
    folder = tmp_path / "user"
    folder.mkdir()
    home.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("MCP_TIMEOUT", "60000")
    command = server_command(("--home", str(home)))
    for agent in ("claude", "codex"):
        apply_changes(home, folder, plan_install(agent, folder, command, project=False))
    return folder


def ask(user: Path, *command: str) -> str:
    found = subprocess.run(
        command,
        cwd=user,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@CLAUDE
def test_claude_code_finds_the_plug_in(user, model):
    ask(user, os.environ["CLAUDE_CLI"], "-p", "Which skills are there?")
    told = json.dumps([one.body for one in model.asked])
    assert all(name in told for name in skill_names())
    listed = ask(user, os.environ["CLAUDE_CLI"], "mcp", "list")
    (line,) = [line for line in listed.split("\n") if line.startswith("nki-kernel-agent: ")]
    assert line.endswith("Connected"), listed


@CODEX
def test_codex_finds_the_plug_in(user, model):
    words = (*codex_words(model), "-c", "mcp_servers.nki-kernel-agent.required=true")
    ask(user, os.environ["CODEX_CLI"], *words, "Which skills are there?")
    told = json.dumps([one.body for one in model.asked])
    assert all(name in told for name in skill_names())
    tools = {name for one in model.asked for name in tool_names(one.body)}
    assert {f"mcp__nki_kernel_agent/{name}" for name in SERVER_TOOLS} <= tools
