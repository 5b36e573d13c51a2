"""Follows a run until it ends, as its host or as an observer.

If you ask for a run, this process makes sure that it advances. If nobody owns the home, this process
hosts the run. If another process owns it, this one observes, and takes over if the other leaves the run
unfinished.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from agentctl.command_answers import SentCommand, find_answer, is_owned
from agentctl.formatting import format_run_so_far
from agentctl.run_tracker import RunTracker
from agentctl.screen import Screen
from daemon.config import DaemonConfig
from daemon.stop_signal import StopSignal, wait_for_first
from state.errors import HomeLocked, NoLog, StreamUnknown
from state.events import RunCreated, RunForked
from state.log import EventLog
from state.reader import LogReader
from state.records import RecordedEvent

LOOK_SECONDS = 0.1
PAGE = 500


async def follow_run(
    home: Path, tracker: RunTracker, sent: SentCommand, screen: Screen, config: DaemonConfig
) -> bool:
    """Follow the tracker's run to its end, or until a stop; return whether this process then hosted it.

    Raises:
        DaemonError: the command `sent` was rejected.
        state.errors.StateError: the home or its log cannot be used.
    """
    stop = StopSignal()
    stop.install_signal_handlers()
    told: int | None = None
    hosted = False
    while not (tracker.has_ended or stop.requested.is_set()):
        try:
            event_log = EventLog.open(home)
        except HomeLocked as error:
            hosted = False
            if told != error.owner_pid:
                told = error.owner_pid
                screen.show_line(f"process {told} owns this home; following (Ctrl-C detaches)")
            await _follow_other_owner(home, tracker, sent, screen, stop)
        else:
            hosted = True
            with event_log:
                await _host_run(event_log, tracker, sent, screen=screen, config=config, stop=stop)
    return hosted


async def _host_run(
    event_log: EventLog,
    tracker: RunTracker,
    sent: SentCommand,
    *,
    screen: Screen,
    config: DaemonConfig,
    stop: StopSignal,
) -> None:
    """Own the home while following; when hosting or following ends, the other ends too."""
    from daemon.home_owner import create_workers, host_home

    workers = create_workers(event_log.home, config)
    hosting = asyncio.create_task(
        host_home(event_log, config, stop=stop, workers=workers, focus={tracker.run})
    )
    hosting.add_done_callback(lambda _: stop.requested.set())
    try:
        await _follow_log(event_log.home, tracker, sent, screen, stop)
    finally:
        stop.requested.set()
        await hosting


async def _follow_other_owner(
    home: Path, tracker: RunTracker, sent: SentCommand, screen: Screen, stop: StopSignal
) -> None:
    """Follow while another process owns the home."""
    left = StopSignal()

    async def watch_owner() -> None:
        while is_owned(home) and not stop.requested.is_set():
            await wait_for_first(stop.requested, seconds=LOOK_SECONDS)
        left.request()

    watching = asyncio.create_task(watch_owner())
    try:
        await _follow_log(home, tracker, sent, screen, left)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _follow_log(
    home: Path, tracker: RunTracker, sent: SentCommand, screen: Screen, stop: StopSignal
) -> None:
    """Read and show the run's events until it ends or `stop` is requested."""
    reader = await _open_log(home, stop)
    if reader is None:
        return
    with reader:
        answered = False
        news = ProgressFeed(screen, after=sent.after)
        while not (tracker.has_ended or stop.requested.is_set()):
            answered = answered or find_answer(reader, sent) is not None
            if not _read_page(reader, tracker, news):
                news.show_standing(tracker)
                screen.show_state(tracker)
                await wait_for_first(stop.requested, seconds=LOOK_SECONDS)
            await asyncio.sleep(0)


async def _open_log(home: Path, stop: StopSignal) -> LogReader | None:
    """Open the log for reading as soon as its owner has created it; None if a stop is requested first."""
    while not stop.requested.is_set():
        try:
            return LogReader.open(home)
        except NoLog:
            await wait_for_first(stop.requested, seconds=LOOK_SECONDS)
    return None


@dataclass(slots=True)
class ProgressFeed:
    """Shows a run's events after a global seq; what came before is summed up once, in two lines."""

    screen: Screen
    after: int
    told: bool = False

    def show_event(self, item: RecordedEvent, tracker: RunTracker) -> None:
        """Show an event that the tracker has just applied, if it is new."""
        if item.seq <= self.after:
            return
        begins = isinstance(item.event, RunCreated | RunForked)
        # this event's own line already describes the run
        self.told = self.told or isinstance(item.event, RunCreated)
        if not begins:
            self.show_standing(tracker)
        self.screen.show_event(item, tracker)
        if begins:
            self.show_standing(tracker)

    def show_standing(self, tracker: RunTracker) -> None:
        """Show, once, how the run stood when this process started to follow it."""
        if tracker.state is not None and not self.told:
            self.told = True
            for line in format_run_so_far(tracker.run, tracker.state):
                self.screen.show_line(line)


def _read_page(reader: LogReader, tracker: RunTracker, news: ProgressFeed | None) -> bool:
    """Apply a page of events; return whether there were any."""
    try:
        page = reader.read(stream=tracker.run, after=tracker.position, limit=PAGE)
    except StreamUnknown:  # the submit has not been carried out yet
        return False
    for item in page:
        tracker.add(item)
        if news is not None:
            news.show_event(item, tracker)
    return bool(page)


def replay_run(home: Path, tracker: RunTracker) -> None:
    """Bring the tracker of an ended run to its end, without showing anything."""
    with LogReader.open(home) as reader:
        while _read_page(reader, tracker, None):
            pass
