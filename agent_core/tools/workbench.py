"""What tools work with: the kernel's versions, the place that judges kernels, and what the run has learnt.

A version is a source that a session has seen, named v0, v1, ... in order; v0 is the kernel to improve. A
model sends a source whole, or as exact edits of a version, so that it need not repeat what stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ConfigDict, Field

from agent_core.effects import LearningContext
from agent_core.tools.answers import JudgedKernel, ToolArguments, ToolFault
from state.model import (
    Candidate,
    ErrorInfo,
    Evaluation,
    FrozenModel,
    KernelExplanation,
    LatencyBounds,
    Verdict,
)

if TYPE_CHECKING:
    from agent_core.prompting import PromptSet
    from agent_core.roles.llm.plans import PlanRules
    from agent_core.tools.rewriting import KernelPlace, Rewriter

_SHOWN = 100


class RefusedKernel(FrozenModel):
    """Why a kernel was refused before its outputs were compared; `stage` is the judge's."""

    verdict: Verdict
    stage: str
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class LabVerdict:
    """A verdict of the judge, with the profile as its evaluator wrote it (empty if there is none)."""

    evaluation: Evaluation
    profile: Mapping[str, Any]
    cache_key: str
    cached_from: str | None = None


class KernelLab(Protocol):
    """Where tools have kernels checked and judged. Equal sources get equal answers."""

    async def explain(self, source: str, topics: Sequence[str]) -> KernelExplanation | RefusedKernel:
        """Check a kernel's program and explain its predicted latency; nothing is compared.

        Raises:
            agent_core.roles.RoleError: the infrastructure failed.
        """
        ...

    async def evaluate(self, source: str) -> LabVerdict:
        """Judge a kernel as the run judges proposals, or reuse the verdict that the log has.

        Raises:
            agent_core.roles.RoleError: the infrastructure failed, or the budget for devices is spent.
        """
        ...


@dataclass(frozen=True, slots=True)
class KernelTask:
    """The task of a session: where kernels are for, and the kernel to improve."""

    place: KernelPlace
    parent: Candidate
    bounds: LatencyBounds
    within_percent: float = 0.0

    @property
    def target(self) -> str:
        """The target's name."""
        return self.place.target


@dataclass
class Workbench:
    """Everything that the calls of one session share. `rewriter` is None if the target has no engine.

    A planner's session has `plan_rules`, and only the tools that planners get.
    """

    task: KernelTask
    lab: KernelLab
    context: LearningContext
    prompts: PromptSet
    versions: list[str]
    rewriter: Rewriter | None = None
    plan_rules: PlanRules | None = None
    judged: dict[str, JudgedKernel] = field(default_factory=dict)

    def add_version(self, source: str) -> str:
        """Return the name of a source, a new one if it was not seen before."""
        if source not in self.versions:
            self.versions.append(source)
        return f"v{self.versions.index(source)}"

    def read_version(self, name: str) -> str:
        """Return the source of a version.

        Raises:
            ToolFault: `unknown_version`.
        """
        number = name.strip().removeprefix("v")
        if not (number.isascii() and number.isdigit() and int(number) < len(self.versions)):
            last = f"v{len(self.versions) - 1}"
            there = "v0 (the kernel to improve)" + (
                f" to {last}, the latest" if len(self.versions) > 1 else ""
            )
            raise ToolFault("unknown_version", f"there is no version {name!r}", f"There are {there}.")
        return self.versions[int(number)]

    def latency_of(self, version: str) -> float | None:
        """Return the latency of a judged version; that of v0 is the parent's."""
        if version == "v0":
            return self.task.parent.latency_ms
        found = self.judged.get(version)
        timed = found.evaluation.benchmark if found is not None else None
        return timed.latency_ms if timed is not None else None


class SourceEdit(FrozenModel):
    """One exact edit: `find` must occur exactly once in the source, with its spaces and line breaks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    find: str = Field(min_length=1, description="text that is there exactly once")
    replace: str


class SourceArguments(ToolArguments):
    """Base of the arguments of tools that take a kernel."""

    source: str = Field(description="a version such as v0, or a whole kernel")
    edits: tuple[SourceEdit, ...] = Field(default=(), description="they make a new version of it")


def resolve_source(bench: Workbench, said: str, edits: Sequence[SourceEdit] = ()) -> tuple[str, str]:
    """Return the version and the text of a kernel that a call names, sends or edits.

    Raises:
        ToolFault: `unknown_version`, `empty_source`, or a fault of an edit.
    """
    text = said.strip()
    if not text:
        raise ToolFault(
            "empty_source", "`source` is empty", "Give a version such as v0, or the whole kernel."
        )
    is_name = len(text) < 8 and "\n" not in text
    base = bench.read_version(text) if is_name else said.strip("\n") + "\n"
    for number, edit in enumerate(edits, 1):
        base = _apply_edit(base, edit, number, text if is_name else "the source")
    if edits and is_name and base == bench.read_version(text):
        raise ToolFault("edit_changes_nothing", f"the edits leave {text} as it is", "Change something.")
    return bench.add_version(base), base


def _apply_edit(source: str, edit: SourceEdit, number: int, name: str) -> str:
    count = source.count(edit.find)
    if count == 1:
        return source.replace(edit.find, edit.replace)
    first = edit.find.strip().split("\n")[0][:_SHOWN]
    if count:
        raise ToolFault(
            "edit_not_unique",
            f"edit {number}: `find` is in {name} {count} times ({first!r})",
            "Take more lines around it into `find`.",
        )
    near = get_close_matches(first, [line.strip() for line in source.split("\n")], n=1, cutoff=0.6)
    hint = f"The nearest line is {near[0]!r}." if near else f"No line of {name} is like it."
    raise ToolFault(
        "edit_not_found", f"edit {number}: {first!r} is not in {name}", f"{hint} Copy the text exactly."
    )
