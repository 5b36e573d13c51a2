"""The supervisor: turns what `decide` asks for into running effects, for every active run.

It repeats one step: for each run that something happened to, append what `decide` decided and note the
effects it asks for; then admit effects while there is room, fairly over runs, and perform them. An
effect is admitted by its `...Started` event, which holds the whole request. Recovery is no special case:
an effect that is open in the log but not in our hands was lost, by a crash or a stop, and is admitted
again exactly as logged, with its delivery counted up.

The order in which outcomes arrive does not matter; the fold and `decide` see to that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from agent_core.decide import decide
from agent_core.effects import STARTED, Effect, Record
from daemon.stop import Stop, first_of
from state.errors import StaleAppend
from state.events import RoundCompleted, RunCompleted
from state.fold import RunState
from state.log import EventLog
from state.model import EffectKey, Role, RunStatus, digest_of
from state.records import NewEvent, Recorded
from state.turns import Turns

log: structlog.stdlib.BoundLogger = structlog.get_logger("supervisor")


class Performer(Protocol):
    async def perform(self, run: str, key: EffectKey, request: str) -> None:
        """Perform one admitted effect and record its outcome."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many effects may be in flight at a time, of all runs together."""

    evaluations: int
    proposals: int


@dataclass(frozen=True, slots=True)
class Ready:
    """An effect that may be admitted: the request's digest, and the blobs to store with its start."""

    key: EffectKey
    request: str
    delivery: int = 1
    reserved_usd: float = 0.0
    blobs: tuple[bytes, ...] = ()

    def started(self, run: str) -> NewEvent:
        event = STARTED[self.key.role](
            key=str(self.key), request=self.request, delivery=self.delivery, reserved_usd=self.reserved_usd
        )
        return NewEvent(run, event)


@dataclass(slots=True)
class Lane:
    """One run under way: the `run_seq` that its ready effects were derived at, and those effects."""

    seen: int = 0
    ready: deque[Ready] = field(default_factory=deque)
    flying: dict[EffectKey, asyncio.Task[None]] = field(default_factory=dict)


class Supervisor:
    """Advances the runs of one log until told to stop."""

    def __init__(
        self,
        event_log: EventLog,
        performer: Performer,
        *,
        limits: Limits,
        grace_seconds: float,
        focus: set[str] | None = None,
    ) -> None:
        """`focus` names the runs to advance; None means all that are active."""
        self._log = event_log
        self._performer = performer
        self._limits = limits
        self._grace_seconds = grace_seconds
        self.focus = focus
        self._lanes: dict[str, Lane] = {}
        self._touched: set[str] = set()
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None
        self.turns = Turns()

    def touch(self, run: str) -> None:
        """Say that something happened to `run`."""
        self._touched.add(run)
        self._wake.set()

    async def run(self, stop: Stop) -> None:
        """Advance runs until `stop`; then let effects in flight end, as long as the grace lasts.

        Raises:
            state.errors.StateError: the log failed.
        """
        for run in self._log.runs():
            self.touch(run)
        try:
            while not stop.requested.is_set():
                self._wake.clear()
                with self.turns:
                    await self._advance()
                await first_of(self._wake, stop.requested)
            await self._drain(stop)
        finally:
            await _drop(self._tasks())
        if self._failure is not None:
            raise self._failure

    async def _advance(self) -> None:
        if self._failure is not None:
            raise self._failure
        while self._touched:
            run = self._touched.pop()
            if self.focus is None or run in self.focus:
                await self._consider(run)
                self.turns.step()
        await self._admit()

    # --- deciding ----------------------------------------------------------------------------------

    async def _consider(self, run: str) -> None:
        """Append what is decided for `run` and refresh its ready effects."""
        lane = self._lanes.setdefault(run, Lane())
        lane.ready.clear()
        lane.seen, state = self._look(run)
        while state.status is RunStatus.RUNNING and await self._record(run, lane, state):
            lane.seen, state = self._look(run)
        if state.ended:
            await _drop(lane.flying.values())
            del self._lanes[run]

    async def _record(self, run: str, lane: Lane, state: RunState) -> bool:
        """Append the decisions on `state`; return whether there were any, else fill the ready effects."""
        decisions = decide(state)
        records = [item for item in decisions if isinstance(item, Record)]
        if not records:
            lane.ready.extend(self._lost(lane, state))
            lane.ready.extend(_fresh(item) for item in decisions if isinstance(item, Effect))
            if not (lane.ready or lane.flying):
                log.error("run_stalled", run=run, round=state.round)  # a bug of decide: say so, do not spin
            return False
        events = [NewEvent(run, event) for record in records for event in record.events]
        try:
            stored = await self._log.append(events, expect={run: lane.seen})
        except StaleAppend:
            log.debug("decision_stale", run=run)
        else:
            _tell(stored, self._log.state(run))
        return True

    def _look(self, run: str) -> tuple[int, RunState]:
        """Return a run's state and a `run_seq` at or before it: a state read late is found out on append."""
        seen = self._log.run_seq(run)
        return seen, self._log.state(run)

    def _lost(self, lane: Lane, state: RunState) -> Iterator[Ready]:
        """Yield the effects that the log has open and nobody performs, to be delivered as logged."""
        for text, effect in state.open.items():
            key = EffectKey.parse(text)
            if key not in lane.flying:
                yield Ready(key, effect.request, effect.delivery + 1, effect.reserved_usd)

    # --- admitting ---------------------------------------------------------------------------------

    async def _admit(self) -> None:
        """Start ready effects while there is room, one of each run in turn."""
        for run, chosen in self._choose().items():
            lane = self._lanes[run]
            starts = [ready.started(run) for ready in chosen]
            blobs = [blob for ready in chosen for blob in ready.blobs]
            try:
                stored = await self._log.append(starts, blobs=blobs, expect={run: lane.seen})
            except StaleAppend:
                self.touch(run)  # the run moved on: its ready effects are derived anew
                continue
            lane.seen = stored[-1].run_seq
            for ready, item in zip(chosen, stored, strict=True):
                self._launch(run, lane, ready, item.place)

    def _choose(self) -> dict[str, list[Ready]]:
        """Take ready effects, round robin over runs, up to the limits; whoever was served goes to the end."""
        room = self._room()
        chosen: dict[str, list[Ready]] = {}
        waiting = deque(run for run, lane in self._lanes.items() if lane.ready)
        while waiting:
            run = waiting.popleft()
            ready = _take(self._lanes[run].ready, room)
            if ready is not None:
                chosen.setdefault(run, []).append(ready)
                waiting.append(run)
        for run in chosen:
            self._lanes[run] = self._lanes.pop(run)
        return chosen

    def _room(self) -> dict[bool, int]:
        """Return how many more effects may start: evaluations under True, proposals under False."""
        flying = [key.role is Role.EVALUATOR for lane in self._lanes.values() for key in lane.flying]
        return {
            True: self._limits.evaluations - flying.count(True),
            False: self._limits.proposals - flying.count(False),
        }

    def _launch(self, run: str, lane: Lane, ready: Ready, event_id: str) -> None:
        with structlog.contextvars.bound_contextvars(run=run, effect=str(ready.key), event_id=event_id):
            task = asyncio.create_task(  # with a copy of the context: what it logs says what it is for
                self._performer.perform(run, ready.key, ready.request), name=f"{run} {ready.key}"
            )
        lane.flying[ready.key] = task
        task.add_done_callback(lambda done: self._landed(run, lane, ready.key, done))

    def _landed(self, run: str, lane: Lane, key: EffectKey, task: asyncio.Task[None]) -> None:
        del lane.flying[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
        self.touch(run)

    # --- stopping ----------------------------------------------------------------------------------

    async def _drain(self, stop: Stop) -> None:
        """Wait for effects in flight until the grace is over or the stop is immediate."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace_seconds
        hurry = asyncio.create_task(stop.immediate.wait())
        while (tasks := self._tasks()) and not hurry.done() and loop.time() < deadline:
            left = deadline - loop.time()
            await asyncio.wait({hurry, *tasks}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for lane in self._lanes.values() for task in lane.flying.values()]


async def _drop(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel effects in flight and wait until they are gone; they stay open in the log."""
    doomed = list(tasks)
    for task in doomed:
        task.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)


def _tell(stored: Iterable[Recorded], state: RunState) -> None:
    """Log the steps of a run that operators follow: rounds, with the best so far, and its end."""
    best_ms = state.best.latency_ms if state.best else None
    for item in stored:
        step = log.bind(run=item.stream, event_id=item.place, best_ms=best_ms)
        match item.event:
            case RoundCompleted(round=round_):
                step.info("round_completed", round=round_)
            case RunCompleted(reason=reason, detail=detail):
                step.info("run_completed", reason=reason.value, detail=detail)


def _take(ready: deque[Ready], room: dict[bool, int]) -> Ready | None:
    """Remove and return the first effect for whose kind there is room, and count it; None if none."""
    for index, item in enumerate(ready):
        kind = item.key.role is Role.EVALUATOR
        if room[kind] > 0:
            room[kind] -= 1
            del ready[index]
            return item
    return None


def _fresh(effect: Effect) -> Ready:
    request = effect.request.model_dump_json().encode()
    return Ready(effect.key, digest_of(request), blobs=(request, *effect.blobs))
