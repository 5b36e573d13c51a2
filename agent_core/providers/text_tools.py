"""Tools for models whose servers take none: described in words, called by fenced JSON in the answer's text.

Small models also write such calls although their server takes tools, so every answer without calls is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from agent_core.providers.completion import (
    CompletionRequest,
    DialogueStep,
    ModelTurn,
    PromptPart,
    ToolCall,
    ToolDefinition,
)

_FENCE = re.compile(r"^ {0,3}```[ \t]*[\w-]*[ \t]*\n(.*?)^ {0,3}```", re.MULTILINE | re.DOTALL)
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_NAMES = ("tool", "name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "input")

_INTRODUCTION = """
You work by calling tools. To call one, end your answer with a block like this, and nothing behind it:

```json
{"tool": "NAME", "arguments": {"ARGUMENT": "VALUE"}}
```

The arguments are JSON: line breaks in a text are \\n. The results come in the next message. The tools:
"""


def put_in_words(request: CompletionRequest) -> CompletionRequest:
    """Return a request without tools that says the same in texts."""
    if not request.tools:
        return request
    told = _INTRODUCTION.lstrip() + "\n" + "\n".join(map(_describe_tool, request.tools)) + "\n"
    steps = tuple(_step_in_words(step) for step in request.dialogue)
    changed = {"tools": (), "guide": (*request.guide, PromptPart(text=told)), "dialogue": steps}
    return request.model_copy(update=changed)


def _describe_tool(tool: ToolDefinition) -> str:
    properties: Any = tool.parameters.get("properties", {})
    required: Any = tool.parameters.get("required", [])
    rows = [f"- `{tool.name}`: {tool.description}"]
    for name, entry in properties.items():
        optional = "" if name in required else ", optional"
        kind = f"{entry.get('type', 'value')}{optional}"
        rows.append(f"  - `{name}` ({kind}): {entry.get('description', '')}")
    return "\n".join(rows)


def _step_in_words(step: DialogueStep) -> DialogueStep:
    names = {call.id: call.name for call in step.answer.calls}
    text = step.answer.text
    if step.answer.calls and not parse_calls(text):
        text = "\n\n".join([text, *(_write_call(call) for call in step.answer.calls)]).strip()
    told = [f"Result of `{names.get(one.id, 'the call')}`:\n{one.text}" for one in step.results]
    note = "\n\n".join([*told, *([step.note] if step.note else [])])
    return DialogueStep(answer=ModelTurn(text=text, stop_reason=step.answer.stop_reason), note=note)


def _write_call(call: ToolCall) -> str:
    return f'```json\n{{"tool": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n```'


def parse_calls(text: str) -> tuple[ToolCall, ...]:
    """Return the calls in a text: fenced or tagged JSON with the name of a tool and its arguments."""
    found = [call for piece in _pieces(text) for call in _read_calls(piece)]
    return tuple(
        ToolCall(id=f"text_{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(found)
    )


def _pieces(text: str) -> Iterator[str]:
    fenced = [*_FENCE.findall(text), *_TAGGED.findall(text)]
    yield from fenced or [text]


def _read_calls(piece: str) -> Iterator[tuple[str, str]]:
    try:
        value = json.loads(piece, strict=False)
    except json.JSONDecodeError:
        return
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            continue
        name = next((one[key] for key in _NAMES if isinstance(one.get(key), str)), None)
        arguments = next((one[key] for key in _ARGUMENTS if key in one), None)
        if name is not None and arguments is not None:
            yield name, arguments if isinstance(arguments, str) else json.dumps(arguments)
