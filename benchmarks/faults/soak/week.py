"""A week of the real daemon in virtual time: runs arrive, people steer them, nothing is ever restarted.

Host, supervisor, runner, commands, inbox, `decide`, fold and event log are the real ones; time, proposers
and judge are those of the simulated worlds (`tests/support/simulation`), without kills and disk errors.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

from daemon import inbox
from daemon.command_models import Approve, Cancel, Command, Fork, Pause, Propose, Resume, Set
from daemon.config import DaemonConfig
from daemon.home_owner import serve_runs
from daemon.home_paths import waiting_commands
from daemon.inbox import put_command
from daemon.stop_signal import StopSignal
from state import log
from state.appender import Appender
from state.home import HomeLayout
from state.log import EventLog
from state.model import Level, RunConfig, RunStatus, SearchConfig
from tests.support import fakes
from tests.support.simulation.clock import Clock, VirtualLoop
from tests.support.simulation.fates import Fates, SteppedWriter
from tests.support.simulation.machine import listening
from tests.support.simulation.workers import Outside

BEAM = 2
EVENTS_PER_ROUND = 120
"""About what a round of these runs stores: the kernels of the beam, 6 plans for each."""

TENDED_SECONDS = 600.0
"""How often people look whether a run waits for them."""

DEEDS_PER_RUN = 3
FORKED_SHARE = 0.1
NAMES = tuple(map("".join, product("ABCDEF", repeat=2)))
EDIT_SECONDS = 6 * 3600.0
REMEMBERED = 4096
LATE_SECONDS = 48 * 3600.0
"""How long after the last arrival the runs may take to end, before they count as stuck."""

DAEMON = DaemonConfig(evaluations=2, proposals=2, runs=16, evaluation_seconds=60, grace_seconds=5)


@dataclass(frozen=True, slots=True)
class Week:
    """How much happens: about so many events, of so many runs, arriving within so many hours."""

    events: int = 1_000_000
    runs: int = 200
    hours: float = 168.0
    seed: int = 0

    @property
    def seconds(self) -> float:
        return self.hours * 3600.0

    @property
    def rounds(self) -> int:
        return max(1, round(self.events / self.runs / EVENTS_PER_ROUND))


class Failed(Exception):  # noqa: N818 - the name says what became of it
    """The week did not go as it must: the daemon met a bug of its own, or its runs do not end."""


class _Recent(Counter[str]):
    """Counts of what was asked for last: the rig must not be what grows."""

    def __setitem__(self, key: str, count: int) -> None:
        super().__setitem__(key, count)
        if len(self) > REMEMBERED:
            del self[next(iter(self))]


Deed = Callable[[random.Random, EventLog], Command | None]
"""Draws what a person does, from the runs that there are; None when there is none for it."""


def _steering(make: Callable[..., Command], **drawn: Callable[[random.Random], Any]) -> Deed:
    """Return the deed of steering a run that has not ended, with what the command says besides."""

    def deed(draw: random.Random, event_log: EventLog) -> Command | None:
        runs = event_log.active_runs()
        if not runs:
            return None
        return make(run=draw.choice(runs), **{name: value(draw) for name, value in drawn.items()})

    return deed


def kernel(draw: random.Random) -> str:
    """Return a kernel that is correct, with as much to improve as a run has rounds for."""
    while True:
        source = "".join(f"TILE_{name} = {2 ** draw.randint(3, 10)}\n" for name in NAMES)
        if fakes.judge_source(source.encode(), "trn2", Level.WHOLE, fakes.LATE).evaluation.is_correct:
            return source


def _fork(draw: random.Random, event_log: EventLog) -> Command | None:
    runs = event_log.run_ids()
    if not runs:
        return None
    run = draw.choice(runs[-20:])
    return Fork(run=run, seq=draw.randint(1, event_log.run_seq(run)), rewind=draw.random() < 0.5)


DEEDS: tuple[tuple[float, Deed], ...] = (
    (3, _steering(Pause)),
    (1, _steering(Resume)),
    (3, _steering(Set, settings=lambda draw: {"search.top_k": draw.randint(4, 12)})),
    (3, _steering(Propose, source=kernel)),
    (1, _steering(Approve)),
    (0.1, _steering(Cancel)),
)
"""What people do with runs under way, with weights; some of it is refused, as it should be."""


def config(draw: random.Random, rounds: int) -> RunConfig:
    """Return a run's configuration: of the usual width, and as long as asked for."""
    search = SearchConfig(
        rounds=rounds,
        beam=BEAM,
        repairs=1,
        within_percent=0,
        plateau_rounds=1000,
        round_seconds=draw.choice((None, 900.0)),
    )
    approval = ("before_round",) if draw.random() < 0.25 else ()
    return fakes.CONFIG.model_copy(
        update={"seed": draw.getrandbits(32), "search": search, "approval": approval, "cap_usd": 1e6}
    )


class World:
    """A week under way in `home`; `measure` is called each time that `every` more events are stored."""

    def __init__(self, home: Path, week: Week, *, every: int, measure: Callable[[EventLog], None]) -> None:
        self._home = home
        self._week = week
        self._every = every
        self._measure = measure
        self._draw = random.Random(f"soak {week.seed}")
        self._clock = Clock()
        self._begun = self._clock.now
        self._outside = Outside(week.seed, priced=True)
        self._outside.delivered = _Recent()
        self._commands = 0
        self._due = every
        self._wrong: list[str] = []

    @property
    def hours(self) -> float:
        """The virtual time since the beginning."""
        return (self._clock.now - self._begun) / 3600.0

    def run(self) -> None:
        """Live through the week until every run has ended.

        Raises:
            Failed: see there.
            state.errors.StateError: the log failed.
        """
        loop = VirtualLoop(self._clock)
        with self._simulated(loop):
            try:
                loop.run_until_complete(self._life())
            except KeyboardInterrupt:
                _wind_up(loop)
                if not self._wrong:
                    raise
            finally:
                loop.close()
        if self._wrong:
            raise Failed("; ".join(self._wrong))

    async def _life(self) -> None:
        stop = StopSignal()
        with EventLog.open(self._home) as event_log:
            self._event_log = event_log
            people = asyncio.create_task(self._people(event_log, stop))
            try:
                await serve_runs(event_log, DAEMON, stop=stop, workers=self._outside.workers())
            finally:
                people.cancel()
                await asyncio.gather(people, return_exceptions=True)
        if not people.cancelled() and (error := people.exception()) is not None:
            raise error

    # --- people ---

    async def _people(self, event_log: EventLog, stop: StopSignal) -> None:
        """Do what is planned, when it is; look after runs that wait; stop when all have ended."""
        planned = self._plan()
        deed = next(planned, None)
        tended = self._begun
        try:
            while deed is not None or event_log.active_runs() or waiting_commands(self._home):
                if deed is not None and deed[0] <= self._clock.now:
                    self._drop(deed[1](self._draw, event_log))
                    deed = next(planned, None)
                    continue
                if self._clock.now >= tended:
                    tended = self._clock.now + TENDED_SECONDS
                    self._tend(event_log)
                self._require_time(event_log)
                await asyncio.sleep(min(deed[0] if deed else tended, tended) - self._clock.now)
        finally:
            stop.request()

    def _plan(self) -> Iterator[tuple[float, Deed]]:
        """Yield what people do over the week, and when, in order."""
        week, draw = self._week, self._draw
        pace = week.seconds / week.runs
        planned = [(n * pace + draw.uniform(0, pace), self._arrive) for n in range(week.runs)]
        weights, deeds = zip(*DEEDS, strict=True)
        planned += [
            (draw.uniform(0, week.seconds), deed)
            for deed in draw.choices(deeds, weights, k=DEEDS_PER_RUN * week.runs)
        ]
        planned += [(n * EDIT_SECONDS, self._edit) for n in range(1, 1 + int(week.seconds / EDIT_SECONDS))]
        yield from ((self._begun + at, deed) for at, deed in sorted(planned, key=lambda one: one[0]))

    def _arrive(self, draw: random.Random, event_log: EventLog) -> Command:
        forked = _fork(draw, event_log) if draw.random() < FORKED_SHARE else None
        return forked or fakes.create_submission(config(draw, self._week.rounds), kernel(draw))

    def _edit(self, draw: random.Random, _: EventLog) -> None:
        """Edit the configuration file, one time in four so that it has to be refused."""
        value = draw.choice((6, 8, 10, -1))
        (self._home / "config.toml").write_text(f"[run.search]\ntop_k = {value}\n")

    def _tend(self, event_log: EventLog) -> None:
        for run in event_log.active_runs():
            state = event_log.run_state(run)
            if state.status is RunStatus.PAUSED:
                self._drop(Approve(run=run) if state.needs_approval else Resume(run=run))

    def _drop(self, command: Command | None) -> None:
        if command is not None:
            self._commands += 1
            put_command(self._home, command, id_=f"{self._commands:08d}")

    def _require_time(self, event_log: EventLog) -> None:
        if self._clock.now - self._begun > self._week.seconds + LATE_SECONDS:
            raise Failed(f"after {self.hours:.0f} hours runs have not ended: {event_log.run_standings()}")

    # --- the rig ---

    def _stored(self, appender: Appender, loop: VirtualLoop) -> None:
        if appender.head.seq >= self._due:
            self._due += self._every * (1 + (appender.head.seq - self._due) // self._every)
            loop.call_soon(self._gauge)

    def _gauge(self) -> None:
        try:
            self._measure(self._event_log)
        except Exception as error:
            self._wrong.append(f"{type(error).__name__}: {error}")
            raise KeyboardInterrupt from error

    @contextmanager
    def _simulated(self, loop: VirtualLoop) -> Iterator[None]:
        fates = Fates(self._week.seed, kill=0.0, disk=0.0, mishaps=0, save=lambda: None)

        def writer(appender: Appender, layout: HomeLayout, **_: object) -> SteppedWriter:
            return SteppedWriter(appender, layout, fates, lambda one: self._stored(one, loop))

        with ExitStack() as stack:
            stack.enter_context(self._clock.patch_time())
            stack.enter_context(mock.patch.object(log, "LogWriter", writer))
            stack.enter_context(mock.patch.object(inbox, "_watch_folder", _unwatched))
            stack.enter_context(listening(self._wrong))
            yield


def _unwatched(*_: object) -> AbstractContextManager[None]:
    """Stand in for the inbox's watcher, a thread in real time: what comes is found by looking."""
    return nullcontext()


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """End what is under way, so that the log is closed."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
