"""Owning a home: everything that runs while this process may write the log.

`agentd` hosts every active run. `agentctl run` hosts too when nobody else does, but keeps to its own run
and to what is submitted or resumed meanwhile: runs that were interrupted earlier wait to be asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from daemon.calls.desk import Desk
from daemon.calls.meter import Meter
from daemon.commands import Commands
from daemon.config import DaemonConfig
from daemon.edits import Edits
from daemon.hosts import HostWatch
from daemon.inbox import Inbox
from daemon.proof import PATIENCE_SECONDS, proving
from daemon.pulse import Pulse, announcing_stop, standing_line
from daemon.runner import RetryPolicy, Runner
from daemon.space import Space
from daemon.stop import Stop, alongside
from daemon.supervisor import Limits, Supervisor
from daemon.systemd import UNHEARD, Notifier
from daemon.verbs import Approve, Command, Fork, Resume, Submit
from daemon.workers import CreateEvaluator, Workers
from state.crash import crash_point
from state.home import Layout
from state.log import EventLog
from state.reserve import Reserve

REST_SECONDS = 60.0
LOOKS = 4
"""Workers are closed when, at so many looks within these seconds, nothing was in flight."""


def workers_of(home: Path, config: DaemonConfig) -> Workers:
    """Return the real evaluators and proposers, as `config` wants them."""
    from agent_core import proposers
    from remote import registry

    def under(settings: DaemonConfig) -> CreateEvaluator:
        means = registry.Means(
            home,
            settings.evaluations,
            settings.allow_weak_jail,
            settings.ray_address,
            settings.host_silence_seconds,
        )
        return partial(registry.create, home=home, means=means)

    return Workers(create_evaluator=under(config), create_proposer=proposers.create, under=under)


async def host(
    event_log: EventLog,
    config: DaemonConfig,
    *,
    stop: Stop,
    workers: Workers,
    focus: set[str] | None = None,
    notifier: Notifier = UNHEARD,
    changed: Callable[[DaemonConfig], None] | None = None,
) -> None:
    """Work as `work_on` does, with the log that was found proved meanwhile.

    Whoever hosts certain runs and sees them to their end waits a little for a proof that takes longer.

    Raises:
        state.errors.StateError: the log failed, or is found to be damaged.
    """

    def patience_seconds() -> float:
        return PATIENCE_SECONDS if focus and focus.isdisjoint(event_log.runs()) else 0.0

    work = work_on(
        event_log, config, stop=stop, workers=workers, focus=focus, notifier=notifier, changed=changed
    )
    if event_log.head.seq == 0:  # all that will be there is what this process writes
        await work
    else:
        await proving(event_log.home, work, stop, patience_seconds=patience_seconds)


async def work_on(
    event_log: EventLog,
    config: DaemonConfig,
    *,
    stop: Stop,
    workers: Workers,
    focus: set[str] | None = None,
    notifier: Notifier = UNHEARD,
    changed: Callable[[DaemonConfig], None] | None = None,
    desk: Desk | None = None,
) -> None:
    """Take commands and advance runs until `stop`; then end in-flight work and close the workers.

    `focus` names the runs to advance, None all; runs that are submitted, forked or let go on join it.
    `notifier` hears how it goes, `changed` of other settings of the process: an edit of the file made them.
    `desk` is where models are asked, by default as `config` says.

    Raises:
        state.errors.StateError: the log failed.
    """
    desk = Desk(event_log, config) if desk is None else desk
    runner = Runner(event_log, workers, desk=desk, retry=_retry(config))
    supervisor = Supervisor(
        event_log,
        runner,
        limits=_limits(config),
        grace_seconds=config.grace_seconds,
        focus=focus,
        elsewhere=lambda: workers.slots,
    )
    meter = Meter(event_log, desk.till, driven=lambda run: focus is None or run in focus)
    commands = Commands(event_log, workers, touched=_touching(supervisor, focus), check=desk.faults)
    edits = Edits(event_log, turn=commands.turn, apply=_applying(runner, supervisor, workers, desk, changed))
    inbox = Inbox(event_log.home, commands.handle)
    parts = {"writer": event_log.turns, "supervisor": supervisor.turns, "inbox": inbox.turns}

    def step() -> None:
        for turns in parts.values():
            turns.step()

    space = Space(event_log, _reserve(event_log), stop, touched=supervisor.touch, step=step)
    pulse = Pulse(notifier, parts, _describing(event_log, space))
    leaving = announcing_stop(notifier, stop, lambda: supervisor.grace_seconds)
    try:
        await meter.begin()
        sides = (
            space.watch(),
            inbox.watch(),
            edits.watch(),
            desk.watch(supervisor.touch),
            meter.watch(),
            pulse.beat(),
            leaving,
            rest(supervisor, workers),
            HostWatch(event_log, workers, touched=supervisor.touch, focus=focus).watch(),
        )
        await alongside(supervisor.run(stop), *sides, stop=stop)
    finally:
        await desk.aclose()
        await workers.aclose()


def _reserve(event_log: EventLog) -> Reserve:
    return Reserve(Layout(event_log.home).reserve)


def _touching(supervisor: Supervisor, focus: set[str] | None) -> Callable[[Command, str], None]:
    """Return what hears of each command that was carried out, and of the run that it concerned."""

    def touched(command: Command, run: str) -> None:
        crash_point("host.touched")
        if focus is not None and isinstance(command, Submit | Resume | Approve | Fork):
            focus.add(run)
        supervisor.touch(run)

    return touched


def _applying(
    runner: Runner,
    supervisor: Supervisor,
    workers: Workers,
    desk: Desk,
    changed: Callable[[DaemonConfig], None] | None,
) -> Callable[[DaemonConfig], None]:
    """Return what puts other settings of the process into force."""

    def apply(fresh: DaemonConfig) -> None:
        runner.retry = _retry(fresh)
        supervisor.change(_limits(fresh), grace_seconds=fresh.grace_seconds)
        workers.change(fresh)
        desk.change(fresh)
        if changed is not None:
            changed(fresh)

    return apply


async def rest(supervisor: Supervisor, workers: Workers) -> None:
    """Close workers that were replaced, and all that had nothing to do for a while: they hold memory."""
    quiet = 0
    while True:
        await asyncio.sleep(REST_SECONDS / LOOKS)
        await workers.close_replaced()
        quiet = 0 if supervisor.flying or workers.preparing else quiet + 1
        if quiet == LOOKS:
            await workers.aclose()


def _limits(config: DaemonConfig) -> Limits:
    return Limits(
        evaluations=config.evaluations, proposals=config.proposals, runs=config.runs, calls=config.calls
    )


def _retry(config: DaemonConfig) -> RetryPolicy:
    return RetryPolicy(deadline_seconds=config.evaluation_seconds)


def _describing(event_log: EventLog, space: Space) -> Callable[[], str]:
    """Return what tells how the runs stand, looking only when the log has grown."""
    known: dict[int, str] = {}

    def describe() -> str:
        seq = event_log.head.seq
        if seq not in known:
            known.clear()
            known[seq] = standing_line(event_log.standings())
        return f"disk full; {known[seq]}" if space.full else known[seq]

    return describe
