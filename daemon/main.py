"""`agentd`: the process that owns a home, advances all its runs and takes commands until it is stopped.

While a foreground `agentctl run` owns the home, `agentd` waits and says so. A second `agentd` for the
same home is refused. `agentd` logs to stderr: readable lines on a terminal, otherwise one JSON object
per line.
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
from daemon.home_paths import HOME, INSTANCE_LOCK, resolve_home
from daemon.privileges import become_home_user
from daemon.process_logging import configure_logging
from daemon.stop_signal import StopSignal, wait_for_first
from daemon.systemd import ServiceNotifier, credential_files
from daemon.watchdog import START_SECONDS, keep_start_alive
from state.errors import HomeLocked, StorageBusy
from state.home import prepare_home
from state.lock import HomeLock
from state.log import EventLog

LOOK_AGAIN_SECONDS = 1.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("agentd")


@click.command(epilog=exits.epilog())
@click.option("--home", type=HOME, help="The home; default: $STATE_DIRECTORY, or yours.")
def agentd(home: Path | None) -> int:
    """Own a home: advance all its runs and take commands, until SIGTERM or SIGINT."""
    where = resolve_home(home, os.environ)
    become_home_user(where)
    asyncio.run(serve_home(where))
    return exits.OK


async def serve_home(home: Path) -> None:
    """Wait for the home, own it, and serve it until a signal asks to stop.

    Raises:
        HomeLocked: another daemon serves this home, or waits for it.
        state.errors.StateError: the home or its log cannot be used, or is damaged.
        daemon.config.ConfigError: the configuration of a new home, or the environment, has faults.
    """
    from daemon.config_watcher import load_start_config
    from daemon.home_owner import create_workers, host_home

    configure_logging(DaemonConfig().log_level)
    faulthandler.enable()  # when the watchdog aborts us, the stacks of all threads are dumped
    notifier = ServiceNotifier.from_env(os.environ)
    stop = StopSignal()
    stop.install_signal_handlers()
    instance = HomeLock(prepare_home(home, create=True).home / INSTANCE_LOCK)
    try:
        event_log = await _open_when_free(home, stop, notifier)
        if event_log is not None:
            with event_log:
                config = load_start_config(home, event_log, os.environ)
                configure_logging(config.log_level)
                log.info(
                    "started",
                    home=str(home),
                    head=event_log.head.seq,
                    runs=len(event_log.active_runs()),
                    credentials=sorted(credential_files(os.environ)),
                )
                workers = create_workers(home, config)
                await host_home(
                    event_log, config, stop=stop, workers=workers, notifier=notifier, changed=_apply_log_level
                )
            log.info("stopped", home=str(home))
    finally:
        instance.release()


def _apply_log_level(config: DaemonConfig) -> None:
    configure_logging(config.log_level)


async def _open_when_free(home: Path, stop: StopSignal, notifier: ServiceNotifier) -> EventLog | None:
    """Open the log as soon as nobody owns or locks it; return None if a stop is requested first."""
    told: str | None = None
    while not stop.requested.is_set():
        try:
            async with keep_start_alive(notifier, "opening the log"):
                return await asyncio.to_thread(EventLog.open, home)
        except (HomeLocked, StorageBusy) as error:
            if told != str(error):
                told = str(error)
                owner_pid = error.owner_pid if isinstance(error, HomeLocked) else None
                log.warning("waiting_for_home", home=str(home), error=told, owner_pid=owner_pid)
        notifier.set_status(f"waiting: {told}")
        notifier.extend_timeout(START_SECONDS)
        await wait_for_first(stop.requested, seconds=LOOK_AGAIN_SECONDS)
    return None


def main() -> None:
    exits.run_command(agentd, "agentd")
