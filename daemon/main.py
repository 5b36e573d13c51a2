"""`agentd`: the process that owns a home, advances all its runs and takes commands until told to stop.

While a foreground `agentctl run` owns the home, it waits for it and says so; a second `agentd` for the
same home is refused. It logs to stderr: for people on a terminal, else one JSON object a line.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
from pathlib import Path

import click
import structlog

from daemon import exits
from daemon.config import DaemonConfig
from daemon.logs import configure
from daemon.places import HOME, INSTANCE, resolve_home
from daemon.pulse import START_SECONDS, keeping_start_alive
from daemon.stop import Stop, first_of
from daemon.systemd import Notifier, credentials
from state.errors import HomeLocked
from state.home import prepare
from state.lock import HomeLock
from state.log import EventLog

LOOK_AGAIN_SECONDS = 1.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("agentd")


@click.command(epilog=exits.epilog())
@click.option("--home", type=HOME, help="The home; default: $STATE_DIRECTORY, or yours.")
def agentd(home: Path | None) -> int:
    """Own a home: advance all its runs and take commands, until SIGTERM or SIGINT."""
    where = resolve_home(home, os.environ)
    asyncio.run(serve(where))
    return exits.OK


async def serve(home: Path) -> None:
    """Wait for the home, own it, and work until a signal asks to stop.

    Raises:
        HomeLocked: another daemon serves this home, or waits for it.
        state.errors.StateError: the home or its log cannot be used, or is found to be damaged.
        daemon.config.ConfigError: the configuration of a new home has faults, or the environment.
    """
    from daemon.edits import at_start
    from daemon.host import host, workers_of

    configure(DaemonConfig().log_level)
    faulthandler.enable()  # the abort of a watchdog leaves the stacks of all threads
    notifier = Notifier.of(os.environ)
    stop = Stop()
    stop.on_signals()
    instance = HomeLock(prepare(home, create=True).home / INSTANCE)
    try:
        event_log = await _own(home, stop, notifier)
        if event_log is not None:
            with event_log:
                config = at_start(home, event_log, os.environ)
                configure(config.log_level)
                log.info(
                    "started",
                    home=str(home),
                    head=event_log.head.seq,
                    runs=len(event_log.runs()),
                    credentials=sorted(credentials(os.environ)),
                )
                workers = workers_of(home, config)
                await host(
                    event_log, config, stop=stop, workers=workers, notifier=notifier, changed=_follow_level
                )
            log.info("stopped", home=str(home))
    finally:
        instance.release()


def _follow_level(config: DaemonConfig) -> None:
    configure(config.log_level)


async def _own(home: Path, stop: Stop, notifier: Notifier) -> EventLog | None:
    """Open the log as soon as nobody owns it; None when told to stop before."""
    told: int | None = None
    while not stop.requested.is_set():
        try:
            async with keeping_start_alive(notifier, "opening the log"):
                return await asyncio.to_thread(EventLog.open, home)
        except HomeLocked as error:
            if told != error.owner_pid:
                told = error.owner_pid
                log.info("waiting_for_home", home=str(home), owner_pid=told)
        notifier.status(f"waiting for process {told}, which owns the home")
        notifier.extend(START_SECONDS)
        await first_of(stop.requested, seconds=LOOK_AGAIN_SECONDS)
    return None


def main() -> None:
    exits.run(agentd, "agentd")
