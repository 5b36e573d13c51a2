"""What a scripted model answers to a coding agent: it tries constants with the tools, and submits.

The agent's own requests (a title, a summary, ...) name none of our tools; they get one word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.llm_server import Asked, Reply

EDITS = [
    {"find": f"{name} = {old}", "replace": f"{name} = {new}"}
    for name, old in (("TILE_M", 128), ("TILE_N", 64), ("TILE_K", 32))
    for new in (100, 99, 101)
]
"""Changes of the fake judge's kernel; some make it faster."""


class EngineerModel:
    """A script of `LlmServer`; `tools` are the names of our tools as the agent tells its model."""

    def __init__(self) -> None:
        self.tools: set[str] = set()

    def __call__(self, asked: Asked) -> Reply:
        names = {re.split("__|/", name)[-1]: name for name in tool_names(asked.body)}
        if "submit" not in names:
            return Reply("ok", input=10, output=2)
        self.tools |= names.keys()
        results = list(tool_results(asked.body))
        last = results[-1] if results else ""
        if len(results) > len(EDITS) or "is submitted" in last:
            return Reply("I have done what I could.", input=300, output=20)
        if (gain := re.search(r"([\d.]+) times as fast", last)) and float(gain[1]) > 1:
            return call(names["submit"], source=re.search(r"v\d+", last)[0], title="by a scripted model")
        if len(results) == len(EDITS):
            return call(names["give_up"], reason="nothing helped")
        return call(names["evaluate"], source="v0", edits=[EDITS[len(results)]])


def call(name: str, **arguments: Any) -> Reply:
    return Reply("I try this.", input=200, output=50, calls=[(name, json.dumps(arguments))])


def tool_names(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the tools of a request, also of those that stand in a namespace."""
    for tool in body.get("tools", ()):
        if tool.get("type") == "namespace":
            yield from (f"{tool['name']}/{name}" for name in tool_names(tool))
        else:
            yield tool.get("name", "")


def tool_results(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of the results of tools so far."""
    for item in body.get("input", ()):
        if item.get("type") == "function_call_output":
            yield text_of(item["output"])
    for message in body.get("messages", ()):
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block.get("type") == "tool_result":
                yield text_of(block["content"])


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)
