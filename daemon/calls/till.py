"""The till: no call is sent before it was reserved in every budget, and each is settled once.

So it is with time on devices, and with that in which runs are under way, where these have caps. What a call
may take is logged with its start, in the run and in the day's budget of the system stream, in one
transaction; so is what it took with its outcome. Reserving is done by one at a time, so that two calls never
take the same room; outcomes only give room back. All that counts is in the folds, so it survives a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from daemon.calls.clock import age_seconds
from daemon.calls.errors import Held, no_budget
from daemon.looking import append_seen
from stability import budget
from stability.budget import NOTHING, ON_DEVICES, Account, DayCaps
from state.errors import AppendError
from state.events import (
    CallCompleted,
    CallEnded,
    CallLost,
    CallStarted,
    DayReserved,
    DaySettled,
    Event,
    RunPaused,
)
from state.fold import RunState
from state.log import EventLog
from state.model import SYSTEM_STREAM, Amount, PauseCause, Question, Resource, RunStatus
from state.records import NewEvent

LOOK_SECONDS = 5.0
"""How long a call waits for room before it looks again: a cap may have been raised."""

LEAST_SECONDS = 1.0
"""With less of a device's time left, none is: nothing could be evaluated in it."""

DEVICE, TIME = "device", "time"
"""What names begin with under which time is held in the system stream; those of calls begin with a run's."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("calls")


@dataclass(frozen=True, slots=True)
class Time:
    """Time that is held under a name, in seconds."""

    name: str
    seconds: float


def call_name(run: str, key: str, call: int, attempt: int) -> str:
    """Return what a call is named by in the system stream."""
    return f"{run} {key} {call} {attempt}"


def lost(key: str, call: int, known: Question, *, priced: bool, reason: str) -> CallLost:
    """Return what becomes of an attempt of which nobody knows more: it costs all that was held for it."""
    held = known.held or Amount()
    return CallLost(
        key=key,
        call=call,
        attempt=known.attempts,
        role=known.role,
        model=known.model,
        cost_usd=held.usd if priced else None,
        charged_tokens=held.tokens,
        reason=reason,
    )


def all_lost(state: RunState, keys: Iterable[str], *, reason: str) -> tuple[CallLost, ...]:
    """Return what becomes of all calls under way of these effects, which end with them."""
    return tuple(
        lost(key, call, known, priced=state.prices.get(known.model) is not None, reason=reason)
        for key in keys
        if key in state.open
        for call, known in enumerate(state.open[key].calls)
        if known.held is not None
    )


def settled(run: str, outcome: CallEnded) -> NewEvent:
    """Return what an outcome means for the day's budget."""
    name = call_name(run, outcome.key, outcome.call, outcome.attempt)
    return NewEvent(SYSTEM_STREAM, DaySettled(call=name, amount=outcome.spent))


class Till:
    """Reserves and settles calls of all runs of one log."""

    def __init__(self, event_log: EventLog, caps: DayCaps, *, clock: Callable[[], float] = time.time) -> None:
        self._log = event_log
        self._clock = clock
        self._caps = caps
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        self._waiting: dict[str, tuple[str, DayCaps]] = {}
        self._own: set[str] = set()

    def change(self, caps: DayCaps) -> None:
        """Go by other caps on days from now on."""
        self._caps = caps
        self._free()

    @property
    def today(self) -> str:
        """The date, in UTC."""
        return datetime.fromtimestamp(self._clock(), tz=UTC).date().isoformat()

    # --- reserving ---------------------------------------------------------------------------------

    async def reserve(self, run: str, event: CallStarted, blobs: Sequence[bytes]) -> None:
        """Log that a call starts, once there is room for it.

        Raises:
            RoleError: `budget`: there is none, and nothing under way that may leave any.
            Held: the run is paused or over, or waits for a day that has room.
        """
        while True:
            freed = self._freed
            async with self._turn:
                state = self._log.state(run)
                if state.status is not RunStatus.RUNNING:
                    raise Held
                short = budget.lacking(self._accounts(run, state, event.reserved))
                if short is None:
                    await self._start(run, state, event, blobs)
                    return
                if not budget.frees_up(short):
                    await self._refuse(run, state, short)
            log.debug("call_waits", run=run, key=event.key, resource=short.resource.value)
            await self._wait(freed)

    async def _wait(self, freed: asyncio.Event) -> None:
        """Wait until something is settled, or it is time to look whether a cap was raised."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await freed.wait()

    def _accounts(self, run: str, state: RunState, wanted: Amount) -> tuple[Account, ...]:
        config = state.pending_config or state.config  # a cap that was raised counts at once
        age = age_seconds(self._log, run, self._clock()) if config.cap_seconds is not None else 0.0
        held = self._held(f"{DEVICE} {run} ").device_seconds if config.cap_device_seconds is not None else 0.0
        return (
            *budget.accounts(state, config, wanted, age_seconds=age, device_held=held),
            *self.day_accounts(wanted),
        )

    def day_accounts(self, wanted: Amount = budget.NOTHING) -> tuple[Account, ...]:
        """Return the accounts of today."""
        day = self._log.system().day
        return budget.day_accounts(day.on(self.today) if day is not None else None, self._caps, wanted)

    def _held(self, prefix: str) -> Amount:
        """Return what is held by all whose names begin so, whatever the day."""
        day = self._log.system().day
        holds = day.held.items() if day is not None else ()
        return sum((one.amount for name, one in holds if name.startswith(prefix)), Amount())

    async def _start(self, run: str, state: RunState, event: CallStarted, blobs: Sequence[bytes]) -> None:
        name = call_name(run, event.key, event.call, event.attempt)
        reserved = DayReserved(day=self.today, call=name, amount=event.reserved)
        try:
            await self._log.append([NewEvent(run, event), NewEvent(SYSTEM_STREAM, reserved)], blobs=blobs)
        except AppendError:
            if self._log.state(run).ended:
                raise Held from None
            raise
        if event.price is None and event.model not in state.prices:
            log.warning("price_unknown", run=run, model=event.model, cap_usd="cannot be kept for it")
        await self._warn(run)

    async def take_over(
        self, run: str, started: CallStarted, answered: CallCompleted, blobs: Sequence[bytes]
    ) -> None:
        """Log an answer that is there already as that of a call, of which nothing is to be reserved.

        Raises:
            Held: the run is paused or over.
        """
        if not _runs(self._log.state(run)):
            raise Held
        try:
            await self._log.append([NewEvent(run, started), NewEvent(run, answered)], blobs=blobs)
        except AppendError:
            if self._log.state(run).ended:
                raise Held from None
            raise

    async def _refuse(self, run: str, state: RunState, short: Account) -> None:
        """End a question, or an evaluation, for which there is no room today, or at all."""
        if short.resource in budget.DAILY:
            await self.close_day(run, short)
            raise Held
        if state.short.get(short.resource) != short.cap:
            await self._log.append([NewEvent(run, short.short())])
            log.warning("budget_used_up", run=run, resource=short.resource.value, cap=short.cap)
        raise no_budget(short.resource.value)

    async def close_day(self, run: str, short: Account) -> None:
        """Let a run wait for another day, or other caps."""
        self._waiting[run] = (self.today, self._caps)
        text = f"no room for more under the day's cap: {short.resource.value} of {short.cap:g}"
        await self.pause(run, text, PauseCause.DAY)
        log.warning("day_budget_used_up", run=run, resource=short.resource.value, cap=short.cap)

    async def pause(self, run: str, reason: str, cause: PauseCause) -> None:
        """Let a run wait before anything is reserved, if it does not yet."""
        await append_seen(
            self._log, [run], lambda now: RunPaused(reason=reason, cause=cause) if _runs(now) else None
        )

    # --- time --------------------------------------------------------------------------------------

    async def hold_device(self, run: str, key: str, most_seconds: float) -> Time | None:
        """Hold what an evaluation may take of a device: so many seconds, or what is left of the budgets.

        None where no budget limits that.

        Raises:
            RoleError: `budget`: nothing is left for the run.
            Held: the run is paused or over, or waits for a day that has room.
        """
        while True:
            freed = self._freed
            async with self._turn:
                state = self._log.state(run)
                if not _runs(state):
                    raise Held
                found = [one for one in self._accounts(run, state, NOTHING) if one.resource in ON_DEVICES]
                if not found:
                    return None
                tight = min(found, key=lambda one: one.left)
                if tight.left >= LEAST_SECONDS:
                    wanted = Amount(device_seconds=min(most_seconds, tight.left))
                    name = await self._hold(f"{DEVICE} {run} {key}", wanted)
                    await self._warn(run)
                    return Time(name, wanted.device_seconds)
                if tight.held == 0.0:
                    await self._refuse(run, state, tight)
            await self._wait(freed)

    async def hold_time(self, most_seconds: float) -> Time | None:
        """Hold a while in which runs are under way, of at most so long; None where nothing is left today."""
        async with self._turn:
            found = [one for one in self.day_accounts() if one.resource is Resource.DAY_SECONDS]
            left = min((one.left for one in found), default=most_seconds)
            if left <= 0.0:
                return None
            wanted = Amount(seconds=min(most_seconds, left))
            name = await self._hold(TIME, wanted)
            await self._warn_of_day()
            return Time(name, wanted.seconds)

    async def _hold(self, what: str, wanted: Amount) -> str:
        name = f"{what} {self._log.head.seq + 1}"
        self._own.add(name)
        reserved = DayReserved(day=self.today, call=name, amount=wanted)
        await self._log.append([NewEvent(SYSTEM_STREAM, reserved)])
        return name

    async def settle_lost(self) -> None:
        """Charge what processes before this one held and never settled: nobody knows how much it took."""
        day = self._log.system().day
        lost = [
            NewEvent(SYSTEM_STREAM, DaySettled(call=name, amount=hold.amount))
            for name, hold in (day.held.items() if day is not None else ())
            if name.startswith((f"{DEVICE} ", f"{TIME} ")) and name not in self._own
        ]
        if lost:
            log.warning("time_lost", holds=len(lost))
            await self._log.append(lost)

    def ending(self, time: Time, took: Amount) -> NewEvent:
        """Return what settles a hold, to be logged beside what ended."""
        self._own.discard(time.name)
        return NewEvent(SYSTEM_STREAM, DaySettled(call=time.name, amount=took))

    async def release(self, time: Time, took: Amount) -> None:
        """Settle a hold by itself."""
        await self._log.append([self.ending(time, took)])
        await self.freed()

    async def freed(self, run: str | None = None) -> None:
        """Look again for whoever waits, now that something was settled; warn of what it came to."""
        self._free()
        async with self._turn:
            await (self._warn_of_day() if run is None else self._warn(run))

    # --- settling ----------------------------------------------------------------------------------

    async def settle(
        self,
        run: str,
        outcome: CallEnded,
        *,
        blobs: Sequence[bytes] = (),
        pause: str | None = None,
    ) -> None:
        """Log what came of a call and what it took; with `pause`, the run then waits for a person.

        Raises:
            Held: the run is over.
        """
        events = [NewEvent(run, outcome), settled(run, outcome)]

        def paused(state: RunState) -> Event | None:
            wanted = pause is not None and _runs(state)
            return RunPaused(reason=pause or "", cause=PauseCause.PROVIDER) if wanted else None

        try:
            await append_seen(self._log, [run] if pause else [], paused, with_=events, blobs=blobs)
        except AppendError:
            if self._log.state(run).ended:
                raise Held from None
            raise
        self._free()
        async with self._turn:
            await self._warn(run)

    def _free(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()

    async def _warn(self, run: str) -> None:
        state = self._log.state(run)
        if state.ended:
            return
        found = self._accounts(run, state, budget.NOTHING)
        for event in budget.warnings(state, [one for one in found if one.resource not in budget.DAILY]):
            log.warning(
                "budget", run=run, resource=event.resource.value, percent=event.percent, cap=event.cap
            )
            await self._log.append([NewEvent(run, event)])
        await self._warn_of_day()

    async def _warn_of_day(self) -> None:
        """Say once a day, whoever says it, which marks of the day's caps were passed."""
        day = self._log.system().day
        told = day.on(self.today).warned if day is not None else {}
        for event in budget.passed(told, self.day_accounts()):
            log.warning("day_budget", resource=event.resource.value, percent=event.percent, cap=event.cap)
            await self._log.append([NewEvent(SYSTEM_STREAM, event)])

    # --- days --------------------------------------------------------------------------------------

    def may_go_on(self, run: str) -> bool:
        """Return whether a run that waits for a day with room should try again: another day, other caps.

        What is used up has no room, whoever waited for it: a process before this one may have.
        """
        used_up = any(one.spent >= one.cap > 0 for one in self.day_accounts())
        return not used_up and self._waiting.get(run) != (self.today, self._caps)


def _runs(state: RunState) -> bool:
    return state.status is RunStatus.RUNNING
