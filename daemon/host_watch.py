"""Pauses runs when no host is left to judge their kernels, and resumes them when a host answers.

Open effects stay open meanwhile, and are judged later. A run loses no kernel if its hosts are away
overnight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from daemon.optimistic_append import append_if_current
from daemon.structured_log import structlog
from daemon.workers import Workers
from remote.errors import NoHostError, RemoteError
from remote.registry import EvaluatorSpec
from state.events import RunPaused, RunResumed
from state.fold import RunState
from state.log import EventLog
from state.model import PauseCause, RunStatus

LOOK_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 4.0
LONGEST_PAUSE_SECONDS = 120.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("hosts")


async def pause_without_host(event_log: EventLog, run: str, error: NoHostError) -> None:
    """Pause a run that has no host left.

    Raises:
        state.errors.StateError: the log failed.
    """
    reason = f"{error.message}; it goes on when a host answers"

    def say(state: RunState) -> RunPaused | None:
        running = state.status is RunStatus.RUNNING
        return RunPaused(reason=reason, cause=PauseCause.HOSTS) if running else None

    if await append_if_current(event_log, [run], say):
        log.warning("no_host_left", run=run, error=error.message)


@dataclass(slots=True)
class _HostRetry:
    """When to ask hosts again after none of them answered, on the monotonic clock."""

    pause_seconds: float = field(default_factory=lambda: FIRST_PAUSE_SECONDS)
    again: float = field(default_factory=lambda: time.monotonic() + FIRST_PAUSE_SECONDS)

    def back_off(self) -> None:
        self.pause_seconds = min(2 * self.pause_seconds, LONGEST_PAUSE_SECONDS)
        self.again = time.monotonic() + self.pause_seconds


class HostWatch:
    """Resumes paused runs when a host answers; `touched` is called with each of them.

    `focus` names the runs that this process advances; None means all.
    """

    def __init__(
        self,
        event_log: EventLog,
        workers: Workers,
        *,
        touched: Callable[[str], None],
        focus: set[str] | None = None,
    ) -> None:
        self._log = event_log
        self._workers = workers
        self._touched = touched
        self._focus = focus
        self._asking: dict[EvaluatorSpec, _HostRetry] = {}

    async def watch(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.poll()

    async def poll(self) -> None:
        """Ask the hosts of the runs that wait for some, if their retry is due."""
        waiting: dict[EvaluatorSpec, list[str]] = {}
        for run in self._log.active_runs():
            state = self._log.run_state(run)
            if _waits_for_hosts(state) and (self._focus is None or run in self._focus):
                waiting.setdefault(EvaluatorSpec.from_config(state.config), []).append(run)
        self._asking = {wanted: self._asking.get(wanted) or _HostRetry() for wanted in waiting}
        due = [one for one, asking in self._asking.items() if time.monotonic() >= asking.again]
        await asyncio.gather(*(self._probe_hosts(wanted, waiting[wanted]) for wanted in due))

    async def _probe_hosts(self, wanted: EvaluatorSpec, runs: list[str]) -> None:
        try:
            with self._workers.hold_evaluator(self._log.run_state(runs[0]).config) as evaluator:
                await evaluator.prepare()
        except RemoteError as error:
            self._asking[wanted].back_off()
            log.info("still_no_host", runs=runs, error=str(error))
            return
        resumed = RunResumed(reason="a host answers again")
        for run in runs:
            await append_if_current(
                self._log, [run], lambda state: resumed if _waits_for_hosts(state) else None
            )
            self._touched(run)


def _waits_for_hosts(state: RunState) -> bool:
    return state.status is RunStatus.PAUSED and state.pause_cause is PauseCause.HOSTS
