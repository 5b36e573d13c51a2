"""Owning a home: starts everything that runs while this process may write the log.

`agentd` hosts every active run. `agentctl run` hosts too if nobody else does, but advances only its own
run and runs that are submitted or resumed meanwhile. Runs that were interrupted earlier wait until you
resume them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from daemon.calls.llm_roles import RoleFactory
from daemon.calls.run_time_meter import RunTimeMeter
from daemon.command_models import Approve, Command, Fork, Resume, Submit
from daemon.commands import CommandHandler, CommandListener
from daemon.config import DaemonConfig
from daemon.config_watcher import ConfigWatcher
from daemon.disk_full import DiskSpaceGuard
from daemon.effect_steps import prune_steps
from daemon.evaluation_retries import EvaluationRetryPolicy
from daemon.host_watch import HostWatch
from daemon.inbox import Inbox
from daemon.log_verification import PATIENCE_SECONDS, verify_alongside
from daemon.replication import ReplicaWatch
from daemon.runner import EffectRunner
from daemon.stop_signal import StopSignal, run_alongside
from daemon.structured_log import structlog
from daemon.supervisor import EffectLimits, Supervisor
from daemon.systemd import NULL_NOTIFIER, ServiceNotifier
from daemon.watchdog import Heartbeat, announce_stop, format_standings
from daemon.workers import CreateEvaluator, Workers
from state.crash import crash_point
from state.disk_reserve import DiskReserve
from state.errors import StateError, StorageBusy
from state.home import HomeLayout
from state.log import EventLog
from state.model import RunStatus
from state.progress_counter import ProgressCounter

log: structlog.stdlib.BoundLogger = structlog.get_logger("host")

CUT_OFF_SECONDS = 10.0
"""How long the log's verification leaves the CPUs to effects that an earlier process was cut off in."""

IDLE_SECONDS = 60.0
HOME_CHECK_SECONDS = 1.0

IDLE_POLLS = 4
"""Workers are closed after this many checks in a row, spread over `IDLE_SECONDS`, found nothing in flight."""


def create_workers(home: Path, config: DaemonConfig) -> Workers:
    """Return the real evaluators and proposers, with the settings in `config`."""
    from agent_core import proposers
    from daemon.translation import KernelTranslator
    from remote import registry

    def under(settings: DaemonConfig) -> CreateEvaluator:
        means = registry.EvaluatorResources(
            home,
            settings.evaluations,
            settings.allow_weak_jail,
            settings.ray_address,
            settings.host_silence_seconds,
        )
        return partial(registry.create_evaluator, home=home, means=means)

    return Workers(
        create_evaluator=under(config),
        create_proposer=proposers.create_proposer,
        under=under,
        translator=KernelTranslator(home, has_pool=True),
    )


def load_early() -> None:
    """Load what an owner needs at once, before it owns a home: its life may be short."""
    from agent_core.prompting import builtin_prompts
    from remote import judge_service, local  # noqa: F401  the evaluator of most runs
    from state.run_state import RunState

    builtin_prompts()
    RunState.model_rebuild()  # else it is built with the first state


async def host_home(
    event_log: EventLog,
    config: DaemonConfig,
    *,
    stop: StopSignal,
    workers: Workers,
    focus: set[str] | None = None,
    notifier: ServiceNotifier = NULL_NOTIFIER,
    changed: Callable[[DaemonConfig], None] | None = None,
) -> None:
    """Run `serve_runs` while the log is verified in parallel.

    `focus` names the runs to advance; None means all. Runs that are submitted, forked, resumed or approved
    join it. If its runs have ended, wait a little for a verification that takes longer. `notifier` reports
    the state to the service manager. `changed` is called with new process settings when the configuration
    file was edited. `serve_runs` has the same parameters; its `roles` creates the LLM roles, by default from
    `config`.

    Raises:
        state.errors.StateError: the log failed, or is damaged.
    """

    def patience_seconds() -> float:
        return PATIENCE_SECONDS if focus and focus.isdisjoint(event_log.active_runs()) else 0.0

    try:
        is_cut_off = _warm_up_workers(event_log, workers, focus)
        await asyncio.to_thread(prune_steps, event_log)
        work = serve_runs(
            event_log, config, stop=stop, workers=workers, focus=focus, notifier=notifier, changed=changed
        )
        if event_log.head.seq == 0:  # a new log: it will hold only what this process writes
            await work
        else:
            wait = CUT_OFF_SECONDS if is_cut_off else 0.0
            await verify_alongside(
                event_log.home, work, stop, patience_seconds=patience_seconds, wait_seconds=wait
            )
    except StateError:
        event_log.require_in_place()  # a home that was moved fails in many ways
        raise


async def serve_runs(
    event_log: EventLog,
    config: DaemonConfig,
    *,
    stop: StopSignal,
    workers: Workers,
    focus: set[str] | None = None,
    notifier: ServiceNotifier = NULL_NOTIFIER,
    changed: Callable[[DaemonConfig], None] | None = None,
    roles: RoleFactory | None = None,
) -> None:
    """Take commands and advance runs until `stop`; then end in-flight work and close the workers.

    Raises:
        state.errors.StateError: the log failed.
    """
    roles = RoleFactory(event_log, config) if roles is None else roles
    runner = _create_runner(event_log, workers, roles, config)
    supervisor = Supervisor(
        event_log,
        runner,
        limits=_effect_limits(config),
        grace_seconds=config.grace_seconds,
        focus=focus,
        elsewhere=lambda: workers.remote_slots,
    )
    meter = RunTimeMeter(event_log, roles.ledger, driven=lambda run: focus is None or run in focus)
    commands = _command_handler(event_log, workers, roles, touched=_on_command_done(supervisor, focus))
    replicas = ReplicaWatch(event_log, config.replicas)
    told = (lambda fresh: replicas.set_destinations(fresh.replicas), changed)
    edits = ConfigWatcher(
        event_log, turn=commands.turn, apply=_on_config_change(runner, supervisor, workers, roles, told)
    )
    inbox = _open_inbox(event_log.home, commands)
    parts = {"writer": event_log.writer_progress, "supervisor": supervisor.turns, "inbox": inbox.turns}
    reserve, step = DiskReserve(HomeLayout(event_log.home).reserve), partial(_step_parts, parts.values())
    space = DiskSpaceGuard(event_log, reserve, stop, touched=supervisor.touch, step=step)
    pulse = Heartbeat(notifier, parts, _status_describer(event_log, space))
    try:
        await meter.begin()
        sides = (
            space.watch(),
            inbox.watch(),
            edits.watch(),
            roles.watch_day_budget(supervisor.touch),
            meter.watch(),
            pulse.send_heartbeats(),
            announce_stop(notifier, stop, lambda: supervisor.grace_seconds),
            _stop_waiting(event_log, stop),
            close_idle_workers(supervisor, workers),
            _watch_home(event_log),
            replicas.watch(),
            HostWatch(event_log, workers, touched=supervisor.touch, focus=focus).watch(),
        )
        await run_alongside(supervisor.run(stop), *sides, stop=stop)
    except StorageBusy as error:  # only after a stop; what was not stored is done again
        log.warning("stopped_while_locked", error=str(error))
    finally:
        await roles.aclose()
        await workers.aclose()


def _warm_up_workers(event_log: EventLog, workers: Workers, focus: set[str] | None) -> bool:
    """Start the processes that effects need which an earlier process left open; return whether one did."""
    states = [event_log.run_state(run) for run in event_log.active_runs() if focus is None or run in focus]
    cut_off = [state for state in states if state.open and state.status is RunStatus.RUNNING]
    for state in cut_off:
        workers.warm_up(state)
    return bool(cut_off)


def _open_inbox(home: Path, commands: CommandHandler) -> Inbox:
    """Return the inbox; a command that takes long shows there that it goes on."""
    inbox = Inbox(home, commands.handle)
    commands.step = inbox.turns.step
    return inbox


def _command_handler(
    event_log: EventLog, workers: Workers, roles: RoleFactory, *, touched: CommandListener
) -> CommandHandler:
    return CommandHandler(
        event_log,
        workers,
        touched=touched,
        check=roles.find_model_faults,
        check_prices=roles.find_unpriced_models,
    )


def _step_parts(parts: Iterable[ProgressCounter]) -> None:
    for turns in parts:
        turns.step()


async def _watch_home(event_log: EventLog) -> None:
    """Check periodically that the home is where it was; raises HomeMoved."""
    while True:
        event_log.require_in_place()
        await asyncio.sleep(HOME_CHECK_SECONDS)


async def _stop_waiting(event_log: EventLog, stop: StopSignal) -> None:
    """Let a stop end appends that wait for another process's lock."""
    await stop.requested.wait()
    event_log.stop_waiting()


def _on_command_done(supervisor: Supervisor, focus: set[str] | None) -> Callable[[Command, str], None]:
    """Return the callback for a command that was carried out and the run that it concerned."""

    def touched(command: Command, run: str) -> None:
        crash_point("host.touched")
        if focus is not None and isinstance(command, Submit | Resume | Approve | Fork):
            focus.add(run)
        supervisor.touch(run)

    return touched


def _create_runner(
    event_log: EventLog, workers: Workers, roles: RoleFactory, config: DaemonConfig
) -> EffectRunner:
    runner = EffectRunner(event_log, workers, roles=roles, retry=_retry_policy(config))
    runner.allow_weak_jail = config.allow_weak_jail
    return runner


def _on_config_change(
    runner: EffectRunner,
    supervisor: Supervisor,
    workers: Workers,
    roles: RoleFactory,
    told: Iterable[Callable[[DaemonConfig], None] | None],
) -> Callable[[DaemonConfig], None]:
    """Return the callback that applies changed process settings, and tells those in `told`."""

    def apply(fresh: DaemonConfig) -> None:
        runner.retry = _retry_policy(fresh)
        runner.allow_weak_jail = fresh.allow_weak_jail
        supervisor.set_limits(_effect_limits(fresh), grace_seconds=fresh.grace_seconds)
        workers.apply_config(fresh)
        roles.apply_config(fresh)
        for changed in told:
            if changed is not None:
                changed(fresh)

    return apply


async def close_idle_workers(supervisor: Supervisor, workers: Workers) -> None:
    """Close replaced workers, and close all workers after an idle period, because they hold memory."""
    quiet = 0
    while True:
        await asyncio.sleep(IDLE_SECONDS / IDLE_POLLS)
        await workers.close_replaced()
        quiet = 0 if supervisor.in_flight_count or workers.is_preparing else quiet + 1
        if quiet == IDLE_POLLS:
            await workers.aclose()


def _effect_limits(config: DaemonConfig) -> EffectLimits:
    return EffectLimits(
        evaluations=config.evaluations, proposals=config.proposals, runs=config.runs, calls=config.calls
    )


def _retry_policy(config: DaemonConfig) -> EvaluationRetryPolicy:
    return EvaluationRetryPolicy(deadline_seconds=config.evaluation_seconds)


def _status_describer(event_log: EventLog, space: DiskSpaceGuard) -> Callable[[], str]:
    """Return a function that describes how the runs stand; it reads the log only when that has grown."""
    known: dict[int, str] = {}

    def describe() -> str:
        seq = event_log.head.seq
        if seq not in known:
            known.clear()
            known[seq] = format_standings(event_log.run_standings())
        if event_log.waits_for is not None:
            return f"waiting: {event_log.waits_for}; {known[seq]}"
        return f"disk full; {known[seq]}" if space.full else known[seq]

    return describe
