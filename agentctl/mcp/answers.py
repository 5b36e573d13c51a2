"""What every tool of the server answers: latencies with their kind and interval, and typed faults."""

from __future__ import annotations

from typing import Any, Literal, Self

import click
from pydantic import ConfigDict, Field

from agent_core.tools.answers import ToolRefusal
from state.model import Benchmark, FrozenModel

LatencyKind = Literal["predicted", "measured"]


class LatencyClaim(FrozenModel):
    """A latency of a kernel: whether a model predicted it or a device measured it, and what limits it.

    `of` names the kernel: a version such as v3, or a candidate of a run.
    """

    of: str
    kind: LatencyKind
    ms: float
    lo_ms: float
    hi_ms: float
    limited_by: str | None = None
    unlike: str = ""
    """Why a prediction is to be trusted less: the kernel is unlike anything that was measured."""

    @classmethod
    def of_benchmark(cls, of: str, found: Benchmark, limited_by: str | None) -> Self:
        """Return what is known of a judged kernel's latency."""
        kind: LatencyKind = "predicted" if found.predicted else "measured"
        return cls(
            of=of, kind=kind, ms=found.latency_ms, lo_ms=found.lo_ms, hi_ms=found.hi_ms,
            limited_by=limited_by, unlike=found.unlike,
        )  # fmt: skip

    def render(self) -> str:
        """Return it in one line."""
        limit = f", limited by {self.limited_by}" if self.limited_by else ""
        odd = ", unlike anything measured" if self.unlike else ""
        return f"{self.of}: {self.ms:.6g} ms {self.kind} ({self.lo_ms:.6g} to {self.hi_ms:.6g}){odd}{limit}"


class ToolInput(FrozenModel):
    """Base of the arguments of all tools; unknown names are refused, so that a misspelt one is noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolOutput(FrozenModel):
    """Base of all answers. `next` says what would help next."""

    latencies: tuple[LatencyClaim, ...] = Field(
        default=(), description="each latency that is spoken of, with its kind, interval and limit"
    )
    next: str = ""

    def render(self) -> str:
        """Return the answer as text."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the answer as text, with its latencies and what would help next."""
        claims = [one.render() for one in self.latencies]
        parts = [self.render().strip("\n"), "\n".join(claims), f"Next: {self.next}" if self.next else ""]
        return "\n\n".join(part for part in parts if part)


class ServerFault(FrozenModel):
    """Why a call was not carried out: a stable code, what is wrong, and what to do."""

    code: str
    message: str
    hint: str = ""

    @classmethod
    def of_refusal(cls, refusal: ToolRefusal) -> Self:
        """Return the refusal of a session's tool."""
        return cls(code=refusal.code, message=refusal.message, hint=refusal.next)

    def text(self) -> str:
        """Return it as text."""
        return f"[{self.code}] {self.message}" + (f"\n\nNext: {self.hint}" if self.hint else "")


class RefusedCall(Exception):  # noqa: N818 - it is said to the client, not raised to people
    """A call cannot be carried out; `fault` is the answer."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.fault = ServerFault(code=code, message=message, hint=hint)


def describe_error(error: Exception) -> ServerFault | None:
    """Return what an error says to a client; None for a bug, which has no code."""
    if isinstance(error, RefusedCall):
        return error.fault
    if isinstance(error, click.ClickException):
        return ServerFault(code="bad_arguments", message=error.message)
    info: Any = getattr(error, "info", None)
    if info is not None and hasattr(info, "code"):
        return ServerFault(code=info.code, message=info.message, hint=info.hint or "")
    code = getattr(error, "code", None)
    if isinstance(code, str):
        return ServerFault(code=code, message=str(error), hint=getattr(error, "hint", None) or "")
    return None
