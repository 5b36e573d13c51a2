"""The proposer `agent`: starts a coding agent for each plan, and takes the kernel that it submits.

The agent's process is not in the log and cannot be continued. Where this process was ended, the agent is
started again, with the versions and verdicts that its predecessor had reached. That repeat costs again.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent_core.effects import ImplementRequest, PlanRequest
from agent_core.proposers import AGENT
from agent_core.roles import KernelAnswer, PlanAnswer, ReadBlob, RoleError
from agent_core.roles.llm import prompt_values
from agent_core.roles.llm.quoting import single_line
from agent_core.roles.llm.session import find_best, make_answer, make_bench
from agent_core.roles.mechanical import MechanicalLearner
from agent_core.tools.registry import list_tools
from daemon.agents.scratch import ScratchFolder, agent_command, agent_environment, task_text
from daemon.agents.slot_tools import AgentSession, SlotTools
from daemon.agents.transcript import Transcript, read_usage
from daemon.structured_log import structlog
from remote.processes import kill_group, kill_process, start_process
from state.crash import crash_point
from state.events import AgentEnded, SessionEnded
from state.log import EventLog
from state.model import (
    AgentConfig,
    EffectKey,
    ErrorInfo,
    Plan,
    Prediction,
    SessionEndReason,
    Usage,
    digest_of,
    round_usd,
)

if TYPE_CHECKING:
    from daemon.runner import EffectRunner

LAST_SECONDS = 30.0
"""How long an agent that has submitted may take to end; what it cost stands at the end of its output."""
LAST_READ_SECONDS = 5.0
LOOK_SECONDS = 0.5
_NOTE = "by a coding agent"

log: structlog.stdlib.BoundLogger = structlog.get_logger("agents")


@dataclass(frozen=True, slots=True)
class _AgentEnd:
    """How an agent's process ended."""

    reason: SessionEndReason
    status: int | None
    transcript: Transcript
    seconds: float


class AgentProposer(MechanicalLearner):
    """Plans and implements one effect by a coding agent's process."""

    name = AGENT
    repairs = False

    def __init__(self, run: str, key: EffectKey, *, event_log: EventLog, runner: EffectRunner) -> None:
        self._run = run
        self._key = key
        self._log = event_log
        self._runner = runner

    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer:
        """Return the plan to let the agent decide; what it decides is in its session."""
        del request, read
        prediction = Prediction(speedup=1.0, reason="the agent decides, and says nothing in advance")
        plan = Plan(technique=AGENT, site="", title="what a coding agent finds", prediction=prediction)
        return PlanAnswer(plan)

    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:
        """Return the kernel that the agent submitted, or the fastest correct one that it had evaluated.

        Raises:
            RoleError: it could not be started, or no kernel came of it.
        """
        host = AgentSession(self._run, self._key, calls=None, event_log=self._log, runner=self._runner)
        progress = host.progress
        if progress is not None and progress.ended is not None:  # only the outcome was missing
            return self._answer_again(read)
        assert request.session is not None
        config = self._log.run_state(self._run).config.agent
        tools = [tool.name for tool in list_tools(request.target)]
        await host.begin_for_agent(tools, request.session.turns)
        bench = make_bench(request, read, host)
        files = {path: read(digest) for path, digest in request.problem.files.items()}
        files["kernel.py"] = prompt_values.source_of(request.parent, read).encode()
        files["TASK.md"] = self._describe_task(request, config).encode()
        scratch = await asyncio.to_thread(
            ScratchFolder.create, self._log.home, self._run, str(self._key), files
        )
        slot = SlotTools(host, bench, scratch.token, most_calls=request.session.turns)
        reserved_usd = round_usd(request.session.cap_usd or 0.0)
        try:
            await slot.restore()
            command = await asyncio.to_thread(self._make_command, config, scratch, reserved_usd)
            async with slot.serve(scratch.path), self._reserve(reserved_usd):
                end = await self._run_agent(command, config, scratch, slot=slot)
                if slot.failure is not None:
                    raise slot.failure
                usage = await self._record_end(end, slot)
        finally:
            await asyncio.to_thread(scratch.remove)
        submitted = slot.end.submitted if slot.end is not None else None
        if submitted is None and end.reason is not SessionEndReason.GAVE_UP:
            submitted = find_best(bench)
        detail = slot.end.reason if slot.end is not None else f"status {end.status}"
        await host.end(end.reason, detail, None if submitted is None else submitted.source)
        if submitted is None:
            raise _no_kernel(end.reason, detail, usage)
        others = slot.end.further if slot.end is not None else ()
        further = tuple(make_answer(one, one.title or _NOTE) for one in others)
        return replace(make_answer(submitted, submitted.title or _NOTE), usage=usage, further=further)

    def _answer_again(self, read: ReadBlob) -> KernelAnswer:
        """Return the outcome of a session that has ended in the log."""
        found = self._log.event_by_key(self._run, f"{self._key}#session#end")
        assert found is not None
        assert isinstance(found.event, SessionEnded)
        delivery = self._log.run_state(self._run).open[str(self._key)].delivery
        usage = next(
            (
                item.event.usage
                for number in range(delivery, 0, -1)
                if (item := self._log.event_by_key(self._run, f"{self._key}#agent{number}")) is not None
                and isinstance(item.event, AgentEnded)
            ),
            Usage(),
        )
        if found.event.submitted is None:
            raise _no_kernel(found.event.reason, found.event.detail, usage)
        return KernelAnswer(read(found.event.submitted).decode(), _NOTE, usage=usage)

    def _describe_task(self, request: ImplementRequest, config: AgentConfig) -> str:
        assert request.session is not None
        parent, bounds = request.parent, request.session.bounds
        standing = (
            f"It takes {prompt_values.format_latency(parent.benchmark)}, is limited by {parent.bottleneck}, "
            f"and no kernel can be faster than {bounds.tight_ms:.6g} ms."
        )
        return task_text(seconds=config.seconds, tool_calls=request.session.turns, standing=standing)

    # --- the process -------------------------------------------------------------------------------

    def _make_command(self, config: AgentConfig, scratch: ScratchFolder, usd: float) -> list[str]:
        home, is_weak_allowed = self._log.home.resolve(), self._runner.allow_weak_jail
        return agent_command(home, config, scratch.path, usd=usd, allow_weak=is_weak_allowed)

    @asynccontextmanager
    async def _reserve(self, reserved_usd: float) -> AsyncIterator[None]:
        """Hold what the agent may cost until its end is logged. If it never is, the agent is lost."""
        ledger, key = self._runner.ledger, str(self._key)
        await ledger.reserve_agent(self._run, key, reserved_usd)
        try:
            yield
        finally:
            await ledger.settle_lost_agent(self._run, key)

    async def _run_agent(
        self, command: Sequence[str], config: AgentConfig, scratch: ScratchFolder, *, slot: SlotTools
    ) -> _AgentEnd:
        began, transcript = time.monotonic(), Transcript()
        try:
            process = await start_process(
                *command,
                cwd=scratch.path,
                env=agent_environment(config, scratch.path),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
            )
        except OSError as error:
            await self._record_end(_AgentEnd(SessionEndReason.EXITED, None, Transcript(), 0.0), slot)
            raise RoleError(ErrorInfo(code="no_agent", message=f"run.agent.command: {error}")) from error
        reading = asyncio.create_task(transcript.read(process.stdout))
        try:
            reason = await self._watch(process, slot, began + config.seconds)
        finally:
            kill_group(process.pid)
            await asyncio.wait({reading}, timeout=LAST_READ_SECONDS)  # to the end of what it wrote
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await kill_process(process)
        crash_point("agent.ended")
        log.info("agent_ended", run=self._run, key=str(self._key), reason=reason, status=process.returncode)
        return _AgentEnd(reason, process.returncode, transcript, round(time.monotonic() - began, 3))

    async def _watch(self, process: Process, slot: SlotTools, deadline: float) -> SessionEndReason:
        """Return why the agent's time is over: it ended, it submitted, or it ran out of time."""
        exits = asyncio.create_task(process.wait())
        try:
            while time.monotonic() < deadline:
                if (await asyncio.wait({exits}, timeout=LOOK_SECONDS))[0]:
                    return slot.reason or SessionEndReason.EXITED
                if slot.ended.is_set():
                    left = min(LAST_SECONDS, max(0.0, deadline - time.monotonic()))
                    await asyncio.wait({exits}, timeout=0.0 if slot.failure else left)
                    return slot.reason or SessionEndReason.EXITED
                if self._log.run_state(self._run).is_round_over(self._key):
                    return SessionEndReason.DEADLINE
            return slot.reason or SessionEndReason.DEADLINE
        finally:
            exits.cancel()
            await asyncio.gather(exits, return_exceptions=True)

    async def _record_end(self, end: _AgentEnd, slot: SlotTools) -> Usage:
        """Log how the process ended, with its transcript, and return what it says that it cost."""
        data = end.transcript.content()
        usage = read_usage(data) if end.status is not None else Usage()
        effect = self._log.run_state(self._run).open[str(self._key)]
        held_usd = effect.agent.usd if effect.agent is not None else 0.0
        ended = AgentEnded(
            key=str(self._key),
            delivery=effect.delivery,
            reason=end.reason.value,
            status=end.status,
            transcript=digest_of(data),
            cut=end.transcript.is_cut,
            tool_calls=slot.calls,
            seconds=end.seconds,
            usage=usage,
            charged_usd=held_usd if usage.cost_usd is None else 0.0,
        )
        await self._runner.ledger.settle_agent(self._run, ended, data)
        return usage

    async def aclose(self) -> None:
        """Do nothing: the process ended with its effect."""


def _no_kernel(reason: SessionEndReason, detail: str, usage: Usage) -> RoleError:
    message = f"the coding agent ended without a kernel that competes: {reason.value}, {detail}"
    return RoleError(ErrorInfo(code=f"session_{reason.value}", message=single_line(message, 1000)), usage)
