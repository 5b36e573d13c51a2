"""Events of a run as a whole: its beginning, pauses, settings and end."""

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
    StartName,
    StopReason,
)


class RunCreated(Event):
    """A run begins, with the whole problem, the initial kernel, and the effective configuration.

    `pinned` are the keys that somebody set for this run; edits of the configuration file do not change them.
    `prompts` is the version of the prompts of its LLM roles, and the digest of their blob; None if it was not
    recorded. `starts` are the kernels that it begins from; `kernel` is None if that is the translation
    alone.
    """

    version = 11
    family = "run"
    type: Literal["RunCreated"] = "RunCreated"
    config: RunConfig
    problem: ProblemRef
    kernel: Digest | None
    bounds: LatencyBounds
    toolchain: str
    code_version: str
    pinned: tuple[str, ...] = ()
    prompts: Digest | None = None
    starts: tuple[StartName, ...] = ("kernel",)


class RunForked(Event):
    """A run continues another run's history from one of its events; nothing is copied.

    Effects that were in flight at that event are abandoned. With `rebase`, the problem, target or evaluator
    changes: the current round is abandoned too, and the beam is judged again first. `pinned` is as in
    RunCreated.
    """

    version = 7
    family = "run"
    type: Literal["RunForked"] = "RunForked"
    parent: str
    parent_seq: int = Field(ge=1)
    parent_hash: Digest
    rebase: Rebase | None = None
    pinned: tuple[str, ...] = ()


class RunPaused(Event):
    """Nothing new starts in the run. `needs_approval` names the points at which it waits for a person.

    `cause` says what ends the pause; `reason` is for people only.
    """

    version = 5
    family = "run"
    type: Literal["RunPaused"] = "RunPaused"
    reason: str
    cause: PauseCause = PauseCause.PERSON
    needs_approval: tuple[str, ...] = ()


class RunResumed(Event):
    """The run goes on. `approved` are the points that it waited at and that a person has approved."""

    version = 2
    family = "run"
    type: Literal["RunResumed"] = "RunResumed"
    reason: str = ""
    approved: tuple[str, ...] = ()


class RunCancelled(Event):
    family = "run"
    type: Literal["RunCancelled"] = "RunCancelled"
    reason: str


class RunCompleted(Event):
    """The run is over. `level` is how thoroughly the best kernel was compared; None if there is none."""

    version = 2
    family = "run"
    type: Literal["RunCompleted"] = "RunCompleted"
    reason: StopReason
    detail: str = ""
    level: Level | None = None


class ConfigChanged(Event):
    """New effective settings of a run or, in the system stream, of the configuration file.

    A run's settings count from its next RoundStarted on. `pinned` and `prompts` are as in RunCreated; without
    `prompts`, they stay as they are.
    """

    version = 11
    family = "run"
    type: Literal["ConfigChanged"] = "ConfigChanged"
    config: JsonValue
    pinned: tuple[str, ...] = ()
    prompts: Digest | None = None


class ConfigRefused(Event):
    """An edited configuration file or prompt has faults; the previous one stays in force."""

    family = "run"
    type: Literal["ConfigRefused"] = "ConfigRefused"
    error: ErrorInfo
