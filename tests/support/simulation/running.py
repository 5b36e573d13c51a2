"""One world from its beginning to its end: lives of the process, one after the other, on one log.

The world ends when every run has ended. Process and disk fail a certain number of times, people do what the
scenario says and then let paused runs go on; so each run must end, and soon.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import structlog

from daemon import inbox
from daemon.host import work_on
from daemon.inbox import drop
from daemon.stop import Stop
from daemon.verbs import Approve, Command, Resume
from state import crash, log
from state.appender import Appender
from state.errors import StateError
from state.fold import state_hash
from state.log import EventLog
from state.model import PauseCause, RunStatus
from state.reader import LogReader
from state.records import Row
from state.verify import verify
from tests.support.simulation.clock import Clock, Stuck, VirtualLoop
from tests.support.simulation.fates import Fates, Killed, SteppedWriter
from tests.support.simulation.invariants import Violation, Watch
from tests.support.simulation.scenario import Deed, Odds, Scenario, scenario, steering, submission
from tests.support.simulation.workers import Outside

PATIENCE_SECONDS = 6 * 3600.0
"""Within how much virtual time a world must be over."""

LOOK_SECONDS = 10.0
RESTART_SECONDS = 1.0
BUGS = frozenset({"run_stalled", "command_failed"})
"""What the daemon logs when it meets a bug of its own and goes on."""

Ending = tuple[str, str, str | None]


@dataclass(slots=True)
class Outcome:
    """What came of a world: events stored, mishaps by kind, how each run ended, and the hash of the log."""

    seed: int
    events: int
    seconds: float
    mishaps: dict[str, int]
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
    outcome = _run(world, root, say)
    if world.faithful:
        calm = replace(world, odds=Odds(), mishaps=0)
        twin = _run(calm, root, lambda line: None)
        if twin.endings != outcome.endings:
            raise Violation(f"the run ended otherwise than its twin: {outcome.endings} not {twin.endings}")
    return outcome


def _run(world: Scenario, root: Path | None, say: Callable[[str], None]) -> Outcome:
    with tempfile.TemporaryDirectory(dir=root, prefix="simulation-") as folder:
        return Simulation(world, Path(folder), say).run()


class Simulation:
    """A world under way."""

    def __init__(self, world: Scenario, folder: Path, say: Callable[[str], None]) -> None:
        self._world = world
        self._folder = folder
        self._say = say
        self._lives = 0
        self._home = folder / "home0"
        self._clock = Clock()
        self._begun = self._clock.now
        self._outside = Outside(world.seed, priced=world.priced)
        self._watch = Watch(say=self._tell)
        self._deeds = list(world.deeds)
        self._done = 0
        self._runs: list[str] = []
        self._bugs: list[str] = []
        self._finished = False
        self._wrong: Exception | None = None
        self._fates = Fates(world.seed, world.odds.kill, world.odds.disk, world.mishaps, self._save)

    def run(self) -> Outcome:
        with self._simulated():
            while not self._finished:
                self._live()
                if self._clock.now - self._begun > PATIENCE_SECONDS:
                    raise Violation(
                        f"the runs have not ended after {PATIENCE_SECONDS:g} s: {self._standing()}"
                    )
        report = verify(self._home)
        if not report.ok:
            raise Violation(f"the log does not prove itself: {report.findings}")
        return self._outcome()

    # --- lives ---

    def _live(self) -> None:
        """Let the process live until it ends, fails or is killed."""
        self._lives += 1
        loop = VirtualLoop(self._clock)
        home, faults = self._home, self._fates.counts["disk"]
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
            if self._fates.counts["disk"] == faults:
                raise Violation(f"the daemon failed where the disk did not: {error}") from error
        except Stuck as error:
            raise Violation(str(error)) from error
        finally:
            loop.close()
        if self._bugs:
            raise Violation(f"the daemon logged {self._bugs}")
        self._clock.now += RESTART_SECONDS

    async def _life(self, loop: VirtualLoop) -> None:
        stop = Stop()
        with EventLog.open(self._home) as event_log:
            self._watch.opened(event_log._appender)
            self._watch.folded(event_log._reader)
            self._deal(loop, stop)
            people = asyncio.create_task(self._people(event_log, stop))
            try:
                await work_on(event_log, self._world.daemon, stop=stop, workers=self._outside.workers())
            finally:
                people.cancel()
                await asyncio.gather(people, return_exceptions=True)
            self._watch.folded(event_log._reader)
        if people.done() and not people.cancelled() and people.exception() is not None:
            raise people.exception()

    def _deal(self, loop: VirtualLoop, stop: Stop) -> None:
        """Draw how this life may end before its work is done."""
        chosen = self._fates.chosen
        if chosen.random() < 0.4:
            loop.call_later(chosen.uniform(0, 60), self._fates.kill)
        if chosen.random() < 0.3:
            loop.call_later(chosen.uniform(0, 60), self._ask_to_stop, stop)

    def _ask_to_stop(self, stop: Stop) -> None:
        if self._fates.spend("stop"):
            self._note("asked to stop")
            stop.request()

    def _save(self) -> None:
        after = self._folder / f"home{self._lives}"
        shutil.copytree(self._home, after, ignore=shutil.ignore_patterns("reserve"))
        self._home = after

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

    # --- people ---

    async def _people(self, event_log: EventLog, stop: Stop) -> None:
        """Do the deeds at their times; then let paused runs go on, and stop when all have ended."""
        try:
            while self._deeds:
                await asyncio.sleep(max(0.0, self._begun + self._deeds[0].at - self._clock.now))
                self._do(self._deeds.pop(0), event_log)
            while not self._over(event_log):
                await asyncio.sleep(LOOK_SECONDS)
                self._let_go_on(event_log)
                if self._clock.now - self._begun > PATIENCE_SECONDS:
                    return
            self._finished = True
        finally:
            stop.request()

    def _over(self, event_log: EventLog) -> bool:
        return len(self._watch.answered) == self._done and not event_log.runs()

    def _do(self, deed: Deed, event_log: EventLog) -> None:
        if deed.verb == "submit":
            self._drop(submission(self._world, deed.whom))
            return
        runs = event_log.run_ids()
        if runs:
            run = runs[deed.whom % len(runs)]
            self._drop(steering(deed, run, event_log.run_seq(run)))

    def _let_go_on(self, event_log: EventLog) -> None:
        for run in event_log.runs():
            state = event_log.state(run)
            if state.status is RunStatus.PAUSED and state.pause_cause is not PauseCause.SPACE:
                self._drop(Approve(run=run) if state.needs_approval else Resume(run=run))

    def _drop(self, command: Command) -> None:
        self._done += 1
        id_ = f"{self._done:08d}"
        self._note(f"asked to {command.verb} {getattr(command, 'run', '')}, as {id_}")
        drop(self._home, command, id_=id_)

    # --- the world's machinery ---

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        """Put the simulated parts in the places of the real ones."""
        patched: tuple[tuple[object, str, object], ...] = (
            (log, "Writer", lambda appender, head: SteppedWriter(appender, head, self._fates, self._look)),
            (crash, "_fuse", self._fates),
            (inbox, "_observed", lambda folder, noticed: nullcontext()),
        )
        with ExitStack() as stack:
            stack.enter_context(self._clock.told())
            for place, name, stand_in in patched:
                stack.enter_context(mock.patch.object(place, name, stand_in))
            for place in ("state.reserve.free_bytes", "daemon.space.free_bytes"):
                stack.enter_context(mock.patch(place, return_value=1 << 40))
            stack.enter_context(self._listening())
            yield

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Hear what the daemon logs, instead of letting it be printed."""

        def hear(_: object, __: str, line: dict) -> dict:
            if line["event"] in BUGS:
                self._bugs.append(str(line))
            raise structlog.DropEvent

        kept, level = structlog.get_config(), logging.root.manager.disable
        structlog.configure(
            processors=[structlog.contextvars.merge_contextvars, hear], cache_logger_on_first_use=False
        )
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)
            structlog.configure(**kept)

    # --- telling ---

    def _tell(self, stream: str, row: Row) -> None:
        key = row.idem or ""
        self._note(f"{row.seq:5d} {stream}@{row.run_seq} {row.type} {key}")

    def _note(self, what: str) -> None:
        self._say(f"{self._clock.now - self._begun:10.3f} {what}")

    def _standing(self) -> str:
        with suppress(StateError), LogReader.open(self._home) as reader:
            return "; ".join(f"{one.run} {one.status} round {one.round}" for one in reader.standings())
        return "the log cannot be read"

    def _outcome(self) -> Outcome:
        watch = self._watch
        endings = {
            run: (state_hash(last), last.decision_digest, last.best.id if last.best else None)
            for run, trail in sorted(watch.trails.items())
            if (last := trail.states[-1])
        }
        return Outcome(
            seed=self._world.seed,
            events=len(watch.rows),
            seconds=self._clock.now - self._begun,
            mishaps=dict(self._fates.counts),
            endings=endings,
            head=watch.rows[-1][1].hex() if watch.rows else "",
        )
