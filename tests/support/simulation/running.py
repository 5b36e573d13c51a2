"""One world from its beginning to its end: lives of the process, one after the other, on one log.

The world ends when every run has ended. Process and disk fail a certain number of times, people do what the
scenario says and then let paused runs go on; so each run must end, and soon.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.home_owner import serve_runs
from daemon.stop_signal import StopSignal
from state.appender import Appender
from state.errors import StateError
from state.fold import RunState, state_hash
from state.log import EventLog
from state.reader import LogReader
from state.records import EventRow
from state.verify import verify_log
from tests.support.simulation import fates, twin, watch, workers
from tests.support.simulation.clock import Clock, Stuck, VirtualLoop
from tests.support.simulation.fates import DISK, STOP, Fates, Killed
from tests.support.simulation.invariants import Violation
from tests.support.simulation.machine import BUGS, Machine
from tests.support.simulation.people import People
from tests.support.simulation.scenario import TO_THE_MACHINE, Deed, Scenario, scenario
from tests.support.simulation.watch import Watch
from tests.support.simulation.workers import Outside

__all__ = ["BUGS", "Outcome", "simulate"]

KINDS = (*fates.KINDS, *TO_THE_MACHINE, *workers.KINDS, *watch.KINDS)
"""What can happen in a world, as it is counted."""

PATIENCE_SECONDS = 3600.0
"""Within how much virtual time a world must be over."""

LOOK_SECONDS = 5.0
RESTART_SECONDS = 1.0

Ending = tuple[str, str, str | None]
"""A run's semantic state and decisions, as digests, and its best kernel."""


@dataclass(slots=True)
class Outcome:
    """What came of a world: events stored, what happened by kind, how each run ended, the hash of the log."""

    seed: int
    events: int
    seconds: float
    counts: Counter[str]
    endings: dict[str, Ending]
    head: str


def simulate(
    seed: int, *, root: Path | None = None, say: Callable[[str], None] = lambda line: None
) -> Outcome:
    """Run the world of a seed, and its undisturbed twin where the two must agree.

    Raises:
        Violation: something happened that must not; `say` was told every event before it.
    """
    world = scenario(seed)
    with tempfile.TemporaryDirectory(dir=root, prefix="simulation-") as folder:
        outcome = Simulation(world, Path(folder), say).run()
    if world.faithful:
        calm = {run: ending_of(state) for run, state in twin.last_states(world).items()}
        if outcome.endings != calm:
            raise Violation(f"the runs ended otherwise than their twins: {outcome.endings} not {calm}")
    return outcome


class Simulation:
    """A world under way."""

    def __init__(self, world: Scenario, folder: Path, say: Callable[[str], None]) -> None:
        self._world = world
        self._say = say
        self._clock = Clock()
        self._begun = self._clock.now
        self._machine = Machine(folder, self._clock)
        self._outside = Outside(world.seed, priced=world.has_prices)
        self._watch = Watch(say=self._tell)
        self._watch.allow(world.daemon.model_dump())
        self._people = People(world, self._machine, self._note)
        self._deeds = list(world.deeds)
        self._finished = False
        self._wrong: Exception | None = None
        self._fates = Fates(world.seed, world.odds.kill, world.odds.disk, world.mishaps, self._save)
        self._fates.full = self._machine.full
        self._fates.tear = self._machine.tear

    def run(self) -> Outcome:
        if not self._world.fresh:
            self._machine.begin()
        with self._machine.simulate_parts(self._fates, stored=self._look, answered=self._watch.acknowledge):
            while not self._finished:
                self._live()
                if self._clock.now - self._begun > PATIENCE_SECONDS:
                    raise Violation(
                        f"the runs have not ended after {PATIENCE_SECONDS:g} s: {self._standing()}"
                    )
        with LogReader.open(self._machine.home) as reader:
            self._watch.check_run_list(reader.run_summaries())
        report = verify_log(self._machine.home)
        if not report.is_ok:
            raise Violation(f"the log does not prove itself: {report.findings}")
        return self._outcome()

    # --- lives ---

    def _live(self) -> None:
        """Let the process live until it ends, fails or is killed."""
        loop = VirtualLoop(self._clock)
        home, faults = self._machine.home, self._faults()
        try:
            loop.run_until_complete(self._life(loop))
        except Killed:
            self._wind_up(loop)
            if self._wrong is not None:
                raise self._wrong from None
            self._finished = False
            self._note("killed")
            shutil.rmtree(home)
        except StateError as error:
            self._finished = False
            self._note(f"failed: {error}")
            if self._faults() == faults:
                raise Violation(f"the daemon failed where the disk did not: {error}") from error
        except Stuck as error:
            raise Violation(str(error)) from error
        finally:
            loop.close()
        if self._machine.bugs:
            raise Violation(f"the daemon logged {self._machine.bugs}")
        self._clock.now += RESTART_SECONDS

    def _faults(self) -> int:
        return sum(self._fates.counts[what] for what in DISK)

    async def _life(self, loop: VirtualLoop) -> None:
        stop = StopSignal()
        with EventLog.open(self._machine.home) as event_log:
            self._watch.check_reopened_log(event_log._appender)
            with LogReader.open(self._machine.home) as reader:
                self._watch.check_derived_states(reader)
            self._deal(loop, stop)
            doing = asyncio.create_task(self._do_all(event_log, stop))
            try:
                await serve_runs(event_log, self._world.daemon, stop=stop, workers=self._outside.workers())
            finally:
                doing.cancel()
                await asyncio.gather(doing, return_exceptions=True)
        if doing.done() and not doing.cancelled() and doing.exception() is not None:
            raise doing.exception()

    def _deal(self, loop: VirtualLoop, stop: StopSignal) -> None:
        """Draw how this life may end before its work is done."""
        chosen = self._fates.chosen
        if chosen.random() < 0.4:
            loop.call_later(chosen.uniform(0, 30), self._fates.kill)
        if chosen.random() < 0.3:
            loop.call_later(chosen.uniform(0, 30), self._ask_to_stop, stop)

    def _ask_to_stop(self, stop: StopSignal) -> None:
        if self._fates.spend(STOP):
            self._note("asked to stop")
            stop.request()

    def _save(self) -> None:
        self._machine.save(self._fates.chosen)

    def _wind_up(self, loop: VirtualLoop) -> None:
        """End what a killed process left in memory; its files are nobody's any more."""
        now, self._fates.ghost = self._clock.now, True
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        self._clock.now, self._fates.ghost = now, False

    def _look(self, appender: Appender) -> None:
        """Check what was stored; what is wrong ends the world here, past whatever handles errors."""
        try:
            self._watch.look(appender)
        except Exception as error:
            self._wrong = error
            raise Killed from error

    # --- what people do, and what happens to the machine ---

    async def _do_all(self, event_log: EventLog, stop: StopSignal) -> None:
        """Do the deeds at their times; then let paused runs go on, and stop when all have ended."""
        try:
            while self._deeds:
                await asyncio.sleep(max(0.0, self._begun + self._deeds[0].at - self._clock.now))
                self._do(self._deeds.pop(0), event_log)
            while not self._over(event_log):
                await asyncio.sleep(LOOK_SECONDS)
                self._people.let_go_on(event_log)
                if self._clock.now - self._begun > PATIENCE_SECONDS:
                    return
            self._finished = True
        finally:
            stop.request()

    def _over(self, event_log: EventLog) -> bool:
        return self._watch.answered >= self._people.awaited and not event_log.active_runs()

    def _do(self, deed: Deed, event_log: EventLog) -> None:
        if deed.what not in TO_THE_MACHINE:
            self._people.act(deed, event_log)
            return
        self._note(deed.what)
        self._fates.counts[deed.what] += 1
        if deed.what == "full disk":
            self._machine.fill(random.Random(deed.draw))
        else:
            self._machine.set_clock(random.Random(deed.draw), deed.what)

    # --- telling ---

    def _tell(self, stream: str, row: EventRow) -> None:
        key = row.idem or ""
        self._note(f"{row.seq:5d} {stream}@{row.run_seq} {row.type} {key}")

    def _note(self, what: str) -> None:
        self._say(f"{self._clock.now - self._begun:10.3f} {what}")

    def _standing(self) -> str:
        with suppress(StateError), LogReader.open(self._machine.home) as reader:
            return "; ".join(f"{one.run} {one.status} round {one.round}" for one in reader.run_standings())
        return "the log cannot be read"

    def _outcome(self) -> Outcome:
        seen = self._watch
        return Outcome(
            seed=self._world.seed,
            events=len(seen.rows),
            seconds=self._clock.now - self._begun,
            counts=self._fates.counts + seen.counts + self._outside.counts,
            endings={run: ending_of(trail.states[-1]) for run, trail in seen.trails.items()},
            head=seen.rows[-1][1] if seen.rows else "",
        )


def ending_of(last: RunState) -> Ending:
    """Return what two runs must agree on that did the same."""
    return state_hash(last), last.decision_digest, last.best.id if last.best else None
