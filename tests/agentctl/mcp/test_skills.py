"""The skills: their form, and that every command, flag, tool and field that they name is there; and a client
that follows them to the letter."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from agentctl.app import agentctl
from agentctl.mcp.server import FAULT_KEY
from agentctl.mcp.tool_table import SERVER_TOOLS
from agentctl.plugin import PLUGIN, skill_names
from tests.agentctl.mcp.spaces import REFERENCE, SMALL_RUN
from tests.support.mcp_clients import stdio_session

SKILLS = sorted((PLUGIN / "skills").glob("*/SKILL.md"))
CALL = re.compile(r"([a-z_]+) (\{.*\})")
CODE = re.compile(r"`([^`\n]+)`")
OTHER_WORDS = {
    "limited_by", "kind", "unlike", "predicted", "queued", "next", "stage", "is_owned", "paused", "reason",
    "lint_error", "compile_error", "runtime_error", "timeout", "incorrect", "no_translation", "reference",
    "tune", "f_nkigym", "f_numpy", "find",
}  # fmt: skip
"""Words in code that are no tool: fields of answers, codes, names of a workload."""


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def front_matter(text: str) -> dict[str, str]:
    head = text.split("---\n")[1]
    return dict(line.split(": ", 1) for line in head.strip().split("\n"))


def tool_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    lines = [line for block in blocks(text, "tools") for line in block.strip().split("\n")]
    found = [CALL.fullmatch(line) for line in lines]
    assert all(found), lines
    return [(one[1], json.loads(one[2])) for one in found if one]


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = agentctl
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command)
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no agentctl {words[0]}"
        command, words = found, words[1:]
    return command, words


def test_there_is_a_skill_for_each_task():
    assert skill_names() == [
        "debug-nki-kernel", "optimise-nki-kernel", "read-a-run", "tune-kernel", "write-nki-kernel",
    ]  # fmt: skip
    manifest = json.loads((PLUGIN / "plugin.json").read_text())
    assert (PLUGIN / manifest["skills"]).is_dir()
    (server,) = json.loads((PLUGIN / manifest["mcpServers"]).read_text())["mcpServers"].values()
    assert (server["command"], server["args"][0]) == ("agentctl", "mcp")


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_a_skill_has_the_open_form(path: Path):
    text = path.read_text()
    head = front_matter(text)
    assert head["name"] == path.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", head["name"])
    assert len(head["name"]) <= 64
    assert 20 < len(head["description"]) <= 1024
    assert "Use it" in head["description"]
    assert len(text.split("\n")) < 200
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (path.parent / target).is_file(), target


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_commands_tools_and_arguments_are_there(path: Path):
    text = path.read_text()
    for name, arguments in tool_calls(text):
        assert arguments.keys() <= SERVER_TOOLS[name].arguments.model_fields.keys(), name
        required = {
            key for key, one in SERVER_TOOLS[name].arguments.model_fields.items() if one.is_required()
        }
        assert required <= arguments.keys(), name
    lines = [line for block in blocks(text, "sh") for line in block.strip().split("\n")]
    lines += [one for one in CODE.findall(text) if one.startswith("agentctl ")]
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "agentctl"
        command, rest = find_command(words[1:])
        options = {option for one in command.params for option in one.opts}
        assert {word for word in rest if word.startswith("-")} <= options, line
    fields = {field for tool in SERVER_TOOLS.values() for field in tool.arguments.model_fields}
    for word in CODE.findall(text):
        if re.fullmatch(r"[a-z_]+", word):
            assert word in SERVER_TOOLS.keys() | fields | OTHER_WORDS, word


def test_a_word_that_is_nowhere_would_be_noticed():
    assert tool_calls("```tools\nsing {}\n```\n")[0][0] not in SERVER_TOOLS
    with pytest.raises(AssertionError, match="no agentctl sing"):
        find_command(["sing"])


def fill(arguments: dict[str, Any], known: dict[str, str]) -> dict[str, Any]:
    return {
        key: known.get(value, value) if isinstance(value, str) else value for key, value in arguments.items()
    }


def learn(known: dict[str, str], name: str, found: dict[str, Any]) -> None:
    """Keep what later steps of a skill name: the version, the rewrite, the run, the fork, the folder."""
    if name == "list_rewrites":
        one = found["answer"]["rewrites"][0]
        known["REWRITE"] = f"{one['technique']}@{one['site']}"
    elif name == "apply_rewrite":
        known["VERSION"] = found["answer"]["version"]
    elif name == "submit_run":
        known["RUN"] = found["run"]
    elif name == "fork":
        known["FORK"] = found["run"]
    elif name == "new_problem":
        known["NEW_FOLDER"] = found["folder"]
    elif name == "best":
        known["KERNEL"] = found["source"] + "\n# edited by hand\n"


@pytest.mark.slow
async def test_a_client_follows_the_skills_to_the_letter(home, tmp_path):
    known = {
        "REFERENCE": REFERENCE, "FOLDER": str(tmp_path / "mine"), "PARENT": str(tmp_path), "SOURCE": "v0",
    }  # fmt: skip
    small = {key: SMALL_RUN[key] for key in ("settings",)}
    order = ("write-nki-kernel", "optimise-nki-kernel", "debug-nki-kernel", "read-a-run")
    seen: dict[str, Any] = {}
    async with stdio_session(home, "--agentd") as client:
        for skill in order:
            known["PROBLEM"] = known["FOLDER"]
            for name, arguments in tool_calls((PLUGIN / "skills" / skill / "SKILL.md").read_text()):
                said = fill(arguments, known) | (small if name == "submit_run" else {})
                found = await client.call_tool(name, said)
                if name == "recall" and found.is_error:
                    continue  # a new home has learnt nothing
                if said.get("run") == known.get("FORK", 0) and found.is_error:
                    assert found.meta[FAULT_KEY]["code"] == "illegal_state"
                    continue  # the fork was quicker
                assert not found.is_error, (skill, name, found.content)
                learn(known, name, found.structured_content)
                seen[name] = found.structured_content
    first = seen["why"]["latencies"][0]
    assert seen["wait"]["holds"]
    assert seen["best"]["latencies"][-1]["ms"] <= first["ms"]
