"""The till: no call is sent before it was reserved in every budget, and each is settled once.

What a call may take is logged with its start, in the run and in the day's budget of the system stream, in one
transaction; so is what it took with its outcome. Reserving is done by one at a time, so that two calls never
take the same room; outcomes only give room back. All that counts is in the folds, so it survives a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import structlog

from daemon.calls.clock import age_seconds
from daemon.calls.errors import Held, no_budget
from daemon.looking import append_seen
from stability import budget
from stability.budget import Account, DayCaps
from state.errors import AppendError
from state.events import (
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
from state.model import SYSTEM_STREAM, Amount, PauseCause, Question, RunStatus
from state.records import NewEvent

LOOK_SECONDS = 5.0
"""How long a call waits for room before it looks again: a cap may have been raised."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("calls")


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
        self._day_warned: set[tuple[str, str, int]] = set()

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
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await freed.wait()
            except TimeoutError:
                continue

    def _accounts(self, run: str, state: RunState, wanted: Amount) -> tuple[Account, ...]:
        config = state.pending_config or state.config  # a cap that was raised counts at once
        age = age_seconds(self._log, run, self._clock()) if config.cap_seconds is not None else 0.0
        day = self._log.system().day
        today = day.on(self.today) if day is not None else None
        return (
            *budget.accounts(state, config, wanted, age_seconds=age),
            *budget.day_accounts(today, self._caps, wanted),
        )

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

    async def _refuse(self, run: str, state: RunState, short: Account) -> None:
        """End a question for which there is no room today, or at all."""
        if short.resource in budget.DAILY:
            self._waiting[run] = (self.today, self._caps)
            text = f"no room for another call under the day's cap: {short.resource.value} of {short.cap:g}"
            await self.pause(run, text, PauseCause.DAY)
            log.warning("day_budget_used_up", run=run, resource=short.resource.value, cap=short.cap)
            raise Held
        if state.short.get(short.resource) != short.cap:
            await self._log.append([NewEvent(run, short.short())])
            log.warning("budget_used_up", run=run, resource=short.resource.value, cap=short.cap)
        raise no_budget(short.resource.value)

    async def pause(self, run: str, reason: str, cause: PauseCause) -> None:
        """Let a run wait before anything is reserved, if it does not yet."""
        await append_seen(
            self._log, [run], lambda now: RunPaused(reason=reason, cause=cause) if _runs(now) else None
        )

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
        for one in found:
            mark = max((mark for mark in budget.MARKS if one.percent >= mark), default=0)
            told = (self.today, one.resource.value, mark)
            if one.resource in budget.DAILY and mark and told not in self._day_warned:
                self._day_warned.add(told)
                log.warning("day_budget", resource=one.resource.value, percent=mark, cap=one.cap)

    # --- days --------------------------------------------------------------------------------------

    def may_go_on(self, run: str) -> bool:
        """Return whether a run that waits for a day with room should try again: another day, other caps."""
        return self._waiting.get(run) != (self.today, self._caps)


def _runs(state: RunState) -> bool:
    return state.status is RunStatus.RUNNING
