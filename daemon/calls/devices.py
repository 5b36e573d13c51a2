"""Time on devices: what an evaluation may take is held before it, and settled beside its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from daemon.calls.errors import no_budget
from daemon.calls.till import Till, Time
from state.events import EvaluationCompleted, Event
from state.model import Amount, Resource, seconds
from state.records import NewEvent

T = TypeVar("T")


class Use:
    """The use of a device for one evaluation; where nothing limits that, it is not even noted."""

    def __init__(self, till: Till | None, time: Time | None) -> None:
        self._till = till
        self._time = time
        self._settled = False
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work in the time that is held.

        Raises:
            RoleError: `budget`: it takes longer than that.
        """
        if self._time is None:
            return await work
        try:
            async with asyncio.timeout(self._time.seconds):
                return await work
        except TimeoutError:
            raise no_budget(Resource.DEVICE_SECONDS.value) from None

    def took(self, event: EvaluationCompleted) -> float:
        """Return the seconds that a verdict took of a device: what was predicted took none."""
        timed = event.evaluation.benchmark
        if timed is not None and timed.predicted:
            return 0.0
        return seconds(min(self._most(), sum(event.stage_ms.values()) / 1000))

    def told(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Return an evaluation's events, its verdict with what it took."""
        if self._time is None:
            return tuple(events)
        return tuple(
            one.model_copy(update={"device_seconds": self.took(one)})
            if isinstance(one, EvaluationCompleted)
            else one
            for one in events
        )

    def ending(self, events: Iterable[Event]) -> list[NewEvent]:
        """Return what settles the use, to be logged beside these events of it."""
        if self._till is None or self._time is None:
            return []
        verdicts = [one for one in events if isinstance(one, EvaluationCompleted)]
        took = sum(self.took(one) for one in verdicts) if verdicts else self._elapsed()
        time, self._time = self._time, None
        self._settled = True
        return [self._till.ending(time, Amount(device_seconds=took))]

    async def close(self, run: str) -> None:
        """Settle what is held still, at all that passed: there is no verdict. Who waits looks again."""
        if self._till is not None and self._time is not None:
            time, took = self._time, self._elapsed()
            self._time = None
            await self._till.release(time, Amount(device_seconds=took))
        elif self._till is not None and self._settled:
            await self._till.freed(run)

    def _most(self) -> float:
        return self._time.seconds if self._time is not None else 0.0

    def _elapsed(self) -> float:
        return seconds(min(self._most(), max(0.0, self._loop.time() - self._began)))


@asynccontextmanager
async def on_device(till: Till | None, run: str, key: str, most_seconds: float) -> AsyncIterator[Use]:
    """Hold what an evaluation may take of a device until it is settled; None as `till`: there are no budgets.

    Raises:
        RoleError: `budget`: nothing is left for the run.
        Held: the run is paused or over, or waits for a day that has room.
    """
    use = Use(till, None if till is None else await till.hold_device(run, key, most_seconds))
    try:
        yield use
    finally:
        await use.close(run)
