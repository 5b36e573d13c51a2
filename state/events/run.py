"""Events of a run as a whole: how it began, what it waited for, how it ended, its settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from state.events.base import Event
from state.model import (
    Digest,
    ErrorInfo,
    LatencyBounds,
    Level,
    PauseCause,
    ProblemRef,
    Rebase,
    RunConfig,
    StopReason,
)


class RunCreated(Event):
    """A run begins: the whole problem, the kernel to start from, and the effective configuration.

    `pinned` are the keys that somebody set for this run: edits of the configuration file leave them alone.
    `prompts` is the version of the prompts that its LLM roles are given, which is their blob; None where that
    was not recorded.
    """

    version = 9
    type: Literal["RunCreated"] = "RunCreated"
    config: RunConfig
    problem: ProblemRef
    kernel: Digest
    bounds: LatencyBounds
    toolchain: str
    code_version: str
    pinned: tuple[str, ...] = ()
    prompts: Digest | None = None


class RunForked(Event):
    """A run continues another's history from one of its events; nothing is copied.

    Effects in flight there are abandoned. With `rebase`, kernels are judged by something else from here on:
    the round under way is abandoned too, and the beam is judged anew first. `pinned` as in RunCreated.
    """

    version = 5
    type: Literal["RunForked"] = "RunForked"
    parent: str
    parent_seq: int = Field(ge=1)
    parent_hash: Digest
    rebase: Rebase | None = None
    pinned: tuple[str, ...] = ()


class RunPaused(Event):
    """Nothing new starts in the run. `needs_approval` names the points at which it waits for a person.

    `cause` says what ends the pause; `reason` is for people, and nothing goes by it.
    """

    version = 4
    type: Literal["RunPaused"] = "RunPaused"
    reason: str
    cause: PauseCause = PauseCause.PERSON
    needs_approval: tuple[str, ...] = ()


class RunResumed(Event):
    """The run goes on. `approved` are the points that it waited at, which a person has let pass."""

    version = 2
    type: Literal["RunResumed"] = "RunResumed"
    reason: str = ""
    approved: tuple[str, ...] = ()


class RunCancelled(Event):
    type: Literal["RunCancelled"] = "RunCancelled"
    reason: str


class RunCompleted(Event):
    """The run is over. `level` is how much of the best kernel was compared; None where there is none."""

    version = 2
    type: Literal["RunCompleted"] = "RunCompleted"
    reason: StopReason
    detail: str = ""
    level: Level | None = None


class ConfigChanged(Event):
    """New effective settings, of a run or, in the system stream, of the configuration file.

    Those of a run count from its next RoundStarted on. `pinned` and `prompts` as in RunCreated; no `prompts`
    leaves them as they are.
    """

    version = 9
    type: Literal["ConfigChanged"] = "ConfigChanged"
    config: JsonValue
    pinned: tuple[str, ...] = ()
    prompts: Digest | None = None


class ConfigRefused(Event):
    """The configuration file, or a prompt, was edited and has faults; what was in force stays so."""

    type: Literal["ConfigRefused"] = "ConfigRefused"
    error: ErrorInfo
