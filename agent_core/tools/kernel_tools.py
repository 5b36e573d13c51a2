"""Tools that look at a kernel: check, evaluate, profile, what_if, compare."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff

from pydantic import Field

from agent_core.roles.llm.further_faults import describe_further_faults
from agent_core.roles.llm.profiles import describe_profile_lines
from agent_core.roles.llm.prompt_values import format_latency
from agent_core.roles.llm.quoting import single_line
from agent_core.tools.answers import JudgedKernel, ToolAnswer, ToolArguments, ToolFault, ToolOutcome
from agent_core.tools.lookup import has_name
from agent_core.tools.workbench import RefusedKernel, SourceArguments, Workbench, resolve_source
from state.model import ErrorInfo, Evaluation, KernelExplanation
from targets.base import ToolParts
from targets.registry import load_target

_MOST_DIFF_LINES = 60
_SUMMARY_TOPICS = ("summary", "memory")


class KernelRefused(ToolAnswer):
    """A kernel that the judge refuses: the stage, the rule, the line and what usually helps."""

    version: str
    stage: str
    verdict: str
    error: ErrorInfo | None
    line: str = ""
    further: tuple[str, ...] = ()

    def render(self) -> str:
        """Return the refusal with its line of source, and what else is wrong at first sight."""
        head = f"{self.version}: {self.verdict}, at the judge's stage {self.stage}"
        if self.error is None:
            return head
        where = f"\nline {self.error.line}: {self.line}" if self.error.line else ""
        hint = f"\nhint: {self.error.hint}" if self.error.hint else ""
        also = "\n".join(["\nwrong as well:", *self.further]) if self.further else ""
        return f"{head}\n[{self.error.code}] {self.error.message}{where}{hint}{also}"


def _refuse_kernel(
    bench: Workbench, version: str, source: str, *, refused: RefusedKernel | Evaluation
) -> KernelRefused:
    error = refused.error
    rows = source.split("\n")
    line = rows[error.line - 1].strip() if error and error.line and error.line <= len(rows) else ""
    explained = error is not None and has_name(bench.prompts, bench.task.target, error.code)
    rule = f"`lookup` explains the rule {error.code}; then send" if error and explained else "Send"
    return KernelRefused(
        version=version,
        stage=refused.stage,
        verdict=refused.verdict.value,
        error=error,
        line=single_line(line, 160),
        further=tuple(describe_further_faults(bench.task.target, source, error)),
        next=f'{rule} {version} with `edits`, as in source "{version}", edits [...].',
    )


class CheckAnswer(ToolAnswer):
    """A kernel that keeps all rules, with its predicted latency; its outputs were not compared."""

    version: str
    explanation: KernelExplanation
    gain: float | None = None

    def render(self) -> str:
        """Return the latency, the gain over v0 if that is predicted too, and the memory use."""
        found = self.explanation
        timed = (
            f"{found.latency_ms:.6g} ms predicted ({found.lo_ms:.6g} to {found.hi_ms:.6g}), "
            f"bottleneck {found.bottleneck}"
            if found.latency_ms is not None
            else f"not timed: {found.error.message if found.error else 'no reason given'}"
        )
        gain = f", {self.gain:.3f} times as fast as v0" if self.gain is not None else ""
        head = f"{self.version}: keeps all rules; {found.instructions} instructions; {timed}{gain}"
        return "\n\n".join([head, *(found.topics[name] for name in found.topics)])


async def check(bench: Workbench, said: SourceArguments) -> ToolOutcome:
    """Trace a kernel and check every rule; its outputs are not compared."""
    version, source = resolve_source(bench, said.source, said.edits)
    wanted = [topic for topic in _SUMMARY_TOPICS if topic in _tool_parts(bench).topics and said.more]
    found = await bench.lab.explain(
        source, wanted or [t for t in ("memory",) if t in _tool_parts(bench).topics]
    )
    if isinstance(found, RefusedKernel):
        return ToolOutcome(_refuse_kernel(bench, version, source, refused=found))
    parent = bench.task.parent.benchmark
    is_comparable = parent.predicted and version != "v0"
    gain = parent.latency_ms / found.latency_ms if found.latency_ms and is_comparable else None
    return ToolOutcome(
        CheckAnswer(
            version=version, explanation=found, gain=gain, next=_advise_after_check(version, gain=gain)
        )
    )


def _advise_after_check(version: str, *, gain: float | None) -> str:
    if gain is not None and gain <= 1:
        return (
            f"{version} is predicted to be no faster than v0: `profile` it to see why, or undo the change. "
            f"`evaluate` it only if another change needs it."
        )
    return f"`evaluate` {version}: it compares the outputs with the reference."


class EvaluateAnswer(ToolAnswer):
    """A verdict with latency, gain and where the time goes."""

    version: str
    evaluation: Evaluation
    gain: float
    bound_percent: float
    lines: tuple[str, ...] = ()

    def render(self) -> str:
        """Return the verdict, the latency and the costliest lines."""
        found = self.evaluation
        assert found.benchmark is not None
        identity = f"; formula {found.identity.verdict}" if found.identity else ""
        head = (
            f"{self.version}: correct on {found.level.value}{identity}; {format_latency(found.benchmark)},"
            f" {self.gain:.3f} times as fast as v0, {self.bound_percent:.0f} % of the model bound;"
            f" bottleneck {found.bottleneck}"
        )
        warned = [f"warning: [{one.code}] {one.message}" for one in found.warnings]
        return "\n".join([head, *warned, *self.lines])


async def evaluate(bench: Workbench, said: SourceArguments) -> ToolOutcome:
    """Judge a kernel: rules, outputs against the reference, formula, latency, profile."""
    version, source = resolve_source(bench, said.source, said.edits)
    found = await bench.lab.evaluate(source)
    judged = JudgedKernel(version, found.evaluation, found.cache_key, found.cached_from)
    bench.judged[version] = judged
    made = found.evaluation
    if not made.is_correct or made.benchmark is None:
        return ToolOutcome(_refuse_kernel(bench, version, source, refused=made), judged)
    parent, bound = bench.task.parent.latency_ms, bench.task.bounds.tight_ms
    percent = 100.0 * bound / made.benchmark.latency_ms
    answer = EvaluateAnswer(
        version=version,
        evaluation=made,
        gain=parent / made.benchmark.latency_ms,
        bound_percent=percent,
        lines=tuple(describe_profile_lines(found.profile, source)),
        next=_advise_after_verdict(bench, version, made.benchmark.latency_ms),
    )
    return ToolOutcome(answer, judged)


def _advise_after_verdict(bench: Workbench, version: str, latency_ms: float) -> str:
    if version == "v0":
        return "This is the kernel to improve: `profile`, `what_if` or `list_rewrites` say where to begin."
    if latency_ms >= bench.task.parent.latency_ms:
        return "It is not faster than v0: `profile` it to see why, or undo the change."
    near = bench.task.bounds.tight_ms * (1 + bench.task.within_percent / 100)
    if latency_ms <= near:
        return f"It is as near its bound as is wanted: `submit` {version}."
    return f"`profile` or `what_if` {version} to find the next change, or `submit` it."


class ProfileArguments(SourceArguments):
    """Arguments of `profile`."""

    detail: str = Field(
        default="", description="one topic, or several separated by commas; empty: the first ones"
    )


class TopicsAnswer(ToolAnswer):
    """Topics of an explanation, each as text."""

    version: str
    topics: dict[str, str]

    def render(self) -> str:
        """Return the topics one after the other."""
        return "\n\n".join(f"{self.version}, {name}:\n{text}" for name, text in self.topics.items())


async def profile(bench: Workbench, said: ProfileArguments) -> ToolOutcome:
    """Explain where a kernel's time goes, topic by topic."""
    parts = _tool_parts(bench)
    version, source = resolve_source(bench, said.source, said.edits)
    names = [name.strip() for name in said.detail.split(",") if name.strip()]
    unknown = [name for name in names if name not in parts.topics]
    if unknown:
        there = "; ".join(f"{name}: {what}" for name, what in parts.topics.items())
        raise ToolFault("unknown_topic", f"there is no topic {unknown[0]!r}", f"There are {there}.")
    return await _explain(bench, version, source, names or list(parts.topics)[:2])


class WhatIfArguments(SourceArguments):
    """Arguments of `what_if`."""

    change: str = Field(default="", description="a word of the assumption, such as dma; empty: all")


async def what_if(bench: Workbench, said: WhatIfArguments) -> ToolOutcome:
    """Predict the latency if one part cost nothing."""
    topic = _tool_parts(bench).what_if
    assert topic is not None, "the registry offers the tool only where the target has the topic"
    version, source = resolve_source(bench, said.source, said.edits)
    outcome = await _explain(bench, version, source, [topic])
    if not isinstance(outcome.answer, TopicsAnswer) or not said.change.strip():
        return outcome
    rows = outcome.answer.topics[topic].split("\n")
    kept = [row for row in rows[1:] if said.change.strip().lower() in row.lower()]
    if not kept:
        there = "; ".join(row.partition(" with ")[2] for row in rows[1:])
        raise ToolFault("unknown_change", f"no assumption speaks of {said.change!r}", f"There are {there}.")
    return ToolOutcome(outcome.answer.model_copy(update={"topics": {topic: "\n".join([rows[0], *kept])}}))


async def _explain(bench: Workbench, version: str, source: str, topics: Sequence[str]) -> ToolOutcome:
    found = await bench.lab.explain(source, topics)
    if isinstance(found, RefusedKernel):
        return ToolOutcome(_refuse_kernel(bench, version, source, refused=found))
    if found.error is not None:
        raise ToolFault(found.error.code, f"{version} cannot be timed: {found.error.message}")
    return ToolOutcome(TopicsAnswer(version=version, topics=found.topics))


class CompareArguments(ToolArguments):
    """Arguments of `compare`."""

    a: str = Field(description="a version, such as v0")
    b: str = Field(description="another version")


class CompareAnswer(ToolAnswer):
    """Two versions side by side: what differs in the source, and in the verdicts."""

    rows: tuple[str, ...]
    diff: tuple[str, ...]

    def render(self) -> str:
        """Return the verdicts, then the difference of the sources."""
        return "\n".join([*self.rows, "", *(self.diff or ("the sources are the same",))])


async def compare(bench: Workbench, said: CompareArguments) -> ToolOutcome:
    """Compare two versions: their sources, and what is known of their latencies."""
    names = (said.a.strip(), said.b.strip())
    one, other = (bench.read_version(name) for name in names)
    diff = list(unified_diff(one.split("\n"), other.split("\n"), *names, lineterm="", n=1))
    shown = diff if said.more else diff[:_MOST_DIFF_LINES]
    left = [f"({len(diff) - len(shown)} more lines)"] if len(diff) > len(shown) else []
    known = {name: bench.latency_of(name) for name in names}
    missing = [name for name, found in known.items() if found is None]
    after = f"`evaluate` {missing[0]}: its latency is not known." if missing else ""
    rows = tuple(_describe_standing(bench, name) for name in names)
    first, second = known.values()
    if first is not None and second is not None:
        rows += (f"{names[1]} is {first / second:.3f} times as fast as {names[0]}",)
    return ToolOutcome(CompareAnswer(rows=rows, diff=(*shown, *left), next=after))


def _describe_standing(bench: Workbench, name: str) -> str:
    if name == "v0":
        parent = bench.task.parent
        return f"v0: {format_latency(parent.benchmark)}, bottleneck {parent.bottleneck}"
    found = bench.judged.get(name)
    if found is None:
        return f"{name}: not evaluated"
    made = found.evaluation
    if made.benchmark is None or not made.is_correct:
        return f"{name}: {made.verdict.value}"
    return f"{name}: {format_latency(made.benchmark)}, bottleneck {made.bottleneck}"


def _tool_parts(bench: Workbench) -> ToolParts:
    return load_target(bench.task.target).parts.tools
