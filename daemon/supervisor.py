"""The supervisor: turns the decisions of `decide` into running effects, for every active run.

It repeats one step. For each run to which something happened, it appends the decisions of `decide` and
notes the requested effects. Then it admits effects while slots are free, fairly over runs, and performs
them. A `...Started` event admits an effect and holds the whole request. Recovery is no special case: if
an effect is open in the log but not in flight here, a crash or a stop lost it, and it is admitted again
exactly as logged, with a higher delivery count. Only a limited number of runs is under way at a time;
the others wait for a slot.

Outcomes may arrive in any order; the fold and `decide` handle that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from agent_core.decide import decide
from agent_core.effects import Record
from daemon.calls.clock import check_time_cap, close_round
from daemon.calls.errors import EffectDeferred
from daemon.deadlines import RoundDeadlines
from daemon.fair_share import FairShare, RunSlots
from daemon.optimistic_append import append_if_current
from daemon.run_queue import EffectKind, InFlightEffect, ReadyEffect, RunQueue
from daemon.stop_signal import StopSignal, wait_for_first
from daemon.structured_log import structlog
from daemon.transfer_events import with_transfer_events
from state.errors import BlobMissing, StaleAppend
from state.events import KernelRefuted, RoundCompleted, RoundDeadlinePassed, RunCompleted, RunPaused
from state.fold import RunState
from state.log import EventLog
from state.model import EffectKey, RunStatus
from state.progress_counter import ProgressCounter
from state.records import NewEvent, RecordedEvent

log: structlog.stdlib.BoundLogger = structlog.get_logger("supervisor")


BACKLOG_PER_SLOT = 4
"""A run may have this many unjudged kernels per evaluation slot; beyond that it proposes no more."""


class Performer(Protocol):
    async def perform(self, run: str, key: EffectKey, request: str) -> None:
        """Perform one admitted effect and record its outcome."""


@dataclass(frozen=True, slots=True)
class EffectLimits:
    """How many effects may be in flight at a time, over all runs, and how many runs may be under way."""

    evaluations: int
    proposals: int
    runs: int = 1024
    calls: int = 1

    def limit_of(self, kind: EffectKind) -> int:
        """Return how many effects of this kind may be in flight."""
        return {
            EffectKind.EVALUATION: self.evaluations,
            EffectKind.PROPOSAL: self.proposals,
            EffectKind.CALL: self.calls,
        }[kind]


class Supervisor:
    """Advances the runs of one log until it is told to stop."""

    def __init__(
        self,
        event_log: EventLog,
        performer: Performer,
        *,
        limits: EffectLimits,
        grace_seconds: float,
        focus: set[str] | None = None,
        elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        """`focus` names the runs to advance; None means all active runs.

        `elsewhere` returns how many evaluations may exceed the limit because other machines perform
        them.
        """
        self._log = event_log
        self._performer = performer
        self._limits = limits
        self.grace_seconds = grace_seconds
        self.focus = focus
        self._elsewhere = elsewhere
        self._queues: dict[str, RunQueue] = {}
        self._shares = {kind: FairShare() for kind in EffectKind}
        self._places = RunSlots(limits.runs)
        self._deadlines = RoundDeadlines(event_log, passed=self.touch)
        self._touched: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None
        self.turns = ProgressCounter()

    def set_limits(self, limits: EffectLimits, *, grace_seconds: float) -> None:
        """Change the limits; effects in flight beyond the new limits are finished."""
        self._limits = limits
        self.grace_seconds = grace_seconds
        self._places.limit = limits.runs
        for run in (*self._queues, *self._places.next_waiting()):
            self.touch(run)

    @property
    def in_flight_count(self) -> int:
        """How many effects are in flight."""
        return len(self._running_tasks())

    def touch(self, run: str) -> None:
        """Report that something happened to `run`, so that it is decided again."""
        self._touched[run] = None
        self._wake.set()

    async def run(self, stop: StopSignal) -> None:
        """Advance runs until `stop` is requested; then wait for effects in flight, up to the grace
        period.

        Raises:
            state.errors.StateError: the log failed.
        """
        for run in self._log.active_runs():
            self.touch(run)
        try:
            while not stop.requested.is_set():
                self._wake.clear()
                with self.turns:
                    await self._advance_runs()
                await wait_for_first(self._wake, stop.requested)
            await self._drain_effects(stop)
        finally:
            self._deadlines.stop()
            await _cancel_tasks(self._running_tasks())
        if self._failure is not None:
            raise self._failure

    async def _advance_runs(self) -> None:
        if self._failure is not None:
            raise self._failure
        while self._touched:  # this ends: no effect starts in this loop, so fewer and fewer runs are touched
            runs = [run for run in self._touched if self.focus is None or run in self.focus]
            self._touched.clear()
            await _gather_all(self._decide_run(run) for run in runs)
        await self._admit_effects()

    # --- deciding ----------------------------------------------------------------------------------

    async def _decide_run(self, run: str) -> None:
        """Append the decisions for `run` and refresh its ready effects, if it has a slot."""
        queue = self._queues.setdefault(run, RunQueue())
        queue.clear()
        queue.seen, state = self._read_state(run)
        if state.status is RunStatus.RUNNING and not self._places.take_slot(run):
            return
        while state.status is RunStatus.RUNNING and await self._append_decisions(run, queue, state):
            queue.seen, state = self._read_state(run)
        if state.has_ended:
            await _cancel_tasks(flight.task for flight in queue.flying.values())
            self._forget_run(run)
        elif state.status is not RunStatus.RUNNING and not queue.flying:
            self._release_slot(run)
        self.turns.step()

    def _release_slot(self, run: str) -> None:
        """Release the slot of `run` to the runs that wait."""
        self._places.release_slot(run)
        for other in self._places.next_waiting():
            self.touch(other)

    def _forget_run(self, run: str) -> None:
        del self._queues[run]
        self._deadlines.forget(run)
        for share in self._shares.values():
            share.forget(run)
        self._release_slot(run)

    async def _append_decisions(self, run: str, queue: RunQueue, state: RunState) -> bool:
        """Append the decisions on `state` and return True; if there are none, fill the ready effects and
        return False.
        """
        decisions = decide(state)
        records = [item for item in decisions if isinstance(item, Record)]
        passed = self._deadlines.check_deadline(run, state)
        if passed is not None and not records:
            records = [close_round(state, passed)]
        if not records:
            queue.fill(state, decisions, most=max(map(self._effect_limit, EffectKind)))
            if queue.is_idle:
                # a bug in `decide`: report it instead of spinning
                log.error("run_stalled", run=run, round=state.round)
            return False
        decided = [event for record in records for event in record.events]
        late = check_time_cap(self._log, run, state, decided)
        try:
            stored = await self._log.append(
                [NewEvent(run, late)]
                if late is not None
                else with_transfer_events(self._log, run, state, decided),
                expect={run: queue.seen},
            )
        except StaleAppend:
            log.debug("decision_stale", run=run)
        else:
            _log_steps(stored, self._log.run_state(run))
        return True

    def _read_state(self, run: str) -> tuple[int, RunState]:
        """Return a run's `run_seq` and its state. The state may be newer; `expect` then makes the append
        fail.
        """
        seen = self._log.run_seq(run)
        return seen, self._log.run_state(run)

    # --- admitting ---------------------------------------------------------------------------------

    async def _admit_effects(self) -> None:
        """Start ready effects while slots are free, each time one of the run that has used the least."""
        await _gather_all(self._start_effects(run, chosen) for run, chosen in self._choose_effects().items())

    async def _start_effects(self, run: str, chosen: list[tuple[ReadyEffect, float]]) -> None:
        """Append the start events of a run's effects, and launch the effects."""
        queue = self._queues[run]
        starts = [ready.start_event(run) for ready, _ in chosen]
        blobs = [blob for ready, _ in chosen for blob in ready.blobs]
        try:
            stored = await self._log.append(starts, blobs=blobs, expect={run: queue.seen})
        except StaleAppend:
            for ready, charge in chosen:
                self._shares[ready.kind].settle_charge(run, charge, 0.0)
            self.touch(run)  # the run moved on, so derive its ready effects again
            return
        queue.seen = stored[-1].run_seq
        for (ready, charge), item in zip(chosen, stored, strict=True):
            self._launch_effect(run, queue, ready, charge=charge, event_id=item.event_id)

    def _choose_effects(self) -> dict[str, list[tuple[ReadyEffect, float]]]:
        """Take ready effects up to the limits; return them per run, each with the charge for it."""
        chosen: dict[str, list[tuple[ReadyEffect, float]]] = {}
        for kind, share in self._shares.items():
            waiting = [
                run
                for run, queue in self._queues.items()
                if queue.ready[kind] and self._can_start(queue, kind)
            ]
            for _ in range(self._free_slots(kind)):
                if not waiting:
                    break
                run, charge = share.charge_next(waiting)
                ready = self._queues[run].ready[kind]
                chosen.setdefault(run, []).append((ready.popleft(), charge))
                if not ready:
                    waiting.remove(run)
        return chosen

    def _can_start(self, queue: RunQueue, kind: EffectKind) -> bool:
        """Return whether a run may start more effects of a kind: proposals wait while many kernels are
        unjudged.
        """
        return kind is EffectKind.EVALUATION or queue.unjudged < BACKLOG_PER_SLOT * self._effect_limit(
            EffectKind.EVALUATION
        )

    def _effect_limit(self, kind: EffectKind) -> int:
        """Return how many effects of a kind may be in flight, over all machines."""
        return self._limits.limit_of(kind) + (self._elsewhere() if kind is EffectKind.EVALUATION else 0)

    def _free_slots(self, kind: EffectKind) -> int:
        """Return how many more effects of a kind may start."""
        flights = (flight for queue in self._queues.values() for flight in queue.flying.values())
        return max(0, self._effect_limit(kind) - sum(flight.kind is kind for flight in flights))

    def _launch_effect(
        self, run: str, queue: RunQueue, ready: ReadyEffect, *, charge: float, event_id: str
    ) -> None:
        with structlog.contextvars.bound_contextvars(run=run, effect=str(ready.key), event_id=event_id):
            # the task copies the context, so its log lines name the run and the effect
            task = asyncio.create_task(self._perform_effect(run, ready), name=f"{run} {ready.key}")
        queue.flying[ready.key] = InFlightEffect(task, ready.kind, charge, asyncio.get_running_loop().time())
        task.add_done_callback(lambda done: self._on_effect_done(run, queue, ready.key, task=done))

    async def _perform_effect(self, run: str, ready: ReadyEffect) -> None:
        """Perform an effect. If the log lost a blob that the run needs, pause only this run, until a
        person acts.
        """
        try:
            # the effect stays open, and is delivered again when its run goes on
            with suppress(EffectDeferred):
                await self._performer.perform(run, ready.key, ready.request)
        except BlobMissing as error:
            reason = f"{ready.key}: {error}"
            await append_if_current(
                self._log,
                [run],  # keep an approval that the run already waits for
                lambda state: RunPaused(reason=reason, needs_approval=state.needs_approval),
            )

    def _on_effect_done(self, run: str, queue: RunQueue, key: EffectKey, *, task: asyncio.Task[None]) -> None:
        flight = queue.flying.pop(key)
        seconds = asyncio.get_running_loop().time() - flight.since
        self._shares[flight.kind].settle_charge(run, flight.charge, seconds)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
        self.touch(run)

    # --- stopping ----------------------------------------------------------------------------------

    async def _drain_effects(self, stop: StopSignal) -> None:
        """Wait for effects in flight until the grace period ends or an immediate stop is requested."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.grace_seconds
        hurry = asyncio.create_task(stop.immediate.wait())
        while (tasks := self._running_tasks()) and not hurry.done() and loop.time() < deadline:
            left = deadline - loop.time()
            await asyncio.wait({hurry, *tasks}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()

    def _running_tasks(self) -> list[asyncio.Task[None]]:
        return [flight.task for queue in self._queues.values() for flight in queue.flying.values()]


async def _gather_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of `works` at once, so that their appends share commits; then raise the first error, if any."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if result is not None:
            raise result


async def _cancel_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel effects in flight and wait until they have ended; they stay open in the log."""
    doomed = list(tasks)
    for task in doomed:
        task.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)


def _log_steps(stored: Iterable[RecordedEvent], state: RunState) -> None:
    """Log the steps of a run that operators follow: rounds, the best latency so far, and the end."""
    best_ms = state.best.latency_ms if state.best else None
    for item in stored:
        step = log.bind(run=item.stream, event_id=item.event_id, best_ms=best_ms)
        match item.event:
            case RoundDeadlinePassed(round=round_):
                step.info("round_deadline_passed", round=round_, late=len(state.late))
            case RoundCompleted(round=round_):
                step.info("round_completed", round=round_)
            case KernelRefuted(candidate=candidate, error=error):
                step.warning("kernel_refuted", candidate=candidate, code=error.code, error=error.message)
            case RunCompleted(reason=reason, detail=detail):
                step.info("run_completed", reason=reason.value, detail=detail)
