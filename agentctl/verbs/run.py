"""`agentctl run` and `agentctl resume`: start or continue a run, and follow it to its end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click

from agentctl.app import Session, common_options
from agentctl.command_answers import SentCommand, queued_runs, send_command
from agentctl.dry_run import dry_run_option, print_estimate
from agentctl.formatting import explain_pause, format_command, format_run_state
from agentctl.run_flags import config_from_flags, effective_from_flags, load_submission, run_options
from agentctl.run_lookup import find_last_run, find_run
from agentctl.run_summary import summary_json, summary_text, write_best_kernel
from agentctl.run_tracker import RunTracker
from agentctl.screen import Screen, create_screen
from agentctl.verbs.fork import NOTHING_CHANGES, build_fork, set_option
from agentctl.views import as_json as as_view
from agentctl.views.run import run_view
from daemon import exits
from daemon.command_models import Resume, run_id
from daemon.config import DaemonConfig
from daemon.errors import CommandRefused
from state.errors import NoLog, ReadModelsStale
from state.fold import RunState
from state.home_files import open_home_file
from state.model import RunStatus
from state.output_files import check_output
from state.reader import LogReader
from targets.registry import describe_change

output_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Where to write the best kernel."
)

keys_option = click.option(
    "--wait-for-keys", is_flag=True, help="If an endpoint refuses the key, wait until the run is resumed."
)

LOG_FILE = "agentctl.log"
"""The file in the home that log lines go to while a live display is on the terminal."""


@click.command(epilog=exits.epilog())
@run_options
@output_option
@dry_run_option
@keys_option
@common_options
def run(
    session: Session,
    kernel: Path | None,
    output: Path | None,
    *,
    dry_run: bool,
    wait_for_keys: bool,
    **flags: Any,
) -> int:
    """Optimise a kernel, showing progress; Ctrl-C stops it, and `resume` carries on."""
    check_output_now(session, output)
    wanted = effective_from_flags(session, flags)
    if dry_run:
        return print_estimate(session, wanted, kernel)
    command = load_submission(
        session.home, wanted, kernel, allow_unknown_prices=flags["allow_unknown_prices"]
    )
    sent = send_command(session.home, command)
    return follow_to_end(
        session,
        run_id(sent.id, command.config.problem),
        sent,
        wanted.config.daemon,
        output,
        wait_for_keys=wait_for_keys,
    )


@click.command(epilog=exits.epilog())
@click.argument("run", required=False, metavar="[RUN[@SEQ]]")
@click.option("--last", is_flag=True, help="The newest run that has not ended.")
@set_option
@output_option
@keys_option
@common_options
def resume(
    session: Session,
    run: str | None,
    *,
    last: bool,
    settings: tuple[str, ...],
    output: Path | None,
    wait_for_keys: bool,
) -> int:
    """Continue a run that was interrupted or paused.

    RUN@SEQ goes back to an event of the run: the run is paused, and a fork carries on from there in its
    place. Nothing is deleted. With --set, the fork does so with other settings.
    """
    check_output_now(session, output)
    if (run is None) == (not last):
        raise click.UsageError("name a RUN, or give --last")
    if run is not None and "@" in run:
        wanted = build_fork(session, run, settings, rewind=True)
        if wanted.same:
            click.echo(NOTHING_CHANGES, err=True)
        config = config_from_flags(session, {}).daemon
        sent = send_command(session.home, wanted.command)
        return follow_to_end(session, run_id(sent.id, wanted.problem), sent, config, output)
    if settings:
        raise click.UsageError("--set needs RUN@SEQ; `agentctl set` changes the run itself")
    waiting = _find_queued_run(session.home, run)
    if waiting is not None:
        return follow_to_end(session, *waiting, config_from_flags(session, {}).daemon, output)
    row = _load_run_row(session.home, run)
    config = config_from_flags(session, {}).daemon
    if row["status"] == RunStatus.CANCELLED:
        raise CommandRefused(f"run {row['run']} is cancelled", code="illegal_state")
    if row["ended"]:
        onward = format_command("fork", row["run"], "--set", "search.rounds=N")
        click.echo(f"{row['run']} had ended: nothing is left to do; to go on from it: {onward}", err=True)
        return follow_to_end(session, row["run"], None, config, output)
    if (changed := describe_change(row["target"], row["toolchain"])) is not None:
        click.echo(f"note: {changed}; latencies from before and after may not compare", err=True)
    return follow_to_end(
        session, row["run"], send_command(session.home, Resume(run=row["run"])), config, output
    )


class FollowHooks(Protocol):
    """What a verb that starts a run adds while it is followed."""

    def wrap_screen(self, screen: Screen, run: str) -> Screen:
        """Return the screen that shows the run's progress, and observes it."""

    def report_extras(self, tracker: RunTracker) -> tuple[dict[str, Any], str]:
        """Return the additions to the final report, as JSON and as text, however following ended."""


def check_output_now(session: Session, output: Path | None) -> None:
    """Fail now, and not after days, if the best kernel cannot be written there."""
    if output is not None:
        check_output(session.home, output, replace=True)


def _find_queued_run(home: Path, run: str | None) -> tuple[str, SentCommand] | None:
    """Return the newest run whose first command is queued, or `run` if that is queued."""
    return next((found for found in queued_runs(home) if run in (None, found[0])), None)


def _load_run_row(home: Path, run: str | None) -> dict[str, Any]:
    """Return the row of `run`, or of the last run; an older log is migrated first."""
    try:
        return _read_run_row(home, run)
    except ReadModelsStale:
        from state.log_rebuild import migrate_log

        migrate_log(home)
        return _read_run_row(home, run)


def _read_run_row(home: Path, run: str | None) -> dict[str, Any]:
    with LogReader.open(home) as reader:
        reader.check_end()  # the log's owner makes this check, but a run that has ended needs no owner
        return find_run(reader, run or find_last_run(reader))


def follow_to_end(
    session: Session,
    run: str,
    sent: SentCommand | None,
    config: DaemonConfig,
    output: Path | None,
    *,
    beside: FollowHooks | None = None,
    wait_for_keys: bool = False,
) -> int:
    """Follow `run` to its end and report; return the exit status. `sent` is None if the run has ended
    already.
    """
    from agentctl.follow import follow_run, is_blocked, replay_run
    from daemon.log_verification import verify_briefly

    tracker = RunTracker(run)
    hosted = False
    out = sys.stderr if session.json else sys.stdout
    with log_beside_display(session.home, live=out.isatty()), create_screen(out) as screen:
        if sent is None:
            replay_run(session.home, tracker)
            asyncio.run(verify_briefly(session.home))
        else:
            shown = screen if beside is None else beside.wrap_screen(screen, run)
            hosted = asyncio.run(
                follow_run(session.home, tracker, sent, shown, config, wait_for_keys=wait_for_keys)
            )
    blocked = hosted and is_blocked(tracker.state, config, wait_for_keys=wait_for_keys)
    return _finish_run(session, tracker, output, beside, hosted=hosted, blocked=blocked)


@contextmanager
def log_beside_display(home: Path, *, live: bool) -> Iterator[None]:
    """Send log lines to stderr, or to a file while a live display owns the terminal."""
    from daemon.process_logging import configure_logging

    if not live:
        configure_logging("warning", people=True)
        yield
        return
    path = home / LOG_FILE
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(open_home_file(home, LOG_FILE, flags), "a", encoding="utf-8") as stream:
        before = stream.tell()
        configure_logging("warning", people=True, stream=stream)
        try:
            yield
        finally:
            configure_logging("warning", people=True)
            is_longer = stream.tell() > before
    if is_longer:
        click.echo(f"warnings of this process are in {path}", err=True)


def _finish_run(
    session: Session,
    tracker: RunTracker,
    output: Path | None,
    beside: FollowHooks | None,
    *,
    hosted: bool,
    blocked: bool,
) -> int:
    more, text = beside.report_extras(tracker) if beside is not None else ({}, "")
    if tracker.state is None or not tracker.has_ended:
        known = as_view(run_view(tracker.run, tracker.state)) if tracker.state else {"id": tracker.run}
        how, verb = ("interrupted", "carry on") if hosted else ("detached", "follow")
        how = "paused" if blocked else how
        session.emit({**known, **more, "state": how})
        so_far = f": {format_run_state(tracker.state)}" if tracker.state else ""
        click.echo(f"\nrun {tracker.run} {how}{so_far}", err=True)
        if blocked and tracker.state is not None:
            click.echo(f"it cannot go on: {explain_pause(tracker.run, tracker.state)}", err=True)
        click.echo(f"{verb} with: {format_command('resume', *session.home_words, tracker.run)}", err=True)
        if text:
            click.echo(text, err=True)
        if hosted:
            _warn_orphaned_runs(session, tracker.run)
        return exits.BLOCKED if blocked else exits.INTERRUPTED
    with LogReader.open(session.home) as reader:
        kernel_file = write_best_kernel(reader, session.home, tracker.run, tracker.state, output)
    told, fruitless = summary_text(tracker, kernel_file), tracker.questions.failure_reason()
    failure = {} if fruitless is None else {"failure": fruitless}
    session.emit(
        {**summary_json(tracker, kernel_file), **failure, **more}, f"{told}\n{text}" if text else told
    )
    if fruitless is not None:
        click.echo(f"{tracker.run}: {fruitless}", err=True)
    if hosted:
        _warn_orphaned_runs(session, tracker.run)
    return exits.OK if _has_result(tracker.state) else exits.FAILURE


def _has_result(state: RunState) -> bool:
    """Return whether a run found a kernel that is better than the initial one."""
    if state.status is not RunStatus.COMPLETED or state.best is None or state.initial is None:
        return False
    return state.best.id != state.initial.id


def _warn_orphaned_runs(session: Session, run: str) -> None:
    """Name the other runs that stop advancing when this process, their host, exits."""
    try:
        with LogReader.open(session.home) as reader:
            rows = reader.run_rows()
    except NoLog:  # interrupted before there was a log
        return
    others = [str(row["run"]) for row in rows if row["run"] != run and row["status"] == RunStatus.RUNNING]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        go = format_command("resume", *session.home_words, others[0]) + (", or start agentd" if more else "")
        left = f"interrupted, as this process leaves: {others[0]}{more}"
        click.echo(f"{left}; carry on with: {go}", err=True)
