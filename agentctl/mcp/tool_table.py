"""The table of the server's tools: names, descriptions, schemas, annotations, and what carries them out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mcp_types import Tool as ToolListing
from mcp_types import ToolAnnotations
from pydantic import BaseModel, ValidationError

from agentctl.mcp import problem_tools, run_commands, run_views
from agentctl.mcp.answers import RefusedCall, ToolOutput
from agentctl.mcp.benches import Benches
from agentctl.mcp.kernel_tools import (
    KERNEL_TOOLS,
    KernelTool,
    ReadKernelInput,
    ReadKernelOutput,
    read_kernel,
)
from agentctl.mcp.owner import OwnerStarter
from agentctl.mcp.run_views import ReportProgress

_MOST_FAULTS = 4

SaidT = TypeVar("SaidT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ServerParts:
    """What the tools of one server share."""

    home: Path
    benches: Benches
    owner: OwnerStarter


ToolFunction = Callable[[ServerParts, Any, ReportProgress], Awaitable[ToolOutput]]


@dataclass(frozen=True, slots=True)
class ServerTool:
    """One tool. `reads`: it changes nothing; `destroys`: what it ends cannot be taken back."""

    name: str
    description: str
    arguments: type[BaseModel]
    output: type[ToolOutput]
    function: ToolFunction
    reads: bool = True
    destroys: bool = False

    def describe(self) -> ToolListing:
        """Return how it is listed."""
        return ToolListing(
            name=self.name,
            description=self.description,
            input_schema=self.arguments.model_json_schema(),
            output_schema=self.output.model_json_schema(mode="serialization"),
            annotations=ToolAnnotations(
                read_only_hint=self.reads, destructive_hint=self.destroys, open_world_hint=False
            ),
        )

    async def call(
        self, parts: ServerParts, arguments: Mapping[str, Any], progress: ReportProgress
    ) -> ToolOutput:
        """Carry out a call.

        Raises:
            RefusedCall: it cannot be carried out.
            Exception: as `answers.describe_error` understands them, or a bug.
        """
        try:
            said = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise RefusedCall("bad_arguments", _describe_faults(error), self._describe_arguments()) from error
        return await self.function(parts, said, progress)

    def _describe_arguments(self) -> str:
        fields = self.arguments.model_fields
        names = [f"{name}{'' if field.is_required() else ' (optional)'}" for name, field in fields.items()]
        return f"{self.name} takes {', '.join(names)}."


def _describe_faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False)[:_MOST_FAULTS]
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'the arguments'}: {fault['msg']}" for fault in faults
    )


def _kernel_function(tool: KernelTool) -> ToolFunction:
    async def call(parts: ServerParts, said: BaseModel, progress: ReportProgress) -> ToolOutput:
        del progress
        return await tool.call(parts.benches, said.model_dump(mode="json", exclude_unset=True))

    return call


def _reading(read: Callable[[Path, SaidT], ToolOutput]) -> ToolFunction:
    async def call(parts: ServerParts, said: SaidT, progress: ReportProgress) -> ToolOutput:
        del progress
        return await asyncio.to_thread(read, parts.home, said)

    return call


def _commanding(command: Callable[[Path, SaidT], ToolOutput]) -> ToolFunction:
    def carry_out(parts: ServerParts, said: SaidT) -> ToolOutput:
        parts.owner.ensure_owner()
        return command(parts.home, said)

    async def call(parts: ServerParts, said: SaidT, progress: ReportProgress) -> ToolOutput:
        del progress
        return await asyncio.to_thread(carry_out, parts, said)

    return call


async def _wait(parts: ServerParts, said: run_views.WaitInput, progress: ReportProgress) -> ToolOutput:
    await asyncio.to_thread(parts.owner.ensure_owner)
    return await run_views.wait_for_run(parts.home, said, progress)


async def _translate(
    parts: ServerParts, said: problem_tools.TranslateInput, progress: ReportProgress
) -> ToolOutput:
    del progress
    return await problem_tools.translate(parts.home, said)


async def _read_kernel(parts: ServerParts, said: ReadKernelInput, progress: ReportProgress) -> ToolOutput:
    del progress
    return await read_kernel(parts.benches, said)


_KERNEL_TOOLS = (
    *(
        ServerTool(name, one.tool.description, one.arguments, one.output, _kernel_function(one))
        for name, one in KERNEL_TOOLS.items()
    ),
    ServerTool(
        "read_kernel",
        "Return the whole source of a version.",
        ReadKernelInput,
        ReadKernelOutput,
        _read_kernel,
    ),
)

_PROBLEM_TOOLS = (
    ServerTool(
        "problems", "List the problems that come with the program.",
        run_views.ProblemsInput, run_views.ProblemsOutput, _reading(run_views.list_problems),
    ),
    ServerTool(
        "new_problem", "Write a folder with a small problem that works as it is, to be edited.",
        problem_tools.NewProblemInput, problem_tools.NewProblemOutput, _reading(problem_tools.make_problem),
        reads=False,
    ),
    ServerTool(
        "translate", "Write a kernel for a NumPy reference, judge it, and make a problem of it.",
        problem_tools.TranslateInput, problem_tools.TranslateOutput, _translate, reads=False,
    ),
)  # fmt: skip

_RUN_TOOLS = (
    ServerTool(
        "dry_run", "Say what a run's models would cost; starts nothing.",
        run_commands.SubmitRunInput, run_commands.DryRunOutput, _reading(run_commands.dry_run),
    ),
    ServerTool(
        "submit_run", "Start an unattended run that optimises a problem's kernel; returns its id at once.",
        run_commands.SubmitRunInput, run_commands.CommandOutput, _commanding(run_commands.submit_run),
        reads=False,
    ),
    ServerTool(
        "run_status", "Say how runs stand: state, round, latencies of the initial and the best kernel.",
        run_views.RunStatusInput, run_views.RunStatusOutput, _reading(run_views.show_status),
    ),
    ServerTool(
        "wait", "Wait until a condition holds of a run, for a limited time; call it again to wait longer.",
        run_views.WaitInput, run_views.WaitOutput, _wait,
    ),
    ServerTool(
        "best", "Return a run's best kernel so far, with its source.",
        run_views.BestInput, run_views.BestOutput, _reading(run_views.show_best),
    ),
    ServerTool(
        "why", "Tell a kernel's story: plan, prediction, outcome, decision, lesson.",
        run_views.WhyInput, run_views.WhyOutput, _reading(run_views.explain_candidate),
    ),
    ServerTool(
        "propose", "Add a kernel of yours to a run, which judges it like any other.",
        run_commands.ProposeInput, run_commands.ProposeOutput, _commanding(run_commands.propose), reads=False,
    ),
    ServerTool(
        "fork", "Continue a run from any of its events as another run, with changed settings.",
        run_commands.ForkInput, run_commands.CommandOutput, _commanding(run_commands.fork), reads=False,
    ),
    ServerTool(
        "pause", "Pause a run: work in flight is finished, nothing new starts.",
        run_commands.SteerInput, run_commands.CommandOutput, _commanding(run_commands.pause), reads=False,
    ),
    ServerTool(
        "resume", "Continue a paused or interrupted run.",
        run_commands.SteerInput, run_commands.CommandOutput, _commanding(run_commands.resume), reads=False,
    ),
    ServerTool(
        "cancel", "End a run for good and drop its work in flight; it cannot be taken back.",
        run_commands.SteerInput, run_commands.CommandOutput, _commanding(run_commands.cancel), reads=False,
        destroys=True,
    ),
)  # fmt: skip

SERVER_TOOLS: Mapping[str, ServerTool] = {
    tool.name: tool for tool in (*_KERNEL_TOOLS, *_PROBLEM_TOOLS, *_RUN_TOOLS)
}
"""All tools, in the order in which clients see them."""
