"""Following a run until it ends, as its host or as an onlooker.

Whoever asked for a run makes sure that it advances: when nobody owns the home, this process hosts it;
when another process does, this one looks on, and takes over should the other leave the run unfinished.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from agentctl.answers import Sent, answer_to, owned
from agentctl.screen import Screen
from agentctl.tracker import Tracker
from agentctl.words import so_far
from daemon.config import DaemonConfig
from daemon.stop import Stop, first_of
from state.errors import HomeLocked, NoLog, StreamUnknown
from state.events import RunCreated, RunForked
from state.log import EventLog
from state.reader import LogReader
from state.records import Recorded

LOOK_SECONDS = 0.1
PAGE = 500


async def pursue(home: Path, tracker: Tracker, sent: Sent, screen: Screen, config: DaemonConfig) -> bool:
    """See the tracker's run to its end; return whether it was hosted here when that, or a stop, came.

    Raises:
        DaemonError: the command `sent` was rejected.
        state.errors.StateError: the home or its log cannot be used.
    """
    stop = Stop()
    stop.on_signals()
    told: int | None = None
    hosted = False
    while not (tracker.ended or stop.requested.is_set()):
        try:
            event_log = EventLog.open(home)
        except HomeLocked as error:
            hosted = False
            if told != error.owner_pid:
                told = error.owner_pid
                screen.say(f"process {told} owns this home; following (Ctrl-C detaches)")
            await _look_on(home, tracker, sent, screen, stop)
        else:
            hosted = True
            with event_log:
                await _host(event_log, tracker, sent, screen=screen, config=config, stop=stop)
    return hosted


async def _host(
    event_log: EventLog, tracker: Tracker, sent: Sent, *, screen: Screen, config: DaemonConfig, stop: Stop
) -> None:
    """Own the home while following; the end of either ends the other."""
    from daemon.host import host, workers_of

    workers = workers_of(event_log.home, config)
    hosting = asyncio.create_task(host(event_log, config, stop=stop, workers=workers, focus={tracker.run}))
    hosting.add_done_callback(lambda _: stop.requested.set())
    try:
        await _follow(event_log.home, tracker, sent, screen, stop)
    finally:
        stop.requested.set()
        await hosting


async def _look_on(home: Path, tracker: Tracker, sent: Sent, screen: Screen, stop: Stop) -> None:
    """Follow while another process owns the home."""
    left = Stop()

    async def watch_owner() -> None:
        while owned(home) and not stop.requested.is_set():
            await first_of(stop.requested, seconds=LOOK_SECONDS)
        left.request()

    watching = asyncio.create_task(watch_owner())
    try:
        await _follow(home, tracker, sent, screen, left)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _follow(home: Path, tracker: Tracker, sent: Sent, screen: Screen, stop: Stop) -> None:
    """Read what happens to the run, and show it, until it ends or `stop`."""
    reader = await _open(home, stop)
    if reader is None:
        return
    with reader:
        answered = False
        news = News(screen, after=sent.after)
        while not (tracker.ended or stop.requested.is_set()):
            answered = answered or answer_to(reader, sent) is not None
            if not _catch_up(reader, tracker, news):
                news.standing(tracker)
                screen.refresh(tracker)
                await first_of(stop.requested, seconds=LOOK_SECONDS)
            await asyncio.sleep(0)


async def _open(home: Path, stop: Stop) -> LogReader | None:
    """Open the log for reading as soon as its owner has made it; None when told to stop before."""
    while not stop.requested.is_set():
        try:
            return LogReader.open(home)
        except NoLog:
            await first_of(stop.requested, seconds=LOOK_SECONDS)
    return None


@dataclass(slots=True)
class News:
    """Shows what happens to a run from a global seq on; what was before is told once, in two lines."""

    screen: Screen
    after: int
    told: bool = False

    def happened(self, item: Recorded, tracker: Tracker) -> None:
        """Show an event that the tracker has just taken in, if it is new."""
        if item.seq <= self.after:
            return
        begins = isinstance(item.event, RunCreated | RunForked)
        self.told = self.told or isinstance(item.event, RunCreated)  # which tells it all
        if not begins:
            self.standing(tracker)
        self.screen.happened(item, tracker)
        if begins:
            self.standing(tracker)

    def standing(self, tracker: Tracker) -> None:
        """Tell how the run stood when this process began to look."""
        if tracker.state is not None and not self.told:
            self.told = True
            for line in so_far(tracker.run, tracker.state):
                self.screen.say(line)


def _catch_up(reader: LogReader, tracker: Tracker, news: News | None) -> bool:
    """Take in a page of events; return whether there were any."""
    try:
        page = reader.read(stream=tracker.run, after=tracker.position, limit=PAGE)
    except StreamUnknown:  # the submit has not been carried out yet
        return False
    for item in page:
        tracker.add(item)
        if news is not None:
            news.happened(item, tracker)
    return bool(page)


def replay(home: Path, tracker: Tracker) -> None:
    """Bring the tracker of a run that has ended up to its end, showing nothing."""
    with LogReader.open(home) as reader:
        while _catch_up(reader, tracker, None):
            pass
