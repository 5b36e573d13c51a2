"""The budget ledger: reserves every call in every budget before it is sent, and settles each once.

Device time, and the time in which runs are under way, are handled the same way where they have caps. The
maximum cost of a call is logged with its start, in the run and in the day's budget of the system stream,
in one transaction. The real cost is logged with its outcome in the same way. Reservations are made one
at a time, so that two calls never take the same room; outcomes only free room. All amounts come from the
folds, so they survive a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from daemon.calls.clock import run_age_seconds
from daemon.calls.errors import EffectDeferred, no_budget_error
from daemon.optimistic_append import append_if_current
from daemon.structured_log import structlog
from stability import budget
from stability.budget import DEVICE_RESOURCES, NO_AMOUNT, BudgetAccount, DayCaps
from state.errors import AppendError
from state.events import (
    AgentEnded,
    AgentStarted,
    CallCompleted,
    CallEnded,
    CallLost,
    CallStarted,
    DayReserved,
    DaySettled,
    Event,
    RunPaused,
)
from state.events.session import AGENT_LOST
from state.fold import RunState
from state.log import EventLog
from state.model import (
    SYSTEM_STREAM,
    Amount,
    ModelQuestion,
    PauseCause,
    Resource,
    RunStatus,
    Usage,
    digest_of,
    round_usd,
)
from state.records import NewEvent
from state.run_state import OpenEffect

LOOK_SECONDS = 5.0
"""How long (seconds) a call waits for room before it checks again, because a cap may have been raised."""

MIN_DEVICE_SECONDS = 1.0
"""If less device time (seconds) than this is left, it counts as none: nothing could be evaluated in it."""

AGENT, DEVICE, TIME = "agent", "device", "time"
"""Prefixes of the names in the system stream of what is no call; names of calls begin with a run's id."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("calls")


@dataclass(frozen=True, slots=True)
class HeldTime:
    """Time that is held under a name, in seconds."""

    name: str
    seconds: float


def call_name(run: str, key: str, call: int, attempt: int) -> str:
    """Return the name of a call in the system stream."""
    return f"{run} {key} {call} {attempt}"


def agent_name(run: str, key: str, number: int) -> str:
    """Return the name of a coding agent in the system stream."""
    return f"{AGENT} {run} {key} {number}"


def lost_agent_event(key: str, effect: OpenEffect) -> AgentEnded:
    """Return the end of a coding agent that nobody awaited: its cost is unknown, so it costs all it holds."""
    return AgentEnded(
        key=key,
        delivery=effect.delivery,
        reason=AGENT_LOST,
        transcript=digest_of(b""),
        usage=Usage(cost_usd=None),
        charged_usd=effect.agent.usd if effect.agent is not None else 0.0,
    )


def agent_settlement_event(run: str, ended: AgentEnded, effect: OpenEffect) -> NewEvent:
    """Return the event that settles a coding agent's end in the day's budget."""
    cost = ended.usage.cost_usd
    name = agent_name(run, ended.key, effect.agent.number if effect.agent is not None else 0)
    amount = Amount(usd=round_usd(ended.charged_usd if cost is None else cost))
    return NewEvent(SYSTEM_STREAM, DaySettled(call=name, amount=amount))


def lost_call_event(key: str, call: int, known: ModelQuestion, *, priced: bool, reason: str) -> CallLost:
    """Return the outcome of an attempt whose result is unknown: it costs all that was held for it."""
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


def lost_work(
    run: str, state: RunState, keys: Iterable[str], *, reason: str
) -> tuple[tuple[AgentEnded | CallLost, ...], tuple[NewEvent, ...]]:
    """Return the outcomes of all calls and agents under way of these effects, and their settlements."""
    gone: list[AgentEnded | CallLost] = []
    settled: list[NewEvent] = []
    for key in keys:
        effect = state.open.get(key)
        for call, known in enumerate(effect.calls if effect is not None else ()):
            if known.held is not None:
                priced = state.prices.get(known.model) is not None
                lost = lost_call_event(key, call, known, priced=priced, reason=reason)
                gone.append(lost)
                settled.append(settlement_event(run, lost))
        if effect is not None and effect.agent is not None and not effect.agent.ended:
            ended = lost_agent_event(key, effect)
            gone.append(ended)
            settled.append(agent_settlement_event(run, ended, effect))
    return tuple(gone), tuple(settled)


def settlement_event(run: str, outcome: CallEnded) -> NewEvent:
    """Return the event that settles an outcome in the day's budget."""
    name = call_name(run, outcome.key, outcome.call, outcome.attempt)
    return NewEvent(SYSTEM_STREAM, DaySettled(call=name, amount=outcome.charged_amount))


class BudgetLedger:
    """Reserves and settles the calls of all runs of one log."""

    def __init__(self, event_log: EventLog, caps: DayCaps, *, clock: Callable[[], float] = time.time) -> None:
        self._log = event_log
        self._clock = clock
        self._caps = caps
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        self._waiting: dict[str, tuple[str, DayCaps]] = {}
        self._own: set[str] = set()

    def set_caps(self, caps: DayCaps) -> None:
        """Change the daily caps, from now on."""
        self._caps = caps
        self._wake_waiters()

    @property
    def today(self) -> str:
        """The date, in UTC."""
        return datetime.fromtimestamp(self._clock(), tz=UTC).date().isoformat()

    # --- reserving ---------------------------------------------------------------------------------

    async def reserve(self, run: str, event: CallStarted, blobs: Sequence[bytes]) -> None:
        """Log that a call starts, as soon as there is room for it.

        Raises:
            RoleError: `budget`: there is no room, and nothing under way that may free any.
            EffectDeferred: the run is paused or over, or waits for a day that has room.
        """
        is_priced = event.price is not None or event.model in self._log.run_state(run).prices
        name = call_name(run, event.key, event.call, event.attempt)
        await self._reserve(run, event, name, event.reserved, blobs)
        if not is_priced:
            log.warning("price_unknown", run=run, model=event.model, cap_usd="cannot be kept for it")

    async def reserve_agent(self, run: str, key: str, usd: float) -> None:
        """Log that a coding agent starts, as soon as there is room for what it may cost.

        Raises:
            RoleError, EffectDeferred: as for calls.
        """
        before = self._log.run_state(run).open[key].agent
        number = (before.number if before is not None else 0) + 1
        event = AgentStarted(key=key, number=number, reserved_usd=usd)
        await self._reserve(run, event, agent_name(run, key, number), Amount(usd=usd), ())

    async def _reserve(
        self, run: str, event: AgentStarted | CallStarted, name: str, wanted: Amount, blobs: Sequence[bytes]
    ) -> None:
        while True:
            freed = self._freed
            async with self._turn:
                state = self._log.run_state(run)
                if state.status is not RunStatus.RUNNING:
                    raise EffectDeferred
                short = budget.find_short_account(self._run_accounts(run, state, wanted))
                if short is None:
                    reserved = DayReserved(day=self.today, call=name, amount=wanted)
                    await self._log_start(
                        run, [NewEvent(run, event), NewEvent(SYSTEM_STREAM, reserved)], blobs
                    )
                    return
                if not budget.may_free_room(short):
                    await self._refuse_shortage(run, state, short)
            log.debug("waits_for_room", run=run, key=event.key, resource=short.resource.value)
            await self._wait_for_room(freed)

    async def _wait_for_room(self, freed: asyncio.Event) -> None:
        """Wait until something is settled, or until it is time to check whether a cap was raised."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await freed.wait()

    def _run_accounts(self, run: str, state: RunState, wanted: Amount) -> tuple[BudgetAccount, ...]:
        config = state.pending_config or state.config  # a raised cap counts at once
        age = run_age_seconds(self._log, run, self._clock()) if config.cap_seconds is not None else 0.0
        held = (
            self._held_amount(f"{DEVICE} {run} ").device_seconds
            if config.cap_device_seconds is not None
            else 0.0
        )
        return (
            *budget.run_accounts(state, config, wanted, age_seconds=age, device_held=held),
            *self.day_accounts(wanted),
        )

    def day_accounts(self, wanted: Amount = budget.NO_AMOUNT) -> tuple[BudgetAccount, ...]:
        """Return the accounts of today."""
        day = self._log.system_state().day
        return budget.day_accounts(day.for_date(self.today) if day is not None else None, self._caps, wanted)

    def _held_amount(self, prefix: str) -> Amount:
        """Return the sum of all holds whose names have this prefix, on any day."""
        day = self._log.system_state().day
        holds = day.held.items() if day is not None else ()
        return sum((one.amount for name, one in holds if name.startswith(prefix)), Amount())

    async def _log_start(self, run: str, events: Sequence[NewEvent], blobs: Sequence[bytes]) -> None:
        try:
            await self._log.append(events, blobs=blobs)
        except AppendError:
            if self._log.run_state(run).has_ended:
                raise EffectDeferred from None
            raise
        await self._warn_run(run)

    async def record_reused_answer(
        self, run: str, started: CallStarted, answered: CallCompleted, blobs: Sequence[bytes]
    ) -> None:
        """Log an existing answer as that of a call, for which nothing is reserved.

        Raises:
            EffectDeferred: the run is paused or over.
        """
        if not _is_running(self._log.run_state(run)):
            raise EffectDeferred
        try:
            await self._log.append([NewEvent(run, started), NewEvent(run, answered)], blobs=blobs)
        except AppendError:
            if self._log.run_state(run).has_ended:
                raise EffectDeferred from None
            raise

    async def _refuse_shortage(self, run: str, state: RunState, short: BudgetAccount) -> None:
        """End a question or an evaluation for which there is no room: for today, or for good."""
        if short.resource in budget.DAILY_RESOURCES:
            await self.pause_for_day(run, short)
            raise EffectDeferred
        if state.short.get(short.resource) != short.cap:
            await self._log.append([NewEvent(run, short.make_shortage_event())])
            log.warning("budget_used_up", run=run, resource=short.resource.value, cap=short.cap)
        raise no_budget_error(short.resource.value)

    async def pause_for_day(self, run: str, short: BudgetAccount) -> None:
        """Pause a run until another day, or until the caps change."""
        self._waiting[run] = (self.today, self._caps)
        text = f"no room for more under the day's cap: {short.resource.value} of {short.cap:g}"
        await self.pause_run(run, text, PauseCause.DAY)
        log.warning("day_budget_used_up", run=run, resource=short.resource.value, cap=short.cap)

    async def pause_run(self, run: str, reason: str, cause: PauseCause) -> None:
        """Pause a run before anything is reserved, unless it is paused already."""
        await append_if_current(
            self._log, [run], lambda now: RunPaused(reason=reason, cause=cause) if _is_running(now) else None
        )

    # --- time --------------------------------------------------------------------------------------

    async def hold_device(self, run: str, key: str, most_seconds: float) -> HeldTime | None:
        """Hold the device time of an evaluation: `most_seconds`, or what is left of the budgets.

        Returns None if no budget limits device time.

        Raises:
            RoleError: `budget`: nothing is left for the run.
            EffectDeferred: the run is paused or over, or waits for a day that has room.
        """
        while True:
            freed = self._freed
            async with self._turn:
                state = self._log.run_state(run)
                if not _is_running(state):
                    raise EffectDeferred
                found = [
                    one
                    for one in self._run_accounts(run, state, NO_AMOUNT)
                    if one.resource in DEVICE_RESOURCES
                ]
                if not found:
                    return None
                tight = min(found, key=lambda one: one.remaining)
                if tight.remaining >= MIN_DEVICE_SECONDS:
                    wanted = Amount(device_seconds=min(most_seconds, tight.remaining))
                    name = await self._log_hold(f"{DEVICE} {run} {key}", wanted)
                    await self._warn_run(run)
                    return HeldTime(name, wanted.device_seconds)
                if tight.held == 0.0:
                    await self._refuse_shortage(run, state, tight)
            await self._wait_for_room(freed)

    async def hold_time(self, most_seconds: float) -> HeldTime | None:
        """Hold at most `most_seconds` of the time in which runs are under way; None if nothing is left
        today.
        """
        async with self._turn:
            found = [one for one in self.day_accounts() if one.resource is Resource.DAY_SECONDS]
            left = min((one.remaining for one in found), default=most_seconds)
            if left <= 0.0:
                return None
            wanted = Amount(seconds=min(most_seconds, left))
            name = await self._log_hold(TIME, wanted)
            await self._warn_day()
            return HeldTime(name, wanted.seconds)

    async def _log_hold(self, what: str, wanted: Amount) -> str:
        name = f"{what} {self._log.head.seq + 1}"
        self._own.add(name)
        reserved = DayReserved(day=self.today, call=name, amount=wanted)
        await self._log.append([NewEvent(SYSTEM_STREAM, reserved)])
        return name

    async def settle_lost_holds(self) -> None:
        """Charge holds that earlier processes never settled in full, because their real use is unknown."""
        for run in self._log.active_runs():
            state = self._log.run_state(run)
            for key in state.open:
                await self.settle_lost_agent(run, key)
        day = self._log.system_state().day
        lost = [
            NewEvent(SYSTEM_STREAM, DaySettled(call=name, amount=hold.amount))
            for name, hold in (day.held.items() if day is not None else ())
            if name.startswith((f"{DEVICE} ", f"{TIME} ")) and name not in self._own
        ]
        if lost:
            log.warning("time_lost", holds=len(lost))
            await self._log.append(lost)

    def hold_settlement(self, time: HeldTime, took: Amount) -> NewEvent:
        """Return the event that settles a hold, to be logged with the event that ended it."""
        self._own.discard(time.name)
        return NewEvent(SYSTEM_STREAM, DaySettled(call=time.name, amount=took))

    async def release(self, time: HeldTime, took: Amount) -> None:
        """Settle a hold by itself."""
        await self._log.append([self.hold_settlement(time, took)])
        await self.notify_freed()

    async def notify_freed(self, run: str | None = None) -> None:
        """Wake the waiters after a settlement, and warn about budgets that are nearly used up."""
        self._wake_waiters()
        async with self._turn:
            await (self._warn_day() if run is None else self._warn_run(run))

    # --- settling ----------------------------------------------------------------------------------

    async def settle(
        self,
        run: str,
        outcome: CallEnded,
        *,
        blobs: Sequence[bytes] = (),
        pause: str | None = None,
    ) -> None:
        """Log the outcome of a call and its cost; if `pause` is given, pause the run with that reason.

        Raises:
            EffectDeferred: the run is over.
        """
        events = [NewEvent(run, outcome), settlement_event(run, outcome)]

        def paused(state: RunState) -> Event | None:
            wanted = pause is not None and _is_running(state)
            return RunPaused(reason=pause or "", cause=PauseCause.PROVIDER) if wanted else None

        try:
            await append_if_current(self._log, [run] if pause else [], paused, with_=events, blobs=blobs)
        except AppendError:
            if self._log.run_state(run).has_ended:
                raise EffectDeferred from None
            raise
        self._wake_waiters()
        async with self._turn:
            await self._warn_run(run)

    async def settle_agent(self, run: str, ended: AgentEnded, transcript: bytes = b"") -> None:
        """Log the end of a coding agent, and its cost.

        Raises:
            EffectDeferred: the run is over; then its end has charged the agent.
        """
        effect = self._log.run_state(run).open.get(ended.key)
        if effect is None:
            raise EffectDeferred
        settled = agent_settlement_event(run, ended, effect)
        try:
            await self._log.append([NewEvent(run, ended), settled], blobs=(transcript,))
        except AppendError:
            if self._log.run_state(run).has_ended:
                raise EffectDeferred from None
            raise
        await self.notify_freed(run)

    async def settle_lost_agent(self, run: str, key: str) -> None:
        """Charge an effect's coding agent with all that it holds, if it is under way and nobody awaits it."""
        effect = self._log.run_state(run).open.get(key)
        if effect is None or effect.agent is None or effect.agent.ended:
            return
        log.warning("agent_lost", run=run, key=key, charged_usd=effect.agent.usd)
        with suppress(EffectDeferred):
            await self.settle_agent(run, lost_agent_event(key, effect))

    def _wake_waiters(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()

    async def _warn_run(self, run: str) -> None:
        state = self._log.run_state(run)
        if state.has_ended:
            return
        found = self._run_accounts(run, state, budget.NO_AMOUNT)
        for event in budget.run_warnings(
            state, [one for one in found if one.resource not in budget.DAILY_RESOURCES]
        ):
            log.warning(
                "budget", run=run, resource=event.resource.value, percent=event.percent, cap=event.cap
            )
            await self._log.append([NewEvent(run, event)])
        await self._warn_day()

    async def _warn_day(self) -> None:
        """Warn of each passed mark of the day's caps, once a day over all runs."""
        day = self._log.system_state().day
        told = day.for_date(self.today).warned if day is not None else {}
        for event in budget.mark_warnings(told, self.day_accounts()):
            log.warning("day_budget", resource=event.resource.value, percent=event.percent, cap=event.cap)
            await self._log.append([NewEvent(SYSTEM_STREAM, event)])

    # --- days --------------------------------------------------------------------------------------

    def can_resume(self, run: str) -> bool:
        """Return whether a run that waits for a day with room should try again: the day or the caps have
        changed.

        Nothing resumes while a cap of today is used up, also not a run that an earlier process paused.
        """
        used_up = any(one.spent >= one.cap > 0 for one in self.day_accounts())
        return not used_up and self._waiting.get(run) != (self.today, self._caps)


def _is_running(state: RunState) -> bool:
    return state.status is RunStatus.RUNNING
