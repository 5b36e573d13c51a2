"""Follows a run until it ends, as its host or as an observer.

If you ask for a run, this process makes sure that it advances. If nobody owns the home, this process
hosts the run. If another process owns it, this one observes, and takes over if the other leaves the run
unfinished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_core.providers.failures import FailureKind
from agentctl.command_answers import SentCommand, find_answer, is_owned
from agentctl.formatting import format_run_so_far
from agentctl.run_tracker import RunTracker
from agentctl.screen import Screen
from agentctl.views.owner_process import is_service_waiting
from daemon.config import DaemonConfig
from daemon.stop_signal import StopSignal, wait_for_first
from state.errors import HomeLocked, NoLog, StorageBusy, StreamUnknown
from state.events import RunCreated, RunForked
from state.fold import RunState
from state.home import HomeLayout
from state.lock import read_owner
from state.log import EventLog
from state.model import EffectKey, PauseCause, Role, RunStatus, is_simplification
from state.reader import LogReader
from state.records import RecordedEvent

LOOK_SECONDS = 0.1
PAGE = 500


async def follow_run(
    home: Path,
    tracker: RunTracker,
    sent: SentCommand,
    screen: Screen,
    config: DaemonConfig,
    *,
    wait_for_keys: bool = False,
) -> bool:
    """Follow the tracker's run to its end, or until a stop; return whether this process then hosted it.

    A run that this process hosts and that is blocked ends the following too; `wait_for_keys` waits for keys.

    Raises:
        DaemonError: the command `sent` was rejected.
        state.errors.StateError: the home or its log cannot be used.
    """
    told: int | str | None = None
    hosted = False

    def acknowledge() -> None:
        grace = f"work in flight has {config.grace_seconds:g} s to finish; Ctrl-C again stops at once"
        screen.show_line(f"stopping: {grace}" if hosted else "detaching")

    stop = StopSignal(acknowledge)
    stop.install_signal_handlers()

    def is_over() -> bool:
        blocked = hosted and is_blocked(tracker.state, config, wait_for_keys=wait_for_keys)
        return tracker.has_ended or stop.requested.is_set() or blocked

    while not is_over():
        try:
            event_log = EventLog.open(home)
        except HomeLocked as error:
            hosted = False
            if told != error.owner_pid:
                told = error.owner_pid
                screen.show_line(f"process {told} owns this home; following (Ctrl-C detaches)")
            await _follow_other_owner(home, tracker, sent, screen=screen, stop=stop)
        except StorageBusy as error:
            if told != str(error):
                told = str(error)
                screen.show_line(f"waiting: {told}")
            await wait_for_first(stop.requested, seconds=LOOK_SECONDS)
        else:
            hosted = True
            with event_log:
                await _host_run(
                    event_log, tracker, sent, screen=screen, config=config, stop=stop, is_over=is_over
                )
    return hosted


def is_blocked(state: RunState | None, config: DaemonConfig, *, wait_for_keys: bool = False) -> bool:
    """Return whether a run waits for what nobody can give to this process from outside.

    That is a machine that can judge, and a key, unless this process is to `wait_for_keys`. A key in a file
    can be corrected there; one from the environment cannot.
    """
    if state is None or state.status is not RunStatus.PAUSED:
        return False
    if state.pause_cause is PauseCause.MACHINE:
        return True
    if wait_for_keys or state.pause_cause is not PauseCause.PROVIDER:
        return False
    endpoint, _, rest = state.status_reason.partition(": ")
    is_key = rest.partition(":")[0] == FailureKind.AUTH
    return is_key and endpoint in config.endpoint_names and config.endpoint(endpoint).key_file is None


async def _host_run(
    event_log: EventLog,
    tracker: RunTracker,
    sent: SentCommand,
    *,
    screen: Screen,
    config: DaemonConfig,
    stop: StopSignal,
    is_over: Callable[[], bool],
) -> None:
    """Own the home while following; when hosting ends, following ends too.

    Runs that others submit or resume meanwhile are hosted to their ends as well.
    """
    from daemon.home_owner import create_workers, host_home

    workers = create_workers(event_log.home, config)
    focus = {tracker.run}
    hosting = asyncio.create_task(host_home(event_log, config, stop=stop, workers=workers, focus=focus))
    hosting.add_done_callback(lambda _: stop.requested.set())
    try:
        await _follow_log(event_log.home, tracker, sent, screen, is_over=is_over, stop=stop)
        if not stop.requested.is_set():
            await _stay_for_others(event_log, tracker.run, focus, screen, stop)
    finally:
        stop.requested.set()
        await _redraw_until_done(hosting, tracker, screen)


async def _redraw_until_done(hosting: asyncio.Task[None], tracker: RunTracker, screen: Screen) -> None:
    """Keep the status moving while work in flight is given time to finish; raise what hosting raised."""
    while not hosting.done():
        screen.show_state(tracker)
        await asyncio.wait({hosting}, timeout=LOOK_SECONDS)
    await hosting


async def _stay_for_others(
    event_log: EventLog, own: str, focus: set[str], screen: Screen, stop: StopSignal
) -> None:
    """Host the other runs of this process to their ends, unless an `agentd` waits to take over."""
    told: list[str] = []
    while not stop.requested.is_set() and not is_service_waiting(event_log.home):
        left = [
            run
            for run in event_log.active_runs()
            if run in focus and run != own and event_log.run_state(run).status is RunStatus.RUNNING
        ]
        if not left:
            return
        if left != told:
            told = left
            screen.show_line(f"staying for {', '.join(left)}, submitted meanwhile (Ctrl-C leaves them)")
        await wait_for_first(stop.requested, seconds=LOOK_SECONDS)


async def _follow_other_owner(
    home: Path, tracker: RunTracker, sent: SentCommand, *, screen: Screen, stop: StopSignal
) -> None:
    """Follow while another process owns the home."""
    left = StopSignal()

    async def watch_owner() -> None:
        while is_owned(home) and not stop.requested.is_set():
            await wait_for_first(stop.requested, seconds=LOOK_SECONDS)
        left.request()

    watching = asyncio.create_task(watch_owner())
    try:
        await _follow_log(home, tracker, sent, screen, is_over=lambda: tracker.has_ended, stop=left)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _follow_log(
    home: Path,
    tracker: RunTracker,
    sent: SentCommand,
    screen: Screen,
    *,
    is_over: Callable[[], bool],
    stop: StopSignal,
) -> None:
    """Read and show the run's events until it is over or `stop` is requested."""
    reader = await _open_log(home, stop)
    if reader is None:
        return
    with reader:
        answered = False
        news = ProgressFeed(screen, after=sent.after)
        waits_for: str | None = None
        while not (is_over() or stop.requested.is_set()):
            answered = answered or find_answer(reader, sent) is not None
            if not _read_page(reader, tracker, news):
                news.show_standing(tracker)
                tracker.predictions = _count_predictions(reader, tracker)
                screen.show_state(tracker)
                owner = read_owner(HomeLayout(home).lock)
                if owner is not None and owner.waits_for != waits_for:
                    waits_for = owner.waits_for
                    screen.show_line(f"waiting: {waits_for}" if waits_for else "the log is free again")
                await wait_for_first(stop.requested, seconds=LOOK_SECONDS)
            await asyncio.sleep(0)


def _count_predictions(reader: LogReader, tracker: RunTracker) -> int:
    """Return how many predictions the work in flight has made; the system's stream counts them."""
    keys = tracker.state.open if tracker.state is not None else ()
    looking = [key for key in keys if _is_predicting(EffectKey.parse(key))]
    return sum(part.count for key in looking for part in reader.effect_parts(tracker.run, key))


def _is_predicting(key: EffectKey) -> bool:
    return key.role is Role.PREDICTOR or (key.role is Role.EXECUTOR and is_simplification(key))


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
