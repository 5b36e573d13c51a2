"""The skills: their form, and that every command, flag, tool and field that they name is there; and a client
that follows them to the letter."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from mcp.client import Client

import seeds
from agentctl.app import agentctl
from agentctl.mcp.server import FAULT_KEY
from agentctl.mcp.tool_table import SERVER_TOOLS
from agentctl.plugin import PLUGIN, skill_names
from tests.agentctl.mcp.spaces import REFERENCE, SMALL_RUN
from tests.support.mcp_clients import ROOT, stdio_session

SEVERAL_TILES = REFERENCE.replace("(128, 512)", "(256, 2048)").replace("np.exp(x)", "np.exp(x) * x")
"""A reference whose translation has rewrites; that of one tile has none."""

SKILLS = sorted((PLUGIN / "skills").glob("*/SKILL.md"))
STEPS = re.compile(r"^```(tools|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SMALL = """[run.search]
beam = 1
plans = 1
rounds = 1
lookahead_predictions = 4
"""
REFUSALS = ("lint_error", "compile_error", "runtime_error", "timeout")
CALL = re.compile(r"([a-z_]+) (\{.*\})")
CODE = re.compile(r"`([^`\n]+)`")
OTHER_WORDS = {
    "limited_by", "kind", "unlike", "predicted", "queued", "next", "stage", "is_owned", "paused", "reason",
    "lint_error", "compile_error", "runtime_error", "timeout", "incorrect", "no_translation", "reference",
    "tune", "f_nkigym", "f_numpy", "find", "nothing_found", "reduced",
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


@dataclass
class Follower:
    """Does what a skill says, block by block: its calls and commands, with what earlier steps answered."""

    client: Client
    home: Path
    folder: Path
    known: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)
    printed: dict[str, str] = field(default_factory=dict)

    async def follow(self, skill: str) -> None:
        text = (PLUGIN / "skills" / skill / "SKILL.md").read_text()
        for kind, block in STEPS.findall(text):
            for line in block.strip().split("\n"):
                if kind == "sh":
                    await self.run_command(line)
                else:
                    ((name, arguments),) = tool_calls(f"```tools\n{line}\n```\n")
                    await self.call(name, arguments)

    async def call(self, name: str, arguments: dict[str, Any]) -> None:
        found = await self.client.call_tool(name, self.fill(arguments))
        if found.is_error:
            self.faults.append((name, found.meta[FAULT_KEY]["code"]))
            return
        answer = found.structured_content
        self.answers[name] = answer
        self.learn(name, answer)

    def fill(self, value: Any) -> Any:
        """Return a value with the names in capitals replaced by what they stand for."""
        if isinstance(value, dict):
            return {key: self.fill(one) for key, one in value.items()}
        return self.known.get(value, value) if isinstance(value, str) else value

    def learn(self, name: str, found: dict[str, Any]) -> None:
        """Keep what later steps name."""
        if name == "list_rewrites":
            one = found["answer"]["rewrites"][0]
            self.known["REWRITE"] = f"{one['technique']}@{one['site']}"
        elif name == "apply_rewrite":
            self.known["VERSION"] = found["answer"]["version"]
        elif name == "read_kernel":
            self.known["KERNEL"] = found["source"]
        elif name == "submit_run":
            self.known["RUN"] = found["run"]
        elif name == "run_status" and "RUN" not in self.known:
            self.known["RUN"] = found["runs"][0]["run"]
        if name == "run_status":
            self.known["ROUNDS"] = found["runs"][0]["rounds"] + 1
        elif name == "fork":
            self.known["FORK"] = found["run"]
        elif name == "new_problem":
            self.known["NEW_FOLDER"] = found["folder"]

    async def run_command(self, line: str) -> None:
        words = [self.known.get(word, word) for word in shlex.split(line)]
        assert words[0] == "agentctl"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agentctl", *words[1:], "--home", str(self.home),
            cwd=self.folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
        nothing_faster = words[1] == "tune" and process.returncode == 1
        assert process.returncode == 0 or nothing_faster, (line, out.decode())
        self.printed[line] = out.decode()


def make_folders(home: Path, tmp_path: Path) -> Path:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(SMALL)
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@asynccontextmanager
async def open_follower(home: Path, tmp_path: Path) -> AsyncIterator[Follower]:
    """A client of a server that may start an agentd, in a home whose runs are small."""
    folder = make_folders(home, tmp_path)
    async with stdio_session(home, "--agentd") as client:
        yield Follower(client, home, folder)


def latency(answer: dict[str, Any]) -> dict[str, Any]:
    claim = answer["latencies"][0]
    assert claim["lo_ms"] <= claim["ms"] <= claim["hi_ms"]
    return claim


@pytest.mark.slow
async def test_a_kernel_is_written_and_optimised_to_the_letter(home, tmp_path):
    async with open_follower(home, tmp_path) as follower:
        follower.known |= {
            "REFERENCE": SEVERAL_TILES, "FOLDER": str(follower.folder / "mine"),
            "PARENT": str(follower.folder), "PROBLEM": str(follower.folder / "mine"),
        }  # fmt: skip
        await follower.follow("write-nki-kernel")
        assert follower.faults == []
        written = follower.answers["translate"]
        assert (written["verdict"], written["folder"]) == ("correct", follower.known["FOLDER"])
        assert set(follower.answers["new_problem"]["files"]) == {"problem.toml", "reference.py", "kernel.py"}
        assert follower.answers["evaluate"]["answer"]["evaluation"]["verdict"] == "correct"

        await follower.follow("optimise-nki-kernel")
        assert follower.faults == [("recall", "nothing_found")], "as the skill says of a new home"
        evaluated = follower.answers["evaluate"]
        assert latency(evaluated)["limited_by"]
        assert latency(evaluated)["kind"] == "predicted"
        assert "of the model bound" in evaluated["shown"]
        assert follower.answers["check"]["latencies"] == evaluated["latencies"], "both predict the same"
        assert {one["of"] for one in follower.answers["compare"]["latencies"]} == {
            "v0",
            follower.known["VERSION"],
        }
        assert follower.answers["submit_run"]["state"] == "done"
        assert follower.answers["wait"]["holds"]
        initial, best = (one["ms"] for one in follower.answers["wait"]["latencies"])
        assert best <= initial == pytest.approx(latency(evaluated)["ms"]), "the run begins from the version"
        assert follower.answers["why"]["story"]


@pytest.mark.slow
async def test_a_refused_kernel_is_debugged_to_the_letter(home, tmp_path):
    async with open_follower(home, tmp_path) as follower:
        kernel = seeds.load_problem("silu").kernel
        follower.known |= {
            "PROBLEM": "silu",
            "SOURCE": kernel.replace("op=nl.exp,", "op=nl.no_such_function,"),
        }
        await follower.follow("debug-nki-kernel")
        assert follower.faults == []
        for name in ("check", "evaluate"):
            refused = follower.answers[name]["answer"]
            assert refused["verdict"] in REFUSALS
            assert refused["stage"]
            assert refused["error"]["code"]
            assert "no_such_function" in refused["line"] or refused["error"]["line"]
            assert refused["error"]["hint"] or refused["next"]
        assert "dma_copy" in follower.answers["lookup"]["shown"]
        follower.known["SOURCE"] = kernel.replace("operand0=1.0", "operand0=2.0")
        await follower.follow("debug-nki-kernel")
        assert follower.faults == []
        assert follower.answers["check"]["latencies"], "it keeps all rules"
        assert follower.answers["evaluate"]["answer"]["verdict"] == "incorrect"


@pytest.mark.slow
async def test_a_run_is_read_to_the_letter(home, tmp_path):
    async with open_follower(home, tmp_path) as follower:
        await follower.call("submit_run", SMALL_RUN)
        await follower.call("wait", {"run": "RUN", "timeout_seconds": 300})
        await follower.follow("read-a-run")
        assert set(follower.faults) <= {(name, "illegal_state") for name in ("pause", "resume", "cancel")}
        run = follower.known["RUN"]
        assert [one["run"] for one in follower.answers["run_status"]["runs"]] == [run]
        assert follower.answers["run_status"]["is_owned"]
        assert follower.answers["why"]["candidate"]
        for uri in (f"report://{run}", f"kernel://{run}/best", f"profile://{run}/best"):
            assert (await follower.client.read_resource(uri)).contents[0].text
        assert all(printed.strip() for line, printed in follower.printed.items() if "safety" not in line)


@pytest.mark.slow
async def test_a_workload_is_tuned_to_the_letter(home, tmp_path):
    async with open_follower(home, tmp_path) as follower:
        workload = PLUGIN / "skills" / "tune-kernel" / "references" / "workload.py"
        small = workload.read_text().replace("512,", "256,").replace("1024", "512")
        (follower.folder / "workload.py").write_text(small)
        await follower.follow("tune-kernel")
        assert follower.faults == []
        first, whole = follower.printed.values()
        for printed in (first, whole):
            assert re.search(r"the best kernel is .*, MFU [\d.]+ % predicted", printed), printed
        assert follower.answers["run_status"]["runs"][0]["run"] == follower.known["RUN"]
        assert follower.known["RUN"] in whole, "v0 is the best kernel of the last `tune`"
        assert follower.answers["evaluate"]["answer"]["evaluation"]["verdict"] == "correct"
        assert follower.answers["propose"]["state"] == "done"
        assert follower.answers["wait"]["holds"]
        assert follower.answers["best"]["run"] == follower.known["FORK"]
        await follower.run_command(f"agentctl tune workload.py --export {follower.known['FORK']}")
