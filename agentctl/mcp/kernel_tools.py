"""The tools of sessions, offered by the server: the same functions and schemas, and where they work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import Field, create_model

from agent_core.tools.answers import ToolAnswer, ToolArguments, ToolOutcome, ToolRefusal, render_outcome
from agent_core.tools.kernel_tools import CheckAnswer, KernelRefused
from agent_core.tools.registry import TOOLS, Tool, call_tool
from agent_core.tools.workbench import Workbench
from agentctl.mcp.answers import LatencyClaim, RefusedCall, ServerFault, ToolInput, ToolOutput
from agentctl.mcp.benches import Benches, BenchName

OFFERED = (
    "lookup", "check", "evaluate", "profile", "what_if", "compare", "list_rewrites", "apply_rewrite",
    "recall",
)  # fmt: skip
"""The tools of sessions that make sense outside one: nothing is submitted here, and nothing given up."""

_PLACE: dict[str, tuple[type[str], Any]] = {
    "problem": (str, Field(default="", description="a problem's name, or the absolute path of its folder")),
    "run": (str, Field(default="", description="instead: a run, whose best kernel is v0")),
    "size": (str, Field(default="", description="full or reduced; empty: the home's default")),
    "target": (str, Field(default="", description="the device; empty: the home's default")),
}

AnswerT = TypeVar("AnswerT", bound=ToolAnswer)


class KernelToolOutput(ToolOutput, Generic[AnswerT]):
    """What a tool of sessions answered, or why the judge refuses the kernel."""

    answer: AnswerT | KernelRefused
    shown: str = Field(description="the same as text, short")

    def render(self) -> str:
        """Return the answer as sessions read it."""
        return self.shown


@dataclass(frozen=True, slots=True)
class KernelTool:
    """A tool of sessions with the schemas that the server offers."""

    tool: Tool
    arguments: type[ToolArguments]
    output: type[KernelToolOutput[Any]]

    async def call(self, benches: Benches, said: dict[str, Any]) -> KernelToolOutput[Any]:
        """Carry out a call.

        Raises:
            RefusedCall: it cannot be carried out.
            daemon.errors.DaemonError, seeds.SeedsError: there is no such problem or run.
        """
        bench = await benches.find_bench(BenchName(**{name: said[name] for name in _PLACE if name in said}))
        arguments = {name: value for name, value in said.items() if name not in _PLACE}
        outcome = await call_tool(bench, self.tool.name, arguments)
        if isinstance(outcome.answer, ToolRefusal):
            fault = ServerFault.of_refusal(outcome.answer)
            raise RefusedCall(fault.code, fault.message, _without_endings(fault.hint))
        shown = ToolOutcome(outcome.answer.model_copy(update={"next": ""}))
        return self.output(
            answer=outcome.answer,
            shown=render_outcome(shown, more=bool(said.get("more"))),
            latencies=tuple(_claims(bench, outcome)),
            next=_without_endings(outcome.answer.next),
        )


def _without_endings(advice: str) -> str:
    """Return what would help next, without the tools that end a session: a server has none."""
    return advice.replace("`submit`", "keep").replace(", or `give_up`", "")


def _claims(bench: Workbench, outcome: ToolOutcome) -> Iterator[LatencyClaim]:
    """Yield what is known of the latencies of the versions that an answer is about."""
    answer = outcome.answer
    if isinstance(answer, CheckAnswer):
        found = answer.explanation
        if found.latency_ms is not None:
            lo, hi = found.lo_ms or found.latency_ms, found.hi_ms or found.latency_ms
            yield LatencyClaim(
                of=answer.version, kind="predicted", ms=found.latency_ms, lo_ms=lo, hi_ms=hi,
                limited_by=found.bottleneck, unlike=found.unlike,
            )  # fmt: skip
        return
    yield from _known_claims(bench, dict.fromkeys(_versions_in(answer)))


def _versions_in(answer: ToolAnswer) -> Iterator[str]:
    version = getattr(answer, "version", None)
    if isinstance(version, str):
        yield version
    for row in getattr(answer, "rows", ()):
        name, mark, _ = str(row).partition(":")
        if mark:
            yield name


def _known_claims(bench: Workbench, versions: Iterable[str]) -> Iterator[LatencyClaim]:
    for version in versions:
        judged = bench.judged.get(version)
        if judged is not None and judged.evaluation.is_correct and judged.evaluation.benchmark is not None:
            made = judged.evaluation
            assert made.benchmark is not None
            yield LatencyClaim.of_benchmark(version, made.benchmark, made.bottleneck)
        elif version == "v0":
            parent = bench.task.parent
            yield LatencyClaim.of_benchmark("v0", parent.benchmark, parent.bottleneck)


def _offer(tool: Tool) -> KernelTool:
    placed: Any = _PLACE
    base: type[ToolArguments] = tool.arguments
    arguments: type[ToolArguments] = create_model(f"{base.__name__}At", __base__=base, **placed)
    return KernelTool(tool, arguments, KernelToolOutput[tool.answer])  # type: ignore[name-defined]


class ReadKernelInput(ToolInput):
    """Arguments of `read_kernel`."""

    problem: str = _PLACE["problem"][1]
    run: str = _PLACE["run"][1]
    size: str = _PLACE["size"][1]
    target: str = _PLACE["target"][1]
    version: str = Field(default="v0", description="v0, or a version that another tool answered")


class ReadKernelOutput(ToolOutput):
    """The whole source of a version; a run takes it as `kernel`, or as a proposal."""

    version: str
    source: str

    def render(self) -> str:
        return self.source


async def read_kernel(benches: Benches, said: ReadKernelInput) -> ReadKernelOutput:
    """Return the source of a version.

    Raises:
        agent_core.tools.answers.ToolFault: there is no such version.
        RefusedCall, daemon.errors.DaemonError, seeds.SeedsError: there is no such problem or run.
    """
    name = BenchName(run=said.run, problem=said.problem, size=said.size, target=said.target)
    bench = await benches.find_bench(name)
    source = bench.read_version(said.version)
    claims = tuple(_known_claims(bench, [said.version.strip()]))
    after = "`submit_run` takes it as `kernel`, `propose` as `source`."
    return ReadKernelOutput(version=said.version, source=source, latencies=claims, next=after)


KERNEL_TOOLS = {name: _offer(TOOLS[name]) for name in OFFERED}
