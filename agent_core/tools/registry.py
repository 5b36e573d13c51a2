"""The table of tools, and the one way to call them, for sessions and for servers alike.

`call_tool` never raises at the model: unknown tools, wrong arguments and refusals are answers. Only what ends
the work of the process itself (a failing log, a run that is over) passes through it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from agent_core.roles import RoleError
from agent_core.tools import ending_tools, kernel_tools, lookup, memory_tools, rewrite_tools
from agent_core.tools.answers import ToolAnswer, ToolArguments, ToolFault, ToolOutcome, ToolRefusal
from agent_core.tools.workbench import SourceArguments, Workbench
from targets.base import ToolParts
from targets.registry import load_target

_MOST_FAULTS = 4

ToolFunction = Callable[[Workbench, Any], Awaitable[ToolOutcome]]


def _always(parts: ToolParts) -> bool:
    del parts
    return True


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its name and description, its arguments and answer, and what a target must have for it.

    `ends`: a call may end the session. `untold` are arguments that it takes and its schema leaves out: models
    seldom need them there, and each turn pays for every word.
    """

    name: str
    description: str
    arguments: type[ToolArguments]
    answer: type[ToolAnswer]
    function: ToolFunction
    is_offered: Callable[[ToolParts], bool] = _always
    ends: bool = False
    untold: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments, as short as it can be: every turn of a session sends it again."""
        whole = self.arguments.model_json_schema()
        found: dict[str, Any] = _shorten_schema(whole, whole.pop("$defs", {}))
        found.pop("description", None)  # the tool's own says it
        told = {name: value for name, value in found["properties"].items() if name not in self.untold}
        return {**found, "properties": told}


_UNTOLD_KEYS = ("default", "additionalProperties", "minLength", "exclusiveMinimum", "minItems")
"""Keys that repeat what `required` says, or that a refusal says to the few calls that break them."""


def _shorten_schema(schema: Any, defined: Mapping[str, Any]) -> Any:
    """Return a schema without titles, references, and what need not be told."""
    if isinstance(schema, list):
        return [_shorten_schema(item, defined) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        named = defined[schema["$ref"].rpartition("/")[2]]
        return _shorten_schema(
            {name: value for name, value in named.items() if name != "description"}, defined
        )
    match schema:
        case {"anyOf": [kind, {"type": "null"}]}:  # it may be left out
            told = {name: value for name, value in schema.items() if name != "anyOf"}
            schema = {**_shorten_schema(kind, defined), **told}
    kept = {
        name: value
        for name, value in schema.items()
        if not (name == "title" and isinstance(value, str))
        and not (name in _UNTOLD_KEYS and not (isinstance(value, dict) and "type" in value))
    }
    return {name: _shorten_schema(value, defined) for name, value in kept.items()}


_EDITS = ("edits",)
_MORE = ("more",)

TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "lookup",
            "Search the documentation: instructions, rules by code, memories, examples, techniques.",
            lookup.LookupArguments,
            lookup.LookupAnswer,
            lookup.lookup,
        ),
        Tool(
            "check",
            "Trace a kernel, check all rules and predict its latency. Fast; does not compare outputs.",
            SourceArguments,
            kernel_tools.CheckAnswer,
            kernel_tools.check,
            lambda parts: bool(parts.topics),
        ),
        Tool(
            "evaluate",
            "Judge a kernel: rules, outputs against the reference, latency, where the time goes.",
            SourceArguments,
            kernel_tools.EvaluateAnswer,
            kernel_tools.evaluate,
        ),
        Tool(
            "profile",
            "Explain a kernel's predicted time by topic.",
            kernel_tools.ProfileArguments,
            kernel_tools.TopicsAnswer,
            kernel_tools.profile,
            lambda parts: bool(parts.topics),
            untold=_EDITS,
        ),
        Tool(
            "what_if",
            "Predict the latency if one part cost nothing: the most that a change there can gain.",
            kernel_tools.WhatIfArguments,
            kernel_tools.TopicsAnswer,
            kernel_tools.what_if,
            lambda parts: parts.what_if is not None,
            untold=(*_EDITS, *_MORE),
        ),
        Tool(
            "compare",
            "Show what differs between two versions, and their latencies.",
            kernel_tools.CompareArguments,
            kernel_tools.CompareAnswer,
            kernel_tools.compare,
        ),
        Tool(
            "list_rewrites",
            "List rewrites that an engine can carry out on a kernel; they keep what is computed.",
            rewrite_tools.ListRewritesArguments,
            rewrite_tools.ListRewritesAnswer,
            rewrite_tools.list_rewrites,
            lambda parts: parts.rewriter is not None,
            untold=_EDITS,
        ),
        Tool(
            "apply_rewrite",
            "Carry out one rewrite of list_rewrites; gives a new version.",
            rewrite_tools.ApplyRewriteArguments,
            rewrite_tools.ApplyRewriteAnswer,
            rewrite_tools.apply_rewrite,
            lambda parts: parts.rewriter is not None,
            untold=(*_EDITS, *_MORE),
        ),
        Tool(
            "history",
            "What was tried in this run, and what came of it.",
            memory_tools.HistoryArguments,
            memory_tools.HistoryAnswer,
            memory_tools.history,
        ),
        Tool(
            "recall",
            "What this run and earlier runs learnt: experiences, sequences that paid, lessons.",
            memory_tools.RecallArguments,
            memory_tools.RecallAnswer,
            memory_tools.recall,
        ),
        Tool(
            "submit",
            "End the session with a kernel that is faster and correct. It is evaluated first if it was not.",
            ending_tools.SubmitArguments,
            ending_tools.SubmitAnswer,
            ending_tools.submit,
            ends=True,
            untold=(*_EDITS, *_MORE),
        ),
        Tool(
            "give_up",
            "End the session without a kernel.",
            ending_tools.GiveUpArguments,
            ending_tools.GiveUpAnswer,
            ending_tools.give_up,
            ends=True,
            untold=_MORE,
        ),
    )
}
"""The tools of whoever writes kernels, in the order in which models see them."""

_READING = ("lookup", "check", "profile", "what_if", "compare", "list_rewrites", "history", "recall")

PLANNING_TOOLS: Mapping[str, Tool] = {
    **{name: TOOLS[name] for name in _READING},
    "submit_plans": Tool(
        "submit_plans",
        "End the session with plans; another model carries them out.",
        ending_tools.SubmitPlansArguments,
        ending_tools.SubmitPlansAnswer,
        ending_tools.submit_plans,
        ends=True,
        untold=_MORE,
    ),
    "give_up": replace(TOOLS["give_up"], description="End the session without a plan."),
}
"""The tools of planners. Judging kernels is the executor's work, so `evaluate` is not among them."""


def list_tools(target: str, *, planning: bool = False) -> list[Tool]:
    """Return the tools that a target offers to whoever writes kernels, or plans them; in order."""
    parts = load_target(target).parts.tools
    tools = PLANNING_TOOLS if planning else TOOLS
    return [tool for tool in tools.values() if tool.is_offered(parts)]


def is_ending_tool(name: str) -> bool:
    """Return whether a call of this tool may end a session."""
    tool = TOOLS.get(name) or PLANNING_TOOLS.get(name)
    return tool is not None and tool.ends


async def call_tool(bench: Workbench, name: str, arguments: str | Mapping[str, Any]) -> ToolOutcome:
    """Carry out a call of a model; `arguments` are JSON, as text or read already.

    Whatever is wrong with the call, or fails through no fault of the process's own, is said in the answer.
    """
    offered = {
        tool.name: tool for tool in list_tools(bench.task.target, planning=bench.plan_rules is not None)
    }
    tool = offered.get(name)
    if tool is None:
        near = get_close_matches(name, offered, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        return _refuse("unknown_tool", f"there is no tool {name!r}", f"{hint}There are {', '.join(offered)}.")
    try:
        said = _read_arguments(tool, arguments)
        return await tool.function(bench, said)
    except ToolFault as fault:
        return _refuse(fault.code, str(fault), fault.hint)
    except RoleError as error:
        return _refuse(
            error.info.code, error.info.message, "It is no fault of the kernel's; go on without it."
        )


def _read_arguments(tool: Tool, arguments: str | Mapping[str, Any]) -> ToolArguments:
    """Read the arguments of a call.

    Raises:
        ToolFault: `bad_json`, or `bad_arguments` with the names that there are.
    """
    found: Any = arguments
    if isinstance(found, str):
        try:
            found = json.loads(found, strict=False) if found.strip() else {}
        except json.JSONDecodeError as error:
            hint = "Arguments are one JSON object; line breaks in strings are \\n."
            raise ToolFault("bad_json", f"the arguments are no JSON: {error}", hint) from error
    try:
        return tool.arguments.model_validate(found)
    except ValidationError as error:
        raise ToolFault("bad_arguments", _describe_faults(error, tool), _describe_arguments(tool)) from error


def _describe_faults(error: ValidationError, tool: Tool) -> str:
    fields = tool.arguments.model_fields
    said = []
    for item in error.errors(include_url=False, include_input=False)[:_MOST_FAULTS]:
        name = ".".join(str(part) for part in item["loc"]) or "the arguments"
        near = get_close_matches(name, fields, n=1) if item["type"] == "extra_forbidden" else []
        said.append(f"{name}: {item['msg']}" + (f" (did you mean {near[0]}?)" if near else ""))
    return "; ".join(said)


def _describe_arguments(tool: Tool) -> str:
    fields = tool.arguments.model_fields
    texts = [f"{name}{'' if field.is_required() else ' (optional)'}" for name, field in fields.items()]
    return f"{tool.name} takes {', '.join(texts)}."


def _refuse(code: str, message: str, hint: str) -> ToolOutcome:
    return ToolOutcome(ToolRefusal(code=code, message=message, next=hint))
