"""`agentd`: the process that owns a home, advances all its runs and takes commands until it is stopped.

While a foreground `agentctl run` owns the home, or its disk is full or gone, `agentd` waits and says so.
A second `agentd` for the same home is refused. `agentd` logs to stderr: readable lines on a terminal,
otherwise one JSON object per line.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
from pathlib import Path

import click

from daemon import exits
from daemon.config import DaemonConfig
from daemon.home_opening import LOOK_AGAIN_SECONDS, HomeOpener
from daemon.home_paths import HOME, INSTANCE_LOCK, resolve_home
from daemon.privileges import become_home_user
from daemon.process_logging import configure_logging
from daemon.stop_signal import StopSignal, wait_for_first
from daemon.structured_log import structlog
from daemon.systemd import ServiceNotifier, credential_files
from state.errors import StorageFailed, StorageFull

log: structlog.stdlib.BoundLogger = structlog.get_logger("agentd")


@click.command(epilog=exits.epilog())
@click.option("--home", type=HOME, help="The folder of the log; default: $STATE_DIRECTORY, else your own.")
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
    from daemon.home_owner import create_workers, host_home, load_early

    configure_logging(DaemonConfig().log_level)
    faulthandler.enable()  # when the watchdog aborts us, the stacks of all threads are dumped
    notifier = ServiceNotifier.from_env(os.environ)
    stop = StopSignal()
    stop.install_signal_handlers()
    load_early()
    opener = HomeOpener(home, stop, notifier, creates=not notifier.is_listening)
    try:
        while (event_log := await opener.open_log(INSTANCE_LOCK)) is not None:
            try:
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
                        event_log,
                        config,
                        stop=stop.linked(),
                        workers=workers,
                        notifier=notifier,
                        changed=_apply_log_level,
                    )
                break
            except (StorageFull, StorageFailed) as error:
                await opener.report_unwritable(error)
                await wait_for_first(stop.requested, seconds=LOOK_AGAIN_SECONDS)
        log.info("stopped", home=str(home))
    finally:
        opener.close()


def _apply_log_level(config: DaemonConfig) -> None:
    configure_logging(config.log_level)


def main() -> None:
    exits.run_command(agentd, "agentd")
