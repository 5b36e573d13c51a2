"""Device time: the maximum of an evaluation is held before it, and settled with its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from daemon.calls.budget_ledger import BudgetLedger, HeldTime
from daemon.calls.errors import no_budget_error
from daemon.outcomes import EvaluationEnd, InfrastructureFailure
from state.model import Amount, Resource, round_seconds
from state.records import NewEvent


class DeviceLease:
    """The use of a device for one evaluation; without a limit on device time, it records nothing."""

    def __init__(self, ledger: BudgetLedger | None, time: HeldTime | None) -> None:
        self._ledger = ledger
        self._time = time
        self._settled = False
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def run_within(self, work: Coroutine[Any, Any, EvaluationEnd]) -> EvaluationEnd:
        """Evaluate within the held time, and add the device seconds that were used to how it ended."""
        if self._time is None:
            return await work
        try:
            async with asyncio.timeout(self._time.seconds):
                end = await work
        except TimeoutError:
            end = InfrastructureFailure.of_role(no_budget_error(Resource.DEVICE_SECONDS.value))
        return replace(end, device_seconds=self._used_seconds(end))

    def _used_seconds(self, end: EvaluationEnd) -> float:
        """Return the seconds: none for a prediction, and all elapsed time if there is no verdict."""
        if isinstance(end, InfrastructureFailure):
            return self._elapsed_seconds()
        if end.device_seconds is not None:
            return round_seconds(min(self._limit_seconds(), end.device_seconds))
        timed = end.evaluation.benchmark
        if timed is not None and timed.predicted:
            return 0.0
        return round_seconds(min(self._limit_seconds(), sum(end.stage_ms.values()) / 1000))

    def settlement_events(self, end: EvaluationEnd) -> list[NewEvent]:
        """Return the settlement of the lease, to be logged with the events of this end."""
        if self._ledger is None or self._time is None:
            return []
        took = round_seconds(end.device_seconds or 0.0)
        time, self._time = self._time, None
        self._settled = True
        return [self._ledger.hold_settlement(time, Amount(device_seconds=took))]

    async def close(self, run: str) -> None:
        """Settle what is still held, at all elapsed time because there is no outcome. Then wake the
        waiters.
        """
        if self._ledger is not None and self._time is not None:
            time, took = self._time, self._elapsed_seconds()
            self._time = None
            await self._ledger.release(time, Amount(device_seconds=took))
        elif self._ledger is not None and self._settled:
            await self._ledger.notify_freed(run)

    def _limit_seconds(self) -> float:
        return self._time.seconds if self._time is not None else 0.0

    def _elapsed_seconds(self) -> float:
        return round_seconds(min(self._limit_seconds(), max(0.0, self._loop.time() - self._began)))


@asynccontextmanager
async def lease_device(
    ledger: BudgetLedger | None, run: str, key: str, most_seconds: float
) -> AsyncIterator[DeviceLease]:
    """Hold device time for an evaluation until it is settled. `ledger` is None if there are no budgets.

    Raises:
        RoleError: `budget`: nothing is left for the run.
        EffectDeferred: the run is paused or over, or waits for a day that has room.
    """
    use = DeviceLease(ledger, None if ledger is None else await ledger.hold_device(run, key, most_seconds))
    try:
        yield use
    finally:
        await use.close(run)
