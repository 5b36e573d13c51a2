"""The server's tools that start and steer runs: each puts a command into the inbox, and reads its answer."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue

from agentctl.app import Session
from agentctl.command_answers import (
    SentCommand,
    find_proposal_result,
    is_owned,
    refuse_illegal_command,
    send_command,
    wait_for_answer,
)
from agentctl.dry_run import estimate_submission, format_estimate
from agentctl.mcp.answers import LatencyClaim, RefusedCall, ToolInput, ToolOutput
from agentctl.mcp.run_views import MOST_WAIT_SECONDS, start_hint
from agentctl.page.control import find_cli_only
from agentctl.run_flags import build_submission, effective_from_flags, load_named_problem
from agentctl.run_lookup import complete_run_id
from agentctl.verbs.fork import build_fork
from daemon.command_models import Cancel, Command, Pause, Propose, Resume, Submit, run_id
from daemon.config import EffectiveConfig
from daemon.run_settings import expand_run_keys
from state.events import EvaluationCompleted, KernelDiscarded, KernelKept
from state.reader import LogReader
from targets.registry import load_target

LOOK_SECONDS = 0.2

CommandState = Literal["done", "queued"]

_SETTINGS: Any = Field(
    default_factory=dict,
    description="keys of the configuration, such as search.rounds; `run.` may be left out",
)


class CommandOutput(ToolOutput):
    """What became of a command: done by the owner of the home, or queued because nobody owns it."""

    command: str
    state: CommandState
    run: str
    result: JsonValue = None

    def render(self) -> str:
        return f"{self.state}: {self.run}"


def _carry_out(home: Path, command: Command, run: str | None, *, then: str) -> CommandOutput:
    """Send a command and wait for its answer; without an owner it stays queued."""
    sent = send_command(home, command.model_copy(update={"origin": "mcp"}))
    name = run or _new_run(sent, command)
    answer = wait_for_answer(home, sent)
    if answer is None:
        return CommandOutput(command=sent.id, state="queued", run=name, next=start_hint(home))
    return CommandOutput(command=sent.id, state="done", run=name, result=answer.result, next=then)


def _new_run(sent: SentCommand, command: Command) -> str:
    assert isinstance(command, Submit), "other commands name their run"
    return run_id(sent.id, command.config.problem)


class SubmitRunInput(ToolInput):
    """Arguments of `submit_run` and `dry_run`."""

    problem: str = Field(description="a problem's name, or the absolute path of its folder")
    kernel: str = Field(default="", description="a kernel's source to begin from; empty: the problem's own")
    size: str = Field(default="", description="full or reduced")
    target: str = Field(default="", description="the device")
    rounds: int | None = Field(default=None, ge=1)
    seed: int | None = None
    settings: dict[str, JsonValue] = _SETTINGS


def _require_source(text: str) -> None:
    """Refuse the name of a version where its source is asked for."""
    if re.fullmatch(r"\w+", text.strip()):
        raise RefusedCall(
            "not_a_source", f"{text.strip()!r} is no kernel's source",
            "`read_kernel` returns the source of a version, `best` that of a run.",
        )  # fmt: skip


def _read_submission(home: Path, said: SubmitRunInput) -> tuple[EffectiveConfig, Submit]:
    flags: dict[str, Any] = {
        "problem": said.problem, "size": said.size or None, "target": said.target or None,
        "rounds": said.rounds, "seed": said.seed, "settings": _as_assignments(said.settings),
    }  # fmt: skip
    wanted = effective_from_flags(Session(home_option=home), flags)
    problem = load_named_problem(said.problem)
    if said.kernel:
        _require_source(said.kernel)
        error = load_target(wanted.config.run.target).language.lint(said.kernel.encode())
        if error is not None:
            where = f"line {error.line}: " if error.line else ""
            raise RefusedCall(error.code, f"the kernel: {where}{error.message}", error.hint or "")
    return wanted, build_submission(wanted, problem, said.kernel or None)


def _as_assignments(settings: dict[str, JsonValue]) -> tuple[str, ...]:
    """Return settings as KEY=VALUE.

    Raises:
        RefusedCall: one may be set by a person alone.
    """
    for name, key in zip(settings, expand_run_keys(settings), strict=True):
        if (why := find_cli_only(key)) is not None:
            raise RefusedCall(
                "cli_only", f"{name} is not set from here: {why}", "A person can, with agentctl."
            )
    return tuple(f"{name}={json.dumps(value)}" for name, value in settings.items())


def submit_run(home: Path, said: SubmitRunInput) -> CommandOutput:
    """Start a run."""
    _, command = _read_submission(home, said)
    return _carry_out(
        home, command, None, then="`wait` returns when it has ended, or earlier by a condition."
    )


class DryRunOutput(ToolOutput):
    """What a run's models would cost in US$: as assumed, at most, and the cap; what is unknown is null."""

    usd: float | None
    most_usd: float | None
    cap_usd: float
    lines: tuple[str, ...]

    def render(self) -> str:
        return "\n".join(self.lines)


def dry_run(home: Path, said: SubmitRunInput) -> DryRunOutput:
    """Estimate what a run would cost."""
    wanted, command = _read_submission(home, said)
    found = estimate_submission(home, wanted, command)
    return DryRunOutput(
        usd=found.usd, most_usd=found.most_usd, cap_usd=found.cap_usd, lines=tuple(format_estimate(found)),
        next="`submit_run` with the same arguments starts it.",
    )  # fmt: skip


class SteerInput(ToolInput):
    """Arguments of `pause`, `resume` and `cancel`."""

    run: str = Field(description="a run's id")
    reason: str = Field(default="asked for", max_length=1000, description="kept in the log")


def pause(home: Path, said: SteerInput) -> CommandOutput:
    """Pause a run."""
    run = complete_run_id(home, said.run)
    return _steer(home, Pause(run=run, reason=said.reason), then="`resume` continues it.")


def resume(home: Path, said: SteerInput) -> CommandOutput:
    """Continue a run."""
    run = complete_run_id(home, said.run)
    return _steer(home, Resume(run=run, reason=said.reason), then="`wait` returns when it has ended.")


def cancel(home: Path, said: SteerInput) -> CommandOutput:
    """End a run for good."""
    run = complete_run_id(home, said.run)
    return _steer(home, Cancel(run=run, reason=said.reason), then="`best` still returns its best kernel.")


def _steer(home: Path, command: Pause | Resume | Cancel, *, then: str) -> CommandOutput:
    refuse_illegal_command(home, command)
    return _carry_out(home, command, command.run, then=then)


class ForkInput(ToolInput):
    """Arguments of `fork`."""

    run: str = Field(description="a run's id, or RUN@SEQ for an event of it")
    settings: dict[str, JsonValue] = _SETTINGS


def fork(home: Path, said: ForkInput) -> CommandOutput:
    """Continue a run as another."""
    wanted = build_fork(Session(home_option=home), said.run, _as_assignments(said.settings), rewind=False)
    command = wanted.command.model_copy(update={"origin": "mcp"})
    sent = send_command(home, command)
    child = run_id(sent.id, wanted.problem)
    answer = wait_for_answer(home, sent)
    if answer is None:
        return CommandOutput(command=sent.id, state="queued", run=child, next=start_hint(home))
    return CommandOutput(
        command=sent.id,
        state="done",
        run=child,
        result=answer.result,
        next="`wait` returns when it has ended.",
    )


class ProposeInput(ToolInput):
    """Arguments of `propose`."""

    run: str = Field(description="a run's id")
    source: str = Field(min_length=1, description="the whole kernel")
    note: str = Field(default="", max_length=1000, description="what it changes")
    wait_seconds: float = Field(
        default=0, ge=0, le=MOST_WAIT_SECONDS, description="wait so long for a verdict"
    )


class ProposeOutput(CommandOutput):
    """The candidate that a proposed kernel became; `verdict` and `decision` are null while unknown."""

    candidate: str | None = None
    verdict: str | None = None
    decision: str | None = None

    def render(self) -> str:
        if self.candidate is None:
            return super().render()
        verdict, decision = self.verdict or "no verdict yet", self.decision or "undecided"
        return f"{self.candidate} of {self.run}: {verdict}, {decision}"


def propose(home: Path, said: ProposeInput) -> ProposeOutput:
    """Add a kernel to a run."""
    _require_source(said.source)
    run = complete_run_id(home, said.run)
    command = Propose(run=run, source=said.source, note=said.note, origin="mcp")
    refuse_illegal_command(home, command)
    sent = send_command(home, command)
    answer = wait_for_answer(home, sent)
    if answer is None:
        return ProposeOutput(command=sent.id, state="queued", run=run, next=start_hint(home))
    result: dict[str, Any] = answer.result if isinstance(answer.result, dict) else {}
    candidate = str(result["candidate"])
    found = _wait_for_fate(home, run, candidate, after=sent.after, seconds=said.wait_seconds)
    return ProposeOutput(
        command=sent.id, state="done", run=run, result=answer.result, candidate=candidate, **found,
        next=f"`why` with candidate {candidate} tells what came of it.",
    )  # fmt: skip


def _wait_for_fate(home: Path, run: str, candidate: str, *, after: int, seconds: float) -> dict[str, Any]:
    """Return verdict, decision and latency of a proposed kernel, as far as they are known by then."""
    deadline = time.monotonic() + seconds
    while True:
        over = time.monotonic() >= deadline or not is_owned(home)
        with LogReader.open(home) as reader:
            fate = find_proposal_result(reader, run, candidate, after)
        verdict = fate.verdict.event if fate.verdict else None
        if verdict is not None or fate.decision is not None or over:
            break
        time.sleep(LOOK_SECONDS)
    found: dict[str, Any] = {}
    if isinstance(verdict, EvaluationCompleted):
        made = verdict.evaluation
        found["verdict"] = made.verdict.value
        if made.is_correct and made.benchmark is not None:
            claim = LatencyClaim.of_benchmark(candidate, made.benchmark, made.bottleneck)
            found["latencies"] = (claim,)
    if fate.decision is not None and isinstance(fate.decision.event, KernelKept | KernelDiscarded):
        found["decision"] = "kept" if isinstance(fate.decision.event, KernelKept) else "discarded"
    return found
