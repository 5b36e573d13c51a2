"""A stand-in of a coding agent: it follows TASK.md with the tools of its MCP server, or misbehaves.

`python coding_agent.py HABIT` works in its folder, as a coding agent would. Its last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import time
from pathlib import Path

from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

USAGE = {"total_cost_usd": 0.25, "usage": {"input_tokens": 1200, "output_tokens": 300}}


def open_server(folder: Path | None = None):
    (server,) = json.loads(Path("mcp.json").read_text())["mcpServers"].values()
    arguments = server["args"] if folder is None else [*server["args"][:-1], str(folder)]
    place = StdioServerParameters(
        command=server["command"], args=arguments, env={**os.environ, **server["env"]}
    )
    return Client(stdio_client(place))


async def use(client: Client, name: str, **arguments):
    found = await client.call_tool(name, arguments)
    return found.is_error, found.content[0].text


async def tweak(client: Client) -> None:
    """Try other values of the kernel's constants, and submit the first that makes it faster."""
    kernel = Path("kernel.py").read_text()
    for line in re.findall(r"^[A-Z_]+ = \d+$", kernel, re.MULTILINE):
        for value in (100, 99, 101):
            edits = [{"find": line, "replace": f"{line.split(' = ')[0]} = {value}"}]
            failed, said = await use(client, "evaluate", source="v0", edits=edits)
            gain = re.search(r"([\d.]+) times as fast", said)
            if not failed and gain is not None and float(gain[1]) > 1:
                await use(client, "submit", source=said.split(":")[0], title="by a stand-in")
                return
    await use(client, "give_up", reason="nothing helped")


async def improve(client: Client) -> None:
    """Apply the first rewrites that make the kernel faster, as the skill says."""
    assert "submit" in Path("TASK.md").read_text()
    assert "def " in Path("kernel.py").read_text()
    _, listed = await use(client, "list_rewrites", source="v0")
    for line in [one for one in listed.split("\n") if one.startswith("- ")][:3]:
        rewrite = line[2:].split(": ")[0].split(" with ")[0]
        failed, said = await use(client, "apply_rewrite", source="v0", id=rewrite)
        if failed:
            continue
        version = said.split(":")[0]
        failed, said = await use(client, "evaluate", source=version)
        if not failed:
            await use(client, "submit", source=version, title="by a stand-in")
            return
    await use(client, "give_up", reason="nothing helped")


async def cheat(client: Client) -> None:
    """Submit what does not compute the same, and what is no kernel."""
    kernel = Path("kernel.py").read_text()
    for source in (
        "def kernel(x):\n    return x\n",
        kernel.replace("nl.float32", "nl.bfloat16"),
        kernel,
        "v0",
    ):
        failed, said = await use(client, "submit", source=source)
        print("submit:", failed, said[:200])
    await use(client, "sing", song="la")


async def visit_others(client: Client) -> None:
    """Look for other plans' folders, the home and keys; use their sockets if there are any."""
    own = Path.cwd()
    seen = sorted(str(path) for path in own.parent.iterdir())
    home = own.parents[2]
    inside = sorted(path.name for path in home.iterdir())
    for path in own.parent.iterdir():
        if path != own:
            try:
                async with open_server(path) as other:
                    await use(other, "submit", source="v0")
            except BaseException as error:  # noqa: BLE001 - whatever refuses it
                print("refused:", type(error).__name__)
    print(json.dumps({"folders": seen, "home": inside, "keys": sorted(os.environ)}))
    await use(client, "give_up", reason="looked around")


def knock_with_a_wrong_token() -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect("tools.sock")
        made.sendall(b'{"token": "wrong"}\n{"tool": "submit", "arguments": {"source": "v0"}}\n')
        print("knocked:", made.recv(100))
    with socket.socket(socket.AF_UNIX) as made:
        made.connect("tools.sock")
        made.sendall(b"\xff\xfe no json at all\n")
        print("knocked:", made.recv(100))


async def main(habit: str) -> None:
    if habit == "flood":
        for _ in range(64):
            sys.stdout.write("x" * (1 << 20) + "\n")
    if habit == "hang":
        time.sleep(3600)
    if habit == "crash":
        os.kill(os.getpid(), 9)
    if habit == "knock":
        knock_with_a_wrong_token()
    async with open_server() as client:
        if habit == "cheat":
            await cheat(client)
        elif habit == "others":
            await visit_others(client)
        elif habit == "hang_later":
            await use(client, "evaluate", source="v0")
            time.sleep(3600)
        elif habit == "chatty":
            while not (await use(client, "history"))[1].startswith(("[no_calls_left]", "[session_over]")):
                pass
        elif habit == "rewrite":
            await improve(client)
        else:
            await tweak(client)
    print("\n" + json.dumps({"type": "result", **USAGE}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
