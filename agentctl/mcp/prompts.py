"""The server's prompts: what a person can ask a client to do, in the words that lead to the tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcp_types import GetPromptResult, Prompt, PromptArgument, PromptMessage, TextContent

from agentctl.mcp.answers import RefusedCall


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt: its text with the arguments' places in it."""

    name: str
    title: str
    description: str
    arguments: Mapping[str, str]
    text: str

    def describe(self) -> Prompt:
        """Return how it is listed."""
        arguments = [
            PromptArgument(name=name, description=what, required=True)
            for name, what in self.arguments.items()
        ]
        return Prompt(name=self.name, title=self.title, description=self.description, arguments=arguments)


_PROMPTS = {
    one.name: one
    for one in (
        PromptText(
            "optimise_kernel",
            "Optimise this kernel",
            "Make the kernel of a problem faster, by hand with the tools or by a run.",
            {"problem": "a problem's name, or the absolute path of its folder"},
            """Make the kernel of the problem {problem} faster.

1. `evaluate` with problem "{problem}" and source "v0": note its latency, what limits it, and the model bound.
2. `what_if` and `profile` say what a change can gain at most; `list_rewrites` lists changes that keep what
   is computed. Choose the change with the largest gain.
3. `apply_rewrite`, or send v0 with `edits`. `check` the new version, then `evaluate` it.
4. Go on from the fastest version until `evaluate` says that it is near its model bound, or three changes in
   a row brought nothing.
5. For an unattended search, `read_kernel` of the fastest version, `submit_run` with it as `kernel`, then
   `wait` and `best`.

Report the fastest correct version, with its interval. Say predicted where the answer says predicted.""",
        ),
        PromptText(
            "why_slow",
            "Why is it slow?",
            "Explain where a kernel's time goes, without changing it.",
            {
                "problem": "a problem's name, or the absolute path of its folder",
                "source": "v0, or the kernel's text",
            },
            """Explain where the time of this kernel of the problem {problem} goes. Change nothing.

`evaluate` it, then `profile` and `what_if` it; `lookup` explains instructions and rules that you name.
Say: its latency with interval, predicted or measured; the limiting resource; the source lines that cost most;
what each `what_if` says that the best possible change there gains; and which one change you would try first.

The kernel:

{source}""",
        ),
        PromptText(
            "tune_workload",
            "Tune this workload",
            "Tune the knobs of a workload file until its target is met.",
            {"workload": "the absolute path of the workload's file"},
            """Tune the workload {workload}: follow the skill tune-kernel.

Read the file first: its calls, and TARGET_MFU, which is the one criterion to stop. Then run
`agentctl tune {workload}` in a shell, and report what it prints last: the MFU that it reached, predicted
unless a device measured it, and where the kernel is. `docs://tune` has every option.""",
        ),
    )
}


def list_prompts() -> list[Prompt]:
    """Return the prompts as they are listed."""
    return [one.describe() for one in _PROMPTS.values()]


def get_prompt(name: str, arguments: Mapping[str, str]) -> GetPromptResult:
    """Return a prompt with its arguments filled in.

    Raises:
        RefusedCall: there is no such prompt, or an argument is missing.
    """
    found = _PROMPTS.get(name)
    if found is None:
        raise RefusedCall(
            "unknown_prompt", f"there is no prompt {name!r}", f"There are {', '.join(_PROMPTS)}."
        )
    missing = [one for one in found.arguments if one not in arguments]
    if missing:
        raise RefusedCall("bad_arguments", f"{name} needs {', '.join(missing)}")
    text = found.text
    for one in found.arguments:
        text = text.replace(f"{{{one}}}", arguments[one])
    message = PromptMessage(role="user", content=TextContent(type="text", text=text))
    return GetPromptResult(description=found.description, messages=[message])
